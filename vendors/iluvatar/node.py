"""Iluvatar GPUs on their node: found by ``ixsmi`` and on the PCI bus, each of the family of its chip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from cdi.edits import ContainerEdits
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Assignment
from hami_plugin.protocol.register import DeviceInfo, encode_legacy
from hami_plugin.sdk import Driver, Family, Injection, NodeSide
from hami_plugin.sdk.device_nodes import DeviceNodes, mounted
from hami_plugin.sdk.hardware import Hardware
from hami_plugin.sdk.listed_cards import Card, ListedCards
from hami_plugin.sdk.polling import PollingDriver
from hami_plugin.sdk.tools import address, mebibytes, read, rows
from vendors.iluvatar.settings import IluvatarSettings

GPUS = Hardware(title="Iluvatar GPU", vendors=("1e3e",), module="iluvatar", node="iluvatar")
LOOK_EVERY_S = 5.0
INDEX, UUID, MODEL, ADDRESS, MEMORY = FIELDS = ("index", "uuid", "name", "pci.bus_id", "memory.total")
QUESTION = (f"--query-gpu={','.join(FIELDS)}", "--format=csv")
CONTROL = "itrctl"
LINK = "itrlink"
"""The node by which GPUs reach each other's memory, on machines that can."""


def open_driver(settings: IluvatarSettings, paths: HostPaths) -> Driver:
    """The GPUs of this host. Nothing is asked yet."""
    roots = paths.rooted(settings)
    words = [chip.word for chip in settings.chips]

    def naming(card: Card) -> tuple[str, str] | None:
        device_type = chip_of(card.model, words)
        return (device_type, card.uuid) if device_type else None

    cards = ListedCards(GPUS, roots, partial(listed, settings), naming)
    return PollingDriver(cards.look, cards.links, every=LOOK_EVERY_S)


def chip_of(model: str, words: Iterable[str]) -> str:
    """The chip that a model is, as ``BI-V150`` of ``Iluvatar BI-V150``; empty when it is none of them."""
    return next((word for word in words if word in model.split()), "")


def listed(settings: IluvatarSettings) -> Sequence[Card | str]:
    """The GPUs as the tool's table has them."""
    return read(
        settings.ixsmi,
        lambda table: [card(row) for row in rows(table, *FIELDS)],
        *QUESTION,
        deadline=settings.tool_seconds,
    )


def card(row: Mapping[str, str]) -> Card | str:
    """One row; what is wrong with it, in words, when it names no GPU."""
    try:
        index, uuid, place = int(row[INDEX]), row[UUID].strip(), address(row[ADDRESS])
    except (KeyError, ValueError):
        return f"ixsmi tells nothing that names a GPU: {dict(row)}"
    if not uuid.startswith("GPU-"):
        return f"ixsmi knows no UUID of GPU {index}, but {uuid[:64]!r}"
    model, memory = row.get(MODEL, "").strip(), row.get(MEMORY, "")
    try:
        return Card(index=index, uuid=uuid, model=model, address=place, memory=mebibytes(memory))
    except ValueError as error:
        return Card(index=index, uuid=uuid, model=model, address=place, trouble=f"ixsmi: {error}")


def node_side(settings: IluvatarSettings, family: Family) -> NodeSide:
    """One chip's. Its scheduler side reads the register of HAMi 2.7 to this day."""
    kind = f"{settings.delivery.kind}-{family.device_type.lower()}"
    shares = settings.split_count if settings.unlimited_shares else 1
    return replace(
        NodeSide().delivered(settings, device_edits, shared_edits),
        delivery=replace(settings.delivery, kind=kind),
        whole_only=settings.whole_only("Iluvatar's own agent"),
        replicas=lambda _device: shares,
        register=partial(register, shares),
        encode=encode_legacy,
        reports=True,
        inject=inject,
    )


def register(shares: int, device: Device, _legacy: bool) -> DeviceInfo:
    numa = max(0, device.numa or 0)
    return DeviceInfo.of(device, device.family, count=shares, numa=numa, mode=device.mode)


def device_edits(settings: IluvatarSettings, device: Device, host: HostFiles) -> ContainerEdits:
    return DeviceNodes(host=host, root=settings.dev_root).need(f"{GPUS.node}{device.minor}", whose=device.uuid)


def shared_edits(settings: IluvatarSettings, host: HostFiles) -> ContainerEdits:
    nodes = DeviceNodes(host=host, root=settings.dev_root)
    control = nodes.need(CONTROL, whose="the GPUs' driver").merged(nodes.take(LINK))
    return control.merged(mounted(host, settings.driver_files))


def inject(assignment: Assignment, _host: HostFiles) -> Injection:
    """Which GPUs Iluvatar's own runtime would add, where it is the one that runs the container."""
    shares = sorted(assignment.shares, key=lambda share: share.device.index)
    uuids = ",".join(share.device.uuid for share in shares)
    return Injection(edits=ContainerEdits(env={"IX_VISIBLE_DEVICES": uuids}))
