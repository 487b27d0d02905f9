"""Gaudi accelerators of Intel: whole ones, of one NUMA node where it has enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import ResourceName, ToolSettings, setting
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.sdk import (
    AnnotationKeys,
    Card,
    Hardware,
    address,
    comma_lists,
    listed_vendor,
    read_loads,
    read_table,
    whole_cards,
)

KEYS = AnnotationKeys(
    register="hami.io/node-gaudi-register",
    to_allocate="hami.io/gaudi-devices-to-allocate",
    allocated="hami.io/gaudi-devices-allocated",
)
UUIDS = ("habana.ai/use-uuid", "habana.ai/nouse-uuid")
HARDWARE = Hardware(
    title="Gaudi", vendors=("1da3",), module="habanalabs", node="accel/accel", sysfs_class="accel/accel"
)
CONTROL = "accel/accel_controlD{}"
UUID, MODEL, ADDRESS, MODULE, MEMORY = COLUMNS = ("uuid", "name", "bus_id", "module_id", "memory.total")
QUERY = ("-Q", ",".join(COLUMNS), "-f", "csv")
IN_USE = (ADDRESS, "memory.used", "utilization.aip")
LOAD_QUERY = ("-Q", ",".join(IN_USE), "-f", "csv")


class GaudiSettings(ToolSettings):
    """The resource of Intel's own device plugin, and where the tool is."""

    cdi_class: ClassVar[str] = "gaudi"
    cdi_class_help: ClassVar[str] = "Class part of the accelerators' CDI names."

    count: ResourceName = setting("resourceCountName", "habana.ai/gaudi", "Number of accelerators.")
    hl_smi: AbsolutePath = setting("hlSmi", Path("/usr/bin/hl-smi"), "Intel's tool, which lists the accelerators.")


families = whole_cards("Gaudi", KEYS, uuids=UUIDS, same_numa=True)


def list_cards(settings: GaudiSettings, paths: HostPaths) -> Iterable[Card | str]:
    """The accelerators of the tool's table, under the kernel's numbers."""
    numbers = kernel_numbers(paths)
    seconds = settings.tool_seconds
    return read_table(settings.hl_smi, COLUMNS, lambda row: card(row, numbers), *QUERY, deadline=seconds)


def loads(settings: GaudiSettings) -> Mapping[str, DeviceLoad]:
    return read_loads(settings.hl_smi, IN_USE, *LOAD_QUERY, deadline=settings.tool_seconds)


def kernel_numbers(paths: HostPaths) -> Mapping[str, int]:
    """The kernel's number of each accelerator by its PCI address. Other vendors' accelerators are among them."""
    return {one.address: number for number, one in HARDWARE.numbered(paths).items()}


def card(row: Mapping[str, str], numbers: Mapping[str, int]) -> Card | str:
    """One row, or what is wrong with it where it names no accelerator."""
    place, uuid = address(row[ADDRESS]), row[UUID]
    if not place or not uuid or uuid == "N/A":
        return f"hl-smi names no accelerator in {dict(row)}"
    if place not in numbers:
        return f"the kernel has no number for the accelerator at {place}"
    return Card.of_row(
        "hl-smi",
        index=numbers[place],
        uuid=uuid,
        model=row[MODEL],
        address=place,
        memory=row[MEMORY],
        traits=lambda: int(row[MODULE]),
    )


env = comma_lists(
    HABANA_VISIBLE_DEVICES=lambda device: device.minor,
    HABANA_VISIBLE_MODULES=lambda device: device.traits,
    HL_VISIBLE_DEVICES=lambda device: f"/dev/{HARDWARE.node}{device.minor}",
    HL_VISIBLE_DEVICES_UUID=lambda device: device.uuid,
)
"""For Intel's container runtime and its libraries, as its own device plugin sets them."""


VENDOR = listed_vendor(
    name="gaudi",
    title="Gaudi accelerators",
    noun="GAUDI",
    settings=GaudiSettings,
    families=families,
    hardware=HARDWARE,
    list_cards=list_cards,
    loads=loads,
    device_nodes=("accel/accel{}", CONTROL),
    env=env,
)
