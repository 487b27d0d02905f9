"""Biren GPUs: whole ones, the first that are free. The kernel shows them, and ``brsmi`` describes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from cdi.edits import ContainerEdits
from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import ResourceName, TreeSettings, setting
from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostFiles, HostPaths, Roots
from hami_plugin.model.device import Device, Discovery, Fault, Sighting
from hami_plugin.model.links import Links
from hami_plugin.model.placement import Assignment
from hami_plugin.protocol.register import DeviceInfo, decode_json
from hami_plugin.scheduler.engine.registered import in_percent
from hami_plugin.sdk import (
    AnnotationKeys,
    DeviceNodes,
    Driver,
    Family,
    Injection,
    NodeSide,
    PollingDriver,
    Resources,
    ToolError,
    Vendor,
    deferred,
    distances,
    mounted,
    pci,
    read,
    serving,
    whole_devices,
)
from hami_plugin.sdk.tools import Kept, lines

# Settings


class BirenSettings(TreeSettings):
    """Keys of HAMi's ``biren`` section with its defaults, then ours."""

    cdi_class: ClassVar[str] = "biren"

    count: ResourceName = setting("resourceCountName", "birentech.com/gpu", "Number of GPUs.")
    brsmi: AbsolutePath = setting(
        "brsmi", Path("/usr/bin/brsmi"), "Biren's tool, which knows each GPU's memory and name."
    )
    driver_root: AbsolutePath = setting(
        "driverRoot",
        Path("/usr/local/birensupa/driver"),
        "The driver's libraries on the host; containers with a GPU see them at the same place, where they are there.",
    )


# Rules

DEVICE_TYPE = "Biren"


def families(settings: BirenSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    uuids = ("birentech.com/use-gpuuuid", "birentech.com/nouse-gpuuuid")
    policy = whole_devices(DEVICE_TYPE, settings.count, uuids=uuids, booked=False)
    resources, keys = Resources(count=settings.count), AnnotationKeys.of_agent("biren", pods=DEVICE_TYPE)
    return (Family.registered(DEVICE_TYPE, keys, resources, policy, decode=in_percent(decode_json)),)


# Driver

CLASS = "class/biren"
QUERY = ("gpu", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
DEADLINE_S = 10.0
ASK_EVERY_S = 10.0
"""How long the tool's answer is good for, while the same GPUs are there."""

_NAME = re.compile(r"[\w.-]+")


def present(settings: Roots, host: HostPaths) -> bool:
    """Whether Biren's kernel module is loaded. The ids of its PCI devices are in no public list."""
    paths = host.rooted(settings)
    return (paths.sysfs / "module/biren").exists() or (paths.sysfs / CLASS).exists()


def places(paths: HostPaths) -> Mapping[int, pci.PciDevice]:
    """The GPUs that the kernel module shows, by number. It is that of the node ``/dev/biren/card_<number>``."""
    found = {}
    for folder in (paths.sysfs / CLASS).glob("card_*"):
        number = folder.name.removeprefix("card_")
        if re.fullmatch(r"\d{1,4}", number):
            found[int(number)] = pci.look((folder / "device").resolve())
    return dict(sorted(found.items()))


class BirenDiscoverer:
    """Discovers GPUs, and remembers what each was when it was last described."""

    def __init__(self, paths: HostPaths, tool: Path, deadline: float = DEADLINE_S) -> None:
        self._paths = paths
        self._tool = tool
        self._deadline = deadline
        self._rows = Kept(self._listed, every=ASK_EVERY_S)
        self._known: dict[int, Device] = {}

    def __call__(self, ask: Callable[[str | None], None]) -> Discovery:
        cards = places(self._paths)
        if not cards:
            raise self._absent()
        rows = self._rows.answer(tuple(cards))
        sightings = []
        for number, place in cards.items():
            known = self._known.get(number)
            ask(known.uuid if known else None)
            sightings.append(self._sighting(number, place, rows.get(number)))
        version = pci.text(self._paths.sysfs / "module/biren/version")
        return Discovery(sightings=tuple(sightings), facts={"driver": version} if version else {})

    def _absent(self) -> DriverUnavailableError:
        if (self._paths.sysfs / "module/biren").exists():
            return DriverUnavailableError(DriverReason.NO_DEVICES, "Biren's kernel module is loaded, and shows no GPU")
        return DriverUnavailableError(
            DriverReason.NO_DRIVER,
            "Biren's kernel module is not loaded",
            hint="install the driver, or load its module: modprobe biren; or set enabled: false",
        )

    def _listed(self) -> Mapping[int, list[str]]:
        """What ``brsmi`` prints of each GPU, by index: its UUID, its name, and its memory in MiB."""
        if not self._tool.is_file():
            raise DriverUnavailableError(
                DriverReason.NO_LIBRARY, f"there is no {self._tool}", hint="mount it from the host, or set brsmi"
            )
        try:
            return read(self._tool, partial(parsed, self._tool), *QUERY, deadline=self._deadline)
        except ToolError as error:
            raise DriverUnavailableError(DriverReason.FAILED, error.message) from error

    def _sighting(self, number: int, place: pci.PciDevice, row: list[str] | None) -> Sighting:
        if row is None:
            return self._silent(number, place, "brsmi does not list it")
        uuid, name, memory = row
        if not _NAME.fullmatch(uuid) or not memory.isdecimal() or not int(memory):
            return self._silent(number, place, f"brsmi says: {', '.join(row)}")
        device = Device(
            uuid=uuid,
            family=DEVICE_TYPE,
            index=number,
            minor=number,
            model=name,
            memory=int(memory),
            pci=place.address,
            numa=place.numa,
            mode="",
        )
        self._known[number] = device
        node = self._paths.dev / "biren" / f"card_{number}"
        missing = None if node.exists() else Fault(reason="DeviceNodeMissing", message=f"there is no {node}")
        return Sighting(device=device, fault=missing)

    def _silent(self, number: int, place: pci.PciDevice, why: str) -> Sighting:
        unknown = Device(
            uuid=f"{self._paths.node}-biren-{number}",
            family=DEVICE_TYPE,
            index=number,
            model="",
            memory=0,
            pci=place.address,
            mode="",
        )
        return Sighting(device=self._known.get(number, unknown), fault=Fault(reason="DeviceSilent", message=why))


def parsed(tool: Path, table: str) -> Mapping[int, list[str]]:
    """The rows of the table by index. ``ToolError`` when there are none."""
    rows = [[cell.strip() for cell in line.split(",")] for line in lines(table)]
    found = {int(row[0]): row[1:] for row in rows if len(row) == 4 and row[0].isdecimal()}
    if not found:
        raise ToolError(f"{tool} listed no GPU: {' '.join(table.split())[:80]!r}")
    return found


def open_driver(settings: BirenSettings, paths: HostPaths) -> Driver:
    """Biren's driver of this host. Nothing is read yet."""
    roots = paths.rooted(settings)
    return PollingDriver(BirenDiscoverer(roots, settings.brsmi), partial(links, roots))


def links(paths: HostPaths, devices: Sequence[Device]) -> Links:
    """Distances on the PCI bus. Which GPUs have a BLink between them is told by nothing that is documented."""
    return distances(devices, places(paths).values(), fabric="BLink")


# Injection

CONTROL = "biren-m"
"""The module's own node, from version 1.12 on."""


def node_side(settings: BirenSettings, _family: Family) -> NodeSide:
    """Whole GPUs, as Biren's own agent serves them."""
    return NodeSide(register=register, reports=True, inject=inject).delivered(settings, device_edits, shared_edits)


def register(device: Device, _legacy: bool) -> DeviceInfo:
    """One container for each: HAMi's scheduler books neither memory nor cores of these."""
    return DeviceInfo.of(device, DEVICE_TYPE, numa=device.numa or 0)


def device_edits(settings: BirenSettings, device: Device, host: HostFiles) -> ContainerEdits:
    """The GPU's node."""
    return DeviceNodes(host=host, root=settings.dev_root).need(f"biren/card_{device.index}", whose=device.uuid)


def shared_edits(settings: BirenSettings, host: HostFiles) -> ContainerEdits:
    """The control node, and the driver's libraries."""
    nodes = DeviceNodes(host=host, root=settings.dev_root).take(CONTROL)
    return nodes.merged(mounted(host, [settings.driver_root]))


def inject(assignment: Assignment, _host: HostFiles) -> Injection:
    """Which GPUs these are, as Biren's agent and its container toolkit name them."""
    numbers = sorted(share.device.index for share in assignment.shares)
    env = {
        "BR_PHY_CARDS": ",".join(f"card_{number}" for number in numbers),
        "BIREN_VISIBLE_DEVICES": ",".join(map(str, numbers)),
    }
    return Injection(edits=ContainerEdits(env=env))


# Vendor

VENDOR = Vendor(
    name="biren",
    title="Biren GPUs",
    noun="GPU",
    settings=BirenSettings,
    families=serving(families, node_side),
    open=open_driver,
    present=present,
    simulate=deferred("vendors.biren.simulation.simulate"),
)
