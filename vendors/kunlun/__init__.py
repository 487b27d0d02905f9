"""Kunlun XPUs: whole ones, or fixed parts of them, chosen by how the eight of a machine are wired."""

from __future__ import annotations

from dataclasses import replace

from hami_plugin.model.device import Device
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.sdk import Family, NodeSide, comma_lists, listed_vendor
from vendors.kunlun.driver import CONTROL, FABRIC, XPUS, list_cards, loads, naming
from vendors.kunlun.rules import CARD, PART, WHOLE, families
from vendors.kunlun.settings import KunlunSettings

SMALLEST = CARD // 4


def node_side(settings: KunlunSettings, family: Family, usual: NodeSide) -> NodeSide:
    """XPUs whole, or in parts. Of whole XPUs the scheduler learns from their number alone."""
    kind = f"{settings.cdi.vendor}/{'v' if family.resources.device_type == PART else ''}{settings.cdi.cls}"
    handed = replace(usual, delivery=replace(settings.delivery, kind=kind))
    if (family.resources.device_type == PART) is not (settings.serve == "parts"):
        return replace(handed, register=register, absent=f"it has serve: {settings.serve}")
    if family.resources.device_type == WHOLE:
        return replace(handed, register=register)
    return replace(
        handed,
        whole_only=settings.whole_only("Kunlunxin's own agent"),
        replicas=shares if settings.unlimited_shares else lambda _device: 1,
        register=register if settings.unlimited_shares else alone,
        reports=True,
    )


def shares(device: Device) -> int:
    """How many of the smallest parts a card has."""
    return max(1, device.memory // SMALLEST)


def register(device: Device, _legacy: bool) -> DeviceInfo:
    kind, numa = device.family, max(0, device.numa or 0)
    return DeviceInfo.of(device, kind, count=shares(device), numa=numa, mode=device.mode, vendor=kind)


def alone(device: Device, legacy: bool) -> DeviceInfo:
    """A card that is handed out whole: HAMi's scheduler too puts one container on it."""
    return replace(register(device, legacy), count=1)


env = comma_lists(CXPU_VISIBLE_DEVICES=lambda device: device.index)
"""Which XPUs Kunlunxin's own runtime would add, where it is the one that runs the container."""


VENDOR = listed_vendor(
    name="kunlun",
    title="Kunlun XPUs",
    noun="XPU",
    settings=KunlunSettings,
    families=families,
    hardware=XPUS,
    list_cards=list_cards,
    naming=naming,
    fabric=FABRIC,
    loads=loads,
    device_nodes=("xpu{}",),
    control_nodes=(CONTROL,),
    env=env,
    node=node_side,
    machines=("kunlunxin",),
)
