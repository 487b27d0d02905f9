"""Iluvatar GPUs on their node: found by ``ixsmi`` and on the PCI bus, each of the family of its chip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device
from hami_plugin.protocol.register import DeviceInfo, encode_legacy
from hami_plugin.sdk import Card, Family, Hardware, NodeSide, address, read_table
from vendors.iluvatar.settings import IluvatarSettings

GPUS = Hardware(title="Iluvatar GPU", vendors=("1e3e",), module="iluvatar", node="iluvatar")
INDEX, UUID, MODEL, ADDRESS, MEMORY = COLUMNS = ("index", "uuid", "name", "pci.bus_id", "memory.total")
QUERY = (f"--query-gpu={','.join(COLUMNS)}", "--format=csv")
CONTROL = "itrctl"
LINK = "itrlink"
"""The node by which GPUs reach each other's memory, on machines that can."""


def naming(settings: IluvatarSettings, _paths: HostPaths, card: Card) -> tuple[str, str] | None:
    """The family of a GPU is that of its chip."""
    device_type = chip_of(card.model, (chip.word for chip in settings.chips))
    return (device_type, card.uuid) if device_type else None


def chip_of(model: str, words: Iterable[str]) -> str:
    """The chip that a model is, as ``BI-V150`` of ``Iluvatar BI-V150``; empty when it is none of them."""
    return next((word for word in words if word in model.split()), "")


def list_cards(settings: IluvatarSettings, _paths: HostPaths) -> Iterable[Card | str]:
    """The GPUs of the tool's table."""
    return read_table(settings.ixsmi, COLUMNS, card, *QUERY, deadline=settings.tool_seconds)


def card(row: Mapping[str, str]) -> Card | str:
    """One row, or what is wrong with it where it names no GPU."""
    index, uuid, memory = row[INDEX], row[UUID], row[MEMORY]
    if not index.isdecimal():
        return f"ixsmi names no GPU in {dict(row)}"
    if not uuid.startswith("GPU-"):
        return f"ixsmi knows no UUID of GPU {index}, but {uuid[:64]!r}"
    return Card.of_row(
        "ixsmi", index=int(index), uuid=uuid, model=row[MODEL], address=address(row[ADDRESS]), memory=memory
    )


def node_side(settings: IluvatarSettings, family: Family, usual: NodeSide) -> NodeSide:
    """One chip's. Its scheduler side reads the register of HAMi 2.7 to this day."""
    kind = f"{settings.delivery.kind}-{family.device_type.lower()}"
    shares = settings.split_count if settings.unlimited_shares else 1
    return replace(
        usual,
        delivery=replace(settings.delivery, kind=kind),
        whole_only=settings.whole_only("Iluvatar's own agent"),
        replicas=lambda _device: shares,
        register=partial(register, shares),
        encode=encode_legacy,
        reports=True,
    )


def register(shares: int, device: Device, _legacy: bool) -> DeviceInfo:
    numa = max(0, device.numa or 0)
    return DeviceInfo.of(device, device.family, count=shares, numa=numa, mode=device.mode)


def env(devices: Sequence[Device]) -> Mapping[str, str]:
    """Which GPUs Iluvatar's own runtime would add, where it is the one that runs the container."""
    return {"IX_VISIBLE_DEVICES": ",".join(device.uuid for device in devices)}
