"""Gaudi accelerators of Intel: whole ones, of one NUMA node where it has enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from cdi.edits import ContainerEdits
from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import ResourceName, ToolSettings, setting
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.model.placement import Assignment
from hami_plugin.protocol.register import DeviceInfo, decode_json
from hami_plugin.scheduler.engine.checks import CHARGED, standard
from hami_plugin.scheduler.engine.fit import Policy
from hami_plugin.scheduler.engine.requests import amount, counted
from hami_plugin.scheduler.engine.selectors import by_group, when
from hami_plugin.scheduler.engine.states import whole
from hami_plugin.sdk import AnnotationKeys, Driver, Family, Injection, NodeSide, Resources, SchedulingRules, Vendor
from hami_plugin.sdk.device_nodes import DeviceNodes, mounted
from hami_plugin.sdk.hardware import Hardware
from hami_plugin.sdk.listed_cards import Card, ListedCards
from hami_plugin.sdk.polling import PollingDriver
from hami_plugin.sdk.tools import address, mebibytes, read, rows
from hami_plugin.simulation.boards import listed
from hami_plugin.simulation.tools import SILENT, Told, Tool
from hami_plugin.simulation.trees import Files, Link, on_bus

DEVICE_TYPE = "Gaudi"
KEYS = AnnotationKeys(
    register="hami.io/node-gaudi-register",
    to_allocate="hami.io/gaudi-devices-to-allocate",
    allocated="hami.io/gaudi-devices-allocated",
)
UUIDS = ("habana.ai/use-uuid", "habana.ai/nouse-uuid")
CARDS = Hardware(title="Gaudi", vendors=("1da3",), module="habanalabs", node="accel/accel")
CONTROL = "accel/accel_controlD"
"""The beginning of the name of each accelerator's second node."""
NUMBERED = "class/accel"
"""Where the kernel shows which accelerator is on which place of the bus; its numbers are those of the nodes."""
UUID, MODEL, ADDRESS, MODULE, MEMORY = FIELDS = ("uuid", "name", "bus_id", "module_id", "memory.total")
QUESTION = ("-Q", ",".join(FIELDS), "-f", "csv")
LOOK_EVERY_S = 5.0


class GaudiSettings(ToolSettings):
    """The resource of Intel's own device plugin, and where the tool is."""

    cdi_class: ClassVar[str] = "gaudi"
    cdi_class_help: ClassVar[str] = "Class part of the accelerators' CDI names."

    count: ResourceName = setting("resourceCountName", "habana.ai/gaudi", "Number of accelerators.")
    hl_smi: AbsolutePath = setting("hlSmi", Path("/usr/bin/hl-smi"), "Intel's tool, which lists the accelerators.")


def families(settings: GaudiSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    policy = Policy(
        request=counted(DEVICE_TYPE, count=amount(settings.count)),
        serves=standard(DEVICE_TYPE, uuids=UUIDS),
        charge=whole,
        checks=CHARGED,
        select=when(lambda context: context.demand.count > 1, by_group(lambda one: one.state.info.numa)),
    )
    resources = Resources(count=settings.count)
    rules = SchedulingRules.registered(resources, KEYS, policy, decode=decode_json)
    node = NodeSide(register=register, inject=inject).delivered(settings, device_edits, shared_edits)
    return (Family(device_type=DEVICE_TYPE, annotations=KEYS, resources=resources, rules=rules, node=node),)


def open_driver(settings: GaudiSettings, paths: HostPaths) -> Driver:
    """The accelerators of this host. Nothing is asked yet."""
    roots = paths.rooted(settings)
    cards = ListedCards(CARDS, roots, partial(told, settings, roots), lambda card: (DEVICE_TYPE, card.uuid))
    return PollingDriver(cards.look, cards.links, every=LOOK_EVERY_S)


def told(settings: GaudiSettings, paths: HostPaths) -> Sequence[Card | str]:
    """The accelerators as the tool's table has them, under the kernel's numbers."""
    numbers = numbered(paths)

    def parsed(table: str) -> Sequence[Card | str]:
        return [card(row, numbers) for row in rows(table, *FIELDS)]

    return read(settings.hl_smi, parsed, *QUESTION, deadline=settings.tool_seconds)


def numbered(paths: HostPaths) -> Mapping[str, int]:
    """The kernel's number of each accelerator by its address. Other vendors' accelerators are among them."""
    folders = (paths.sysfs / NUMBERED).glob("accel*")
    names = ((folder, folder.name.removeprefix("accel")) for folder in folders)
    return {(folder / "device").resolve().name: int(number) for folder, number in names if number.isdecimal()}


def card(row: Mapping[str, str], numbers: Mapping[str, int]) -> Card | str:
    """One row; what is wrong with it, in words, when it names no accelerator."""
    place, uuid = address(row.get(ADDRESS, "")), row.get(UUID, "").strip()
    if not place or not uuid or uuid == "N/A":
        return f"hl-smi tells nothing that names an accelerator: {dict(row)}"
    if place not in numbers:
        return f"the kernel has no number for the accelerator at {place}"
    known = Card(index=numbers[place], uuid=uuid, model=row.get(MODEL, "").strip(), address=place)
    try:
        return replace(known, memory=mebibytes(row.get(MEMORY, "")), traits=int(row.get(MODULE, "")))
    except ValueError as error:
        return replace(known, trouble=f"hl-smi: {error}")


def register(device: Device, _legacy: bool) -> DeviceInfo:
    return DeviceInfo.of(device, DEVICE_TYPE, numa=max(0, device.numa or 0), vendor=DEVICE_TYPE)


def device_edits(settings: GaudiSettings, device: Device, host: HostFiles) -> ContainerEdits:
    """Both of its nodes."""
    names = (f"{kind}{device.minor}" for kind in (CARDS.node, CONTROL))
    return DeviceNodes(host=host, root=settings.dev_root).need(*names, whose=device.uuid)


def shared_edits(settings: GaudiSettings, host: HostFiles) -> ContainerEdits:
    return mounted(host, settings.driver_files)


def inject(assignment: Assignment, _host: HostFiles) -> Injection:
    """Which accelerators these are, for Intel's container runtime and for its libraries, as its own plugin tells."""
    devices = sorted((share.device for share in assignment.shares), key=lambda device: device.index)
    env = {
        "HABANA_VISIBLE_DEVICES": ",".join(str(device.minor) for device in devices),
        "HABANA_VISIBLE_MODULES": ",".join(str(device.traits) for device in devices),
        "HL_VISIBLE_DEVICES": ",".join(f"/dev/{CARDS.node}{device.minor}" for device in devices),
        "HL_VISIBLE_DEVICES_UUID": ",".join(device.uuid for device in devices),
    }
    return Injection(edits=ContainerEdits(env=env))


def _shown(machine: Machine, one: MachineDevice) -> Files:
    return {f"dev/{CONTROL}{one.index}": "", f"sys/{NUMBERED}/accel{one.index}/device": Link(on_bus(machine, one))}


def _says(told: Told) -> Mapping[str, str]:
    """The tool's table. Of an accelerator that is silent it tells no numbers."""
    header = ", ".join(FIELDS).replace(MEMORY, f"{MEMORY} [MiB]")
    lines = (
        f"{one.uuid}, {one.model}, {one.pci}, {one.extra['module_id']}, "
        f"{'N/A' if told.noted(SILENT, one) else f'{one.memory} MiB'}"
        for one in told.listed
    )
    return {" ".join(QUESTION): "\n".join([header, *lines, ""])}


def _id(one: MachineDevice) -> str:
    return "1060" if one.model.startswith("HL-3") else "1020"


BOARD = replace(listed(CARDS, "", Tool(path="bin/hl-smi", setting="hlSmi", says=_says), more=_shown), device=_id)
VENDOR = Vendor(
    name="gaudi",
    title="Gaudi accelerators",
    noun="GAUDI",
    settings=GaudiSettings,
    families=families,
    open=open_driver,
    present=CARDS.present,
    simulate=BOARD.simulate,
)
