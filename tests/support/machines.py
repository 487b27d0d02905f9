"""Every machine that can be simulated, in every way in which its vendor can serve it, and what pods receive there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from cdi.spec import ContainerEdits
from hami_plugin.demo.node import install_core
from hami_plugin.demo.steps import part
from hami_plugin.errors import RefusedError
from hami_plugin.model.delivery import ANSWERED_FOR, Answer
from hami_plugin.model.device import Device, Snapshot, physical_id
from hami_plugin.model.machine import Machine
from hami_plugin.model.views import NodeView, PodView, pod_view
from hami_plugin.protocol.nodes import DeviceInfo, without_refusals
from hami_plugin.scheduler.engine.admission import admit_document
from hami_plugin.scheduler.engine.fit import PodFit, fit_pod
from hami_plugin.scheduler.engine.node_info import patch, read_node, scheduling_policies
from hami_plugin.sdk import Family
from hami_plugin.simulation.hardware import vendor_of
from hami_plugin.simulation.machines import machine_names
from tests.support.node import Node
from tests.support.rigs import NODE, Rig, known, rig

UNLIMITED = "unlimited_shares"
UID = "00000000-0000-4000-8000-000000000001"
GOLDEN = Path(__file__).parents[1] / "vendors/golden/machines"
"""What pods receive on each machine, as it was reviewed."""
INVENTED = Path(__file__).parents[1] / "vendors/machines"
"""Machines of vendors of which no profile is known."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a vendor's machine is served. ``faults`` are done to it before; ``joined`` is the key of a profile's devices
    that are one device here. ``bare``: without the files of HAMi's limiters.

    ``share`` and ``whole`` are what a pod asks for, by the fields of ``Resources``, and ``annotations`` what else
    it says. No ``share`` is whatever asks for some 3000 MiB and 30 % of a device; one that is empty is no pod at all.
    """

    name: str = "default"
    settings: Mapping[str, Any] = field(default_factory=dict)
    bare: bool = False
    faults: Sequence[tuple[str, int | None, int]] = ()
    joined: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    share: Mapping[str, int] | None = None
    whole: Mapping[str, int] = field(default_factory=lambda: {"count": 1})


PARTITIONED = {"serve": "partitions", "cut": "beforehand"}
SOFT = {"huawei.com/vnpu-mode": "hami-core"}
WAYS: Mapping[str, tuple[Way, ...]] = {
    "ascend": (
        Way(name="templates"),
        Way(
            name="hami-core",
            settings={"hamiVnpuCore": True},
            annotations=SOFT,
            share={"count": 1, "memory": 3000, "cores": 30},
        ),
    ),
    "enflame": (
        Way(name="whole", settings={"serve": "whole"}),
        Way(name="shared", settings={"serve": "shared"}),
        Way(
            name="one-slice",
            settings=PARTITIONED,
            faults=(("partitions", None, 0), ("cut", 7, 1)),
            share={"count": 1},
            whole={},
        ),
        Way(
            name="six-slices",
            settings=PARTITIONED,
            faults=(("partitions", None, 0), ("cut", 7, 6)),
            share={},
            whole={"count": 6},
        ),
    ),
    "kunlun": (Way(name="whole", settings={"serve": "whole"}), Way(name="parts", settings={"serve": "parts"})),
    "metax": (Way(name="native", settings={"mode": "native"}), Way(name="sgpu", settings={"mode": "sgpu"})),
    "vastai": (Way(name="card", joined="card"), Way(name="die", settings={"deviceStrategy": "die"})),
}
"""Those that have more than one."""
LENT = Way(
    name="lent",
    settings={"cut": "beforehand"},
    faults=(
        *(("cut", card, slices) for card in range(6) for slices in (1, 2, 3)),
        *(("cut", card, 6) for card in (6, 7)),
    ),
)
"""Of six cards a sixth, two and three sixths are cut, and two are one partition each."""
CUT: Mapping[str, tuple[Way, ...]] = {
    "enflame-s60-8-drs": (LENT,),
    "cambricon-mlu370x8-4-smlu": (Way(name="uncut", settings={"mode": "default"}),),
}
"""By profile: those whose own state says how they are served."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One machine, served in one way. ``profile`` is a name, or the path of a file."""

    profile: str
    way: Way

    @property
    def machine(self) -> Machine:
        return known(self.profile)

    def __str__(self) -> str:
        return f"{Path(self.profile).stem}-{self.way.name}".removesuffix("-default")


def profiles() -> tuple[str, ...]:
    """All that ship, and those of ``INVENTED``."""
    invented = sorted(INVENTED.glob("*.yaml"))
    assert invented, f"{INVENTED} is empty"
    return (*machine_names(), *map(str, invented))


def cases() -> tuple[Case, ...]:
    return tuple(
        Case(profile=name, way=way)
        for name in profiles()
        for way in CUT.get(name, WAYS.get(vendor_of(known(name)).name, (Way(),)))
    )


@dataclass(frozen=True, kw_only=True)
class Found:
    """A served machine: what one look at it showed, and the node as the API server then has it."""

    rig: Rig
    snapshot: Snapshot
    node: NodeView

    @property
    def family(self) -> Family:
        return self.rig.family


def found(case: Case, root: Path, **settings: Any) -> Found:
    """Set the machine up in ``root``, and look at it once. ``settings`` go over those of the case."""
    if not case.way.bare:
        install_core(root / "machine" / "hook" / "vgpu")
    served = rig(case.profile, root / "machine", **{**case.way.settings, **settings})
    for fault, device, value in case.way.faults:
        served.simulator.inject(fault, device, value)
    snapshot = served.snapshot()
    served.driver.close()
    (device_type,) = {device.family for device in snapshot.devices}
    families = vendor_of(case.machine).families(served.settings)
    served = replace(served, family=next(one for one in families if one.resources.device_type == device_type))
    instance = {"node.kubernetes.io/instance-type": str(case.machine.extra.get("instance_type", ""))}
    return Found(rig=served, snapshot=snapshot, node=served.node(snapshot, **instance))


def expected(case: Case) -> list[tuple[int, int, str, int | None]]:
    """Index, memory, address and NUMA node of each device that the profile lets expect, in order."""
    groups: dict[object, list[Any]] = {}
    for one in case.machine.devices:
        groups.setdefault(one.extra[case.way.joined] if case.way.joined else one.index, []).append(one)
    return [
        (index, sum(one.memory for one in group), group[0].pci, group[0].numa if group[0].numa >= 0 else None)
        for index, group in enumerate(groups.values())
    ]


def share_of(found: Found, way: Way) -> Mapping[str, int]:
    """What asks for a part of one device there; nothing where the family's rules know no parts."""
    if way.share is not None:
        return named(found.family, way.share)
    node = replace(found.node, annotations=without_refusals(found.node.annotations))
    container = part(found.family, node, "main", memory=3000, cores=30)
    return {name: int(amount) for name, amount in container["resources"]["limits"].items()} if container else {}


def named(family: Family, amounts: Mapping[str, int]) -> Mapping[str, int]:
    """Amounts by the family's resources."""
    return {getattr(family.resources, name): amount for name, amount in amounts.items()}


async def received(found: Found, way: Way, limits: Mapping[str, int], root: Path) -> dict[str, Any]:
    """A pod of one container, admitted, decided about on the idle node, and answered by the daemon's allocator."""
    pod, family = _decided(found, way, limits), found.family
    if isinstance(pod, str):
        return {"asked": dict(limits), "refused": pod}
    node = Node(root=root, devices=0)
    node.snapshot.set(found.snapshot)
    install_core(root / "hook" / "vgpu")
    node.cluster.add(pod)
    answer, taken = Answer(), {}
    try:
        for units in (None, *family.resources.units):
            node.use(family, units)
            if count := pod.containers[0].amount(node.allocator.resource):
                free = [offer.id for offer in node.allocator.offers.value if offer.healthy]
                ids = await node.allocator.prefer(free, (), count)
                answer = answer.merged(await node.allocator.allocate(ids))
                taken[node.allocator.resource] = _counted(ids, found.snapshot.devices)
    except RefusedError as refusal:
        return {"asked": dict(limits), "refused": str(refusal)}
    finally:
        await node.settlement.close()
        node.journal.close()
    return {
        "asked": dict(limits),
        "decided": _told(found, pod),
        "ids": taken,
        **_shown(answer, {str(found.rig.root): "MACHINE", str(root): "NODE"}),
    }


def _decided(found: Found, way: Way, limits: Mapping[str, int]) -> PodView | str:
    """The pod as the webhook and the scheduler leave it, or why it has no place."""
    resources = {"limits": {name: str(amount) for name, amount in limits.items()}}
    manifest = {
        "metadata": {"name": "p1", "namespace": "default", "uid": UID, "annotations": dict(way.annotations)},
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "resources": resources}]},
        "status": {"phase": "Pending"},
    }
    admitted = admit_document(manifest, [found.family])
    assert isinstance(admitted, Mapping), admitted
    pod = pod_view(admitted)
    placed = fit_pod(pod, scheduling_policies([found.family]), read_node(found.node, [found.family], ()).node_info)
    if not isinstance(placed, PodFit):
        return placed.why
    return replace(pod, annotations={**pod.annotations, **patch([found.family], pod, placed)})


def _told(found: Found, pod: PodView) -> dict[str, str]:
    """The decision as the pod's annotations have it; when it was made is left out."""
    keys = found.family.rules.annotations
    named = {key: text for key, text in pod.annotations.items() if key in (keys.allocated, keys.to_allocate)}
    return dict(sorted(named.items()))


def _counted(ids: Sequence[str], devices: Sequence[Device]) -> str:
    """How many of the kubelet's ids are of which device."""
    counts = {device.uuid: sum(physical_id(one) == device.uuid for one in ids) for device in devices}
    return ", ".join(f"{count} of {uuid}" for uuid, count in counts.items() if count)


def _shown(answer: Answer, folders: Mapping[str, str]) -> dict[str, Any]:
    """An answer in lines, without what says for whom it is."""
    edits = answer.edits
    shown = {
        "env": dict(sorted(edits.env.items())),
        "nodes": [node.path for node in edits.device_nodes],
        "mounts": [_mount(mount) for mount in edits.mounts],
        "hooks": [hook.path for hook in edits.hooks],
        "annotations": {key: text for key, text in answer.annotations.items() if key != ANSWERED_FOR},
        "cdi": list(answer.cdi_devices),
    }
    assert replace(edits, env={}, device_nodes=(), mounts=(), hooks=()) == ContainerEdits()
    for folder, name in folders.items():
        shown = {key: _renamed(value, folder, name) for key, value in shown.items()}
    return {key: value for key, value in shown.items() if value}


def _mount(mount: Any) -> str:
    return f"{mount.container_path} <- {mount.host_path}{' (read-only)' if mount.read_only else ''}"


def _renamed(value: Any, folder: str, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(text, folder, name) for key, text in value.items()}
    return [_renamed(text, folder, name) for text in value] if isinstance(value, list) else value.replace(folder, name)


async def recorded(case: Case, root: Path) -> dict[str, Any]:
    """Everything that is reviewed of one machine: what a scheduler reads of it, and what its pods receive.

    A share that is refused is asked for once more where the operator can say that containers are to be trusted.
    """
    seen, way = found(case, root), case.way
    share, whole = share_of(seen, way), named(seen.family, way.whole)
    told: dict[str, Any] = {"known by": known_by(seen), "devices": [_line(info) for info in registered(seen)]}
    if share:
        told["share"] = await received(seen, way, share, root / "share")
        if "refused" in told["share"] and UNLIMITED in seen.rig.settings.__class__.model_fields:
            trusting = found(case, root, unlimitedShares=True)
            told["share, if trusted"] = await received(trusting, way, share, root / "trusted")
    if whole:
        told["whole"] = await received(seen, way, whole, root / "whole")
    return told


def reviewed(case: Case, what: str) -> Mapping[str, Any]:
    """What was reviewed that a pod with a ``share`` or a ``whole`` device receives there."""
    told = yaml.load((GOLDEN / f"{Path(case.profile).stem}.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    found: Mapping[str, Any] = told[case.way.name].get(what, {})
    return found


def reviewed_device(case: Case) -> str:
    """The UUID of the whole device of which that is told; the node is ``NODE``."""
    (first, *_) = reviewed(case, "whole")["ids"].values()
    return str(first).partition(",")[0].partition(" of ")[2]


def reviewed_variables(told: Mapping[str, Any]) -> dict[str, str]:
    """Those that a container has however it gets its device: not what a vendor's own runtime reads, nor the host's
    paths.
    """
    return {name: text for name, text in told.get("env", {}).items() if "VISIBLE" not in name and not _of_host(text)}


def reviewed_mounts(told: Mapping[str, Any]) -> set[str]:
    """Paths in the container, but for those that are the host's, too."""
    targets = {one.partition(" <- ")[0] for one in told.get("mounts", ())}
    return {one for one in targets if not _of_host(one)}


def _of_host(text: str) -> bool:
    return text.startswith(("NODE/", "MACHINE/"))


def registered(found: Found) -> tuple[DeviceInfo, ...]:
    """The devices as the family's scheduler side reads them of the node."""
    return found.family.rules.node_devices(found.node)


def known_by(found: Found) -> str:
    """What a scheduler knows the devices by."""
    key = found.family.rules.annotations.register
    counts = (f"{name} {count}" for name, count in sorted(found.node.capacity.items()))
    return key or f"capacity: {', '.join(counts)}"


def _line(info: DeviceInfo) -> str:
    words = [f"{info.index}: {info.id} {info.type}, {info.count} x, {info.devmem} MiB, {info.devcore} cores"]
    words += [f"NUMA {info.numa}", *([] if info.health else ["unwell"])]
    return ", ".join(words)
