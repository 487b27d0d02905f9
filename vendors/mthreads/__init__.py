"""Moore Threads GPUs: 16 cores each, shared in slices of memory, and all of a pod's shares on one card."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import Field

from cdi.spec import ContainerEdits
from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import ResourceName, ToolSettings, TrustSettings, setting
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.keys import ASSIGNED_NODE
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.protocol.pods import encode_devices
from hami_plugin.scheduler.engine.devices import (
    Admit,
    Admitted,
    Asked,
    Candidate,
    Context,
    Demand,
    Denied,
    Given,
    Reason,
    Request,
    amount,
    count_request,
    from_summed_capacity,
    limit_or_request,
)
from hami_plugin.scheduler.engine.policy import CHARGED, Policy, on_the_pods_device, standard
from hami_plugin.sdk import (
    AnnotationKeys,
    Card,
    DeviceNodes,
    Fabric,
    Family,
    Hardware,
    NodeSide,
    Patch,
    Resources,
    SchedulingRules,
    ToolError,
    Units,
    address,
    comma_lists,
    device_load,
    json_object,
    listed_vendor,
    matrix,
    mebibytes,
    read,
)

# Settings


class MthreadsSettings(ToolSettings, TrustSettings):
    """Keys of HAMi's ``mthreads`` section with its defaults, then ours."""

    cdi_class: ClassVar[str] = "mtgpu"
    cdi_class_help: ClassVar[str] = "Class part of the GPUs' CDI names."

    count: ResourceName = setting("resourceCountName", "mthreads.com/vgpu", "Number of GPUs.")
    memory: ResourceName = setting("resourceMemoryName", "mthreads.com/sgpu-memory", "512 MiB of all GPUs together.")
    cores: ResourceName = setting("resourceCoreName", "mthreads.com/sgpu-core", "Cores of all GPUs together, 16 each.")
    split_count: int = setting("splitCount", 16, "How many containers may share a GPU.", ge=1, le=100)
    mthreads_gmi: AbsolutePath = setting(
        "mthreadsGmi",
        Path("/usr/bin/mthreads-gmi"),
        "Moore Threads' tool, which lists the GPUs and how they are linked.",
    )
    driver_files: tuple[AbsolutePath, ...] = Field(
        (Path("/usr/lib/x86_64-linux-gnu/musa"), Path("/usr/bin/mthreads-gmi")),
        alias="driverFiles",
        description="Files and folders of the host's driver that containers receive, read-only, where they exist.",
    )


# Rules

DEVICE_TYPE = "Mthreads"
UNIT = 512
"""MiB that one unit of memory stands for."""

CARD_CORES, CARD_MEMORY = 16, 96
"""What admission writes for a whole card."""

SLICES = (2, 4, 8, 16, 32, 64, CARD_MEMORY)
"""Units of memory that one share may have."""

INDICES = "mthreads.com/gpu-index"
"""Where the agent finds which cards are the pod's."""

KEYS = AnnotationKeys(allocated="hami.io/mthreads-vgpu-devices-allocated")


def families(settings: MthreadsSettings, clock: Callable[[], int] = time.time_ns) -> tuple[Family, ...]:
    """The one family of this vendor. ``clock`` says when a decision is written, in nanoseconds since 1970."""
    policy = Policy(
        request=for_all_cards(
            count_request(
                DEVICE_TYPE,
                count=amount(settings.count),
                memory=amount(settings.memory, factor=UNIT),
                cores=amount(settings.cores, fraction="ignore"),
            )
        ),
        serves=standard(DEVICE_TYPE, uuids=("mthreads.ai/use-gpuuuid", "mthreads.ai/nouse-gpuuuid")),
        checks=(*CHARGED, shares_on_one_card),
    )
    return (
        Family(
            resources=resources(settings),
            rules=SchedulingRules(
                annotations=KEYS,
                policy=policy,
                admit=admission(settings),
                node_devices=from_summed_capacity(
                    settings.cores,
                    settings.memory,
                    each=CARD_CORES,
                    unit=UNIT,
                    name="mthreads",
                    device_type=DEVICE_TYPE,
                ),
                patch=patch(clock),
                lock=None,
            ),
        ),
    )


def resources(settings: MthreadsSettings) -> Resources:
    """GPUs, and beside them their cores and units of memory."""
    return Resources(
        device_type=DEVICE_TYPE,
        count=settings.count,
        memory=settings.memory,
        cores=settings.cores,
        memory_factor=UNIT,
        cores_are_counted=True,
        units=(
            Units(
                resource=settings.cores,
                of_device=lambda _device: CARD_CORES,
                of_grant=lambda grant: grant.cores,
            ),
            Units(
                resource=settings.memory,
                of_device=lambda device: device.memory // UNIT,
                of_grant=lambda grant: grant.memory // UNIT,
            ),
        ),
    )


def for_all_cards(request: Request) -> Request:
    """Amounts are for all of the container's cards together."""

    def each(container: ContainerView) -> Asked:
        asked = request(container)
        if not isinstance(asked, Demand):
            return asked
        memory = None if asked.memory is None else asked.memory // asked.count
        return replace(asked, memory=memory, cores=asked.cores // asked.count)

    return each


def admission(settings: MthreadsSettings) -> Admit:
    """Several cards are whole ones, and so is one of which no memory is limited; else memory comes in slices."""

    def admit(container: ContainerView, _pod: PodView) -> Admitted | Denied:
        if limit_or_request(container, settings.count) is None:
            return Admitted(found=False)
        count = container.amount(settings.count)
        if count <= 0:
            return Denied(why=f"container {container.name!r}: {settings.count} must be greater than 0")
        memory = container.limits.get(settings.memory)
        if count == 1 and memory is not None:
            if amount(settings.memory)(container) in SLICES:
                return Admitted(found=True)
            valid = ", ".join(map(str, SLICES))
            return Denied(why=f"container {container.name!r}: {settings.memory}={memory} is none of {valid}")
        whole = {settings.cores: str(CARD_CORES * count), settings.memory: str(CARD_MEMORY * count)}
        annotations = {"mthreads.com/request-gpu-num": str(count)} if count > 1 else {}
        return Admitted(found=True, limits=whole, pod_annotations=annotations)

    return admit


def shares_on_one_card(candidate: Candidate, context: Context, eligible: Sequence[Candidate]) -> Reason | None:
    """The node's agent shares one card for each pod. Cards with all their cores are not shared, and do not matter."""
    if all_of(candidate.state.info.devcore, candidate.charge.cores):
        return None
    totals = {state.uuid: state.info.devcore for state in context.states}
    pieces = context.given.get(DEVICE_TYPE, ())
    shares = tuple(tuple(one for one in piece if not all_of(totals.get(one.uuid, 0), one.cores)) for piece in pieces)
    return on_the_pods_device(candidate, replace(context, given={DEVICE_TYPE: shares}), eligible)


def all_of(total: int, cores: int) -> bool:
    return 0 < total <= cores


def patch(clock: Callable[[], int]) -> Patch:
    """The agent finds the pod by its node and the oldest time, and its cards by index."""

    def written(family: Family, pod: PodView, given: Given) -> Mapping[str, str]:
        pieces = given[family.resources.device_type]
        indices = dict.fromkeys(grant.index for piece in pieces for grant in piece)
        return {
            family.rules.annotations.allocated: encode_devices(pieces),
            INDICES: ",".join(map(str, indices)),
            "mthreads.com/predicate-time": str(clock()),
            "mthreads.com/predicate-node": pod.annotations.get(ASSIGNED_NODE, pod.node),
        }

    return written


# Driver

T = TypeVar("T")

GPUS = Hardware(title="Moore Threads GPU", vendors=("1ed5",), module="mtgpu", node="mtgpu.")
_BONDED = re.compile(r"MT(\d{1,2})")


def naming(_settings: MthreadsSettings, paths: HostPaths, card: Card) -> tuple[str, str]:
    """The names that HAMi's scheduler makes up."""
    return DEVICE_TYPE, f"{paths.node}-mthreads-{card.index}"


def query_tool(settings: MthreadsSettings, parse: Callable[[str], T], *arguments: str) -> T:
    return read(settings.mthreads_gmi, parse, *arguments, deadline=settings.tool_seconds)


def list_cards(settings: MthreadsSettings, _paths: HostPaths) -> Sequence[Card | str]:
    """The GPUs of the tool's report."""
    return query_tool(settings, partial(list_reported, settings.mthreads_gmi), "-q", "--json")


def list_reported(tool: Path, printed: str) -> Sequence[Card | str]:
    return [card(entry) for entry in entries(tool, printed)]


def entries(tool: Path, printed: str) -> Sequence[Any]:
    report = json_object(printed, tool).get("GPU")
    if not isinstance(report, list):
        raise ToolError(f"{tool} reports no list of GPUs")
    return report


def loads(settings: MthreadsSettings) -> Mapping[str, DeviceLoad]:
    """By the same report."""
    found = query_tool(settings, partial(entries, settings.mthreads_gmi), "-q", "--json")
    return {place: in_use(entry) for entry in found if (place := address(str(entry)))}


def in_use(entry: Any) -> DeviceLoad:
    sections = entry if isinstance(entry, Mapping) else {}
    memory, busy = (sections.get(name) for name in ("FB Memory Usage", "Utilization"))
    return device_load(
        str(memory.get("Used", "")) if isinstance(memory, Mapping) else "",
        str(busy.get("Gpu", "")) if isinstance(busy, Mapping) else "",
    )


def card(entry: Any) -> Card | str:
    """One GPU of the report; what is wrong with it, in words, when it names none."""
    if not isinstance(entry, Mapping) or not str(entry.get("Index", "")).isdecimal() or "GPU UUID" not in entry:
        return f"mthreads-gmi tells nothing that names a GPU: {str(entry)[:120]}"
    # Where in an entry the address stands is a matter of the tool's version; nothing else in it looks like one.
    known = Card(
        index=int(entry["Index"]),
        uuid=str(entry["GPU UUID"]),
        model=str(entry.get("Product Name", "")),
        address=address(str(entry)),
    )
    try:
        return replace(known, memory=mebibytes(str(entry["FB Memory Usage"]["Total"])))
    except (KeyError, TypeError, ValueError) as error:
        return replace(known, trouble=f"mthreads-gmi tells no memory of GPU {known.index}: {error}")


def linked(settings: MthreadsSettings) -> Mapping[tuple[int, int], int]:
    """How many MTLinks are bonded between two GPUs; the tool writes ``MT2`` for two."""
    return query_tool(settings, bonded_pairs, "topo", "-m")


def bonded_pairs(table: str) -> Mapping[tuple[int, int], int]:
    cells = matrix(table, "GPU")
    return {pair: int(found[1]) for pair, cell in cells.items() if (found := _BONDED.fullmatch(cell))}


FABRIC = Fabric(title="MT", lanes=linked)


# Injection


def node_side(settings: MthreadsSettings, _family: Family, usual: NodeSide) -> NodeSide:
    """GPUs that containers share. It registers nothing: HAMi's scheduler reads the capacity."""
    return replace(
        usual,
        whole_only=settings.whole_only("Moore Threads' own agent"),
        replicas=lambda _device: settings.split_count if settings.unlimited_shares else 1,
        register=register,
        every_core=lambda _device: CARD_CORES,
        device_edits=lambda device, host: usual.device_edits(device, host).merged(drawing(settings, device, host)),
    )


def register(device: Device, _legacy: bool) -> DeviceInfo:
    """The GPU as HAMi's scheduler makes it up from the node's capacity."""
    return DeviceInfo.of(device, DEVICE_TYPE, count=100, memory=device.memory // UNIT * UNIT, cores=CARD_CORES)


def drawing(settings: MthreadsSettings, device: Device, host: HostFiles) -> ContainerEdits:
    """The nodes that the kernel's graphics system has for it."""
    folder = (settings.sysfs_root or host.paths.sysfs) / "bus/pci/devices" / device.pci / "drm"
    names = sorted(f"dri/{one.name}" for one in folder.glob("*") if one.name.startswith(("card", "renderD")))
    return DeviceNodes(host=host, root=settings.dev_root).take(*names)


env = comma_lists(MTHREADS_VISIBLE_DEVICES=lambda device: device.index)
"""Which GPUs Moore Threads' own runtime would add, where it is the one that runs the container."""


# Vendor

VENDOR = listed_vendor(
    name="mthreads",
    title="Moore Threads GPUs",
    noun="GPU",
    settings=MthreadsSettings,
    families=families,
    hardware=GPUS,
    list_cards=list_cards,
    naming=naming,
    fabric=FABRIC,
    loads=loads,
    device_nodes=("mtgpu.{}",),
    env=env,
    node=node_side,
)
