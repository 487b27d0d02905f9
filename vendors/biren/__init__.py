"""Biren GPUs: whole ones, the first that are free. The kernel shows them, and ``brsmi`` describes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import ResourceName, TreeSettings, setting
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device
from hami_plugin.protocol.nodes import DeviceInfo, decode_json
from hami_plugin.scheduler.engine.devices import in_percent
from hami_plugin.sdk import (
    AnnotationKeys,
    Card,
    Family,
    Hardware,
    NodeSide,
    ToolError,
    comma_lists,
    listed_vendor,
    read,
    whole_cards,
)
from hami_plugin.sdk.tools import lines

DEVICE_TYPE = "Biren"
KEYS = AnnotationKeys.of_agent("biren", pods=DEVICE_TYPE)
UUIDS = ("birentech.com/use-gpuuuid", "birentech.com/nouse-gpuuuid")
GPUS = Hardware(title="Biren GPU", module="biren", node="biren/card_", sysfs_class="biren/card_")
"""Biren's ids on the PCI bus are in no public list."""
CONTROL = "biren-m"
"""The module's own node, from version 1.12 on."""
QUERY = ("gpu", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
DEADLINE_S = 10.0

_NAME = re.compile(r"[\w.-]+")


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

    @property
    def driver_files(self) -> tuple[Path, ...]:
        return (self.driver_root,)


families = whole_cards(DEVICE_TYPE, KEYS, uuids=UUIDS, booked=False, decode=in_percent(decode_json))


def list_cards(settings: BirenSettings, paths: HostPaths) -> Iterator[Card]:
    """The GPUs that the kernel shows, by the number of their node, each with the tool's row."""
    rows = read(settings.brsmi, partial(parsed, settings.brsmi), *QUERY, deadline=DEADLINE_S)
    for number, place in GPUS.numbered(paths).items():
        row = rows.get(number)
        unknown = Card(index=number, uuid=f"{paths.node}-biren-{number}", model="", address=place.address)
        if row is None:
            yield replace(unknown, trouble="brsmi does not list it")
        elif not _NAME.fullmatch(row[0]) or not row[2].isdecimal() or not int(row[2]):
            yield replace(unknown, trouble=f"brsmi says: {', '.join(row)}")
        else:
            yield replace(unknown, uuid=row[0], model=row[1], memory=int(row[2]))


def parsed(tool: Path, table: str) -> Mapping[int, list[str]]:
    """UUID, name and MiB of each GPU of the table, by index. ``ToolError`` if there are none."""
    rows = [[cell.strip() for cell in line.split(",")] for line in lines(table)]
    found = {int(row[0]): row[1:] for row in rows if len(row) == 4 and row[0].isdecimal()}
    if not found:
        raise ToolError(f"{tool} listed no GPU: {' '.join(table.split())[:80]!r}")
    return found


def node_side(_settings: BirenSettings, _family: Family, usual: NodeSide) -> NodeSide:
    """HAMi's scheduler reads the register after a handshake."""
    return replace(usual, register=register, reports=True)


def register(device: Device, _legacy: bool) -> DeviceInfo:
    """One container for each: HAMi's scheduler books neither memory nor cores of these."""
    return DeviceInfo.of(device, DEVICE_TYPE, numa=device.numa or 0)


env = comma_lists(
    BR_PHY_CARDS=lambda device: f"card_{device.index}",
    BIREN_VISIBLE_DEVICES=lambda device: device.index,
)
"""For Biren's container toolkit, as its own agent sets them."""


VENDOR = listed_vendor(
    name="biren",
    title="Biren GPUs",
    noun="GPU",
    settings=BirenSettings,
    families=families,
    hardware=GPUS,
    list_cards=list_cards,
    listed_by="the kernel",
    device_nodes=("biren/card_{}",),
    optional_nodes=(CONTROL,),
    env=env,
    node=node_side,
)
