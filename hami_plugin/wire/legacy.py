"""The register annotation up to HAMi 2.7: fields by their place, commas between them, a colon behind each device."""

from __future__ import annotations

from collections.abc import Sequence

from hami_plugin.errors import WireError
from hami_plugin.wire.grammar import INT64_MAX, bounded, integer, printable, shown
from hami_plugin.wire.nodes import DeviceInfo, checked, in_order

LEGACY_MODE = "hami-core"
"""The mode of a device whose legacy entry has no mode field."""

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def encode_legacy(infos: Sequence[DeviceInfo]) -> str:
    """Nine fields a device, each device closed by a colon.

    MIG profiles, vendor and custom information have no place in it.
    """
    return "".join(f"{_fields(info)}:" for info in in_order(infos))


def decode_legacy(text: str) -> tuple[DeviceInfo, ...]:
    """Read seven fields (then index 0, mode hami-core) or nine. One bad device spoils the whole, as for HAMi 2.10."""
    printable(bounded(text, "register annotation"), "register annotation")
    if ":" not in text:
        raise WireError(f"register annotation: {shown(text)} has no ':' after a device")
    segments = text.split(":")
    return tuple(_legacy(segment, f"device[{i}]") for i, segment in enumerate(segments) if segment)


def _fields(info: DeviceInfo) -> str:
    # The format has no escapes: a separator inside a name would make two fields, or two devices, of one.
    checked(info, without=",:")
    health = "true" if info.health else "false"
    fields = (info.id, info.count, info.devmem, info.devcore, info.type, info.numa, health, info.index, info.mode)
    return ",".join(str(field) for field in fields)


def _legacy(segment: str, where: str) -> DeviceInfo:
    fields = segment.split(",")
    if len(fields) not in (7, 9):
        raise WireError(f"{where}: {shown(segment)} has {len(fields)} fields instead of 7 or 9")
    index, mode = fields[7:] or ("0", LEGACY_MODE)
    if fields[6] not in _TRUE | _FALSE:
        raise WireError(f"{where}.health: {shown(fields[6])} is neither true nor false")
    return DeviceInfo(
        id=fields[0],
        count=integer(fields[1], f"{where}.count"),
        devmem=integer(fields[2], f"{where}.devmem"),
        devcore=integer(fields[3], f"{where}.devcore"),
        type=fields[4],
        numa=integer(fields[5], f"{where}.numa", -INT64_MAX - 1, INT64_MAX),
        health=fields[6] in _TRUE,
        index=integer(index, f"{where}.index", 0, INT64_MAX),
        mode=mode,
    )
