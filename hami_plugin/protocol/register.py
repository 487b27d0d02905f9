"""The register annotation of a node: a JSON list of its devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from typing import Any

import msgspec

from hami_plugin.errors import WireError
from hami_plugin.model.device import Device
from hami_plugin.protocol.grammar import (
    INT64_MAX,
    Amount,
    Int32,
    bool_of,
    bounded,
    from_json,
    from_usual_json,
    in_range,
    int_of,
    integer,
    object_of,
    objects,
    plain,
    printable,
    shown,
    text_of,
    to_json,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A MIG profile that a card can be cut into. ``memory`` in MiB, ``placements`` as (start, size)."""

    name: str
    memory: int
    cores: int
    slices: int
    placements: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One device in the register annotation. ``devmem`` in MiB, ``devcore`` in percent."""

    id: str
    index: int = 0
    count: int = 0
    devmem: int = 0
    devcore: int = 0
    type: str = ""
    numa: int = 0
    mode: str = ""
    health: bool = False
    mig_profiles: tuple[MigProfile, ...] = ()
    vendor: str = ""
    custom: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        device: Device,
        kind: str,
        *,
        count: int = 1,
        memory: int | None = None,
        cores: int | None = None,
        numa: int = 0,
        mode: str = "",
        vendor: str = "",
        custom: Mapping[str, Any] | None = None,
    ) -> DeviceInfo:
        """A device's own entry: all of its memory and cores, unless given, in one share."""
        return cls(
            id=device.uuid,
            index=device.index,
            count=count,
            devmem=device.memory if memory is None else memory,
            devcore=device.cores if cores is None else cores,
            type=kind,
            numa=numa,
            mode=mode,
            health=device.health.offered,
            vendor=vendor,
            custom=custom,
        )


Entry = tuple[DeviceInfo, str]
"""A device, and what is written of it."""


def encode_json(infos: Sequence[DeviceInfo]) -> str:
    """The register annotation since HAMi 2.8: by index, so that it changes only when a device does.

    Zero values are left out, as Go's ``omitempty`` does; a device without ``health`` is unhealthy to the reader.
    """
    return joined_json((info, json_entry(info)) for info in infos)


def json_entry(info: DeviceInfo) -> str:
    """One device in ``encode_json``."""
    return to_json(_members(info), "register annotation")


def joined_json(entries: Iterable[Entry]) -> str:
    """``encode_json`` of devices whose entries are made."""
    return f"[{','.join(in_order(entries))}]"


def decode_json(text: str) -> tuple[DeviceInfo, ...]:
    """Read what ``encode_json`` or a HAMi of 2.8 or later wrote, in its order. Unknown keys are left unread.

    As for HAMi, the case of a key does not matter: so do Go programs read JSON.
    """
    if (usual := _usual(text)) is not None:
        return usual
    items = objects(from_json(text, "register annotation"), "register annotation")
    return tuple(_info(_spelt(item), f"device[{position}]") for position, item in enumerate(items))


def in_order(entries: Iterable[Entry]) -> list[str]:
    """The texts as they are written: by index."""
    return [text for _info, text in sorted(entries, key=lambda entry: (entry[0].index, entry[0].id))]


def require_readable(info: DeviceInfo, *, without: str = "") -> DeviceInfo:
    """``info`` if readers in Go can take it; ``WireError`` names the field. No text may have the signs ``without``."""
    where = f"device {shown(info.id)}"
    for name in ("id", "type", "mode", "vendor"):
        printable(getattr(info, name), f"{where}.{name}", without=without)
    for name in ("count", "devmem", "devcore"):
        in_range(getattr(info, name), f"{where}.{name}")
    in_range(info.index, f"{where}.index", 0, INT64_MAX)
    in_range(info.numa, f"{where}.numa", -INT64_MAX - 1, INT64_MAX)
    return info


def _members(info: DeviceInfo) -> dict[str, Any]:
    """One device in the order in which Go writes the members."""
    require_readable(info)
    members = {
        "id": info.id,
        "index": info.index,
        "count": info.count,
        "devmem": info.devmem,
        "devcore": info.devcore,
        "type": info.type,
        "numa": info.numa,
        "mode": info.mode,
        "migProfiles": [_profile_members(profile) for profile in info.mig_profiles],
        "health": info.health,
        "devicevendor": info.vendor,
        "custominfo": plain(info.custom or {}, "custominfo"),
    }
    return {key: value for key, value in members.items() if value}


def _profile_members(profile: MigProfile) -> dict[str, Any]:
    where = f"MIG profile {shown(profile.name)}"
    return {
        "name": printable(profile.name, where),
        "memoryMB": in_range(profile.memory, f"{where}.memory"),
        "core": in_range(profile.cores, f"{where}.cores"),
        "sliceCount": in_range(profile.slices, f"{where}.slices"),
        "placements": [
            {"start": in_range(start, f"{where}.start"), "size": in_range(size, f"{where}.size")}
            for start, size in profile.placements
        ],
    }


def _spelt(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"migProfiles" if key.lower() == "migprofiles" else key.lower(): value for key, value in item.items()}


def _info(item: Mapping[str, Any], where: str) -> DeviceInfo:
    custom = object_of(item, "custominfo", where)
    return DeviceInfo(
        id=text_of(item, "id", where),
        index=int_of(item, "index", where, 0, INT64_MAX),
        count=int_of(item, "count", where),
        devmem=int_of(item, "devmem", where),
        devcore=int_of(item, "devcore", where),
        type=text_of(item, "type", where),
        numa=int_of(item, "numa", where, -INT64_MAX - 1, INT64_MAX),
        mode=text_of(item, "mode", where),
        health=bool_of(item, "health", where),
        mig_profiles=tuple(
            _profile(profile, f"{where}.migProfiles[{position}]")
            for position, profile in enumerate(objects(item.get("migProfiles"), f"{where}.migProfiles"))
        ),
        vendor=text_of(item, "devicevendor", where),
        custom=None if custom is None else plain(custom, f"{where}.custominfo"),
    )


class _UsualDevice(msgspec.Struct, forbid_unknown_fields=True):
    """A device as nearly all are: without profiles and data of its own, its members spelled as nearly everybody does.

    A scheduler reads tens of thousands of them when it starts.
    """

    id: str = ""
    index: Amount = 0
    count: Amount = 0
    devmem: Amount = 0
    devcore: Amount = 0
    type: str = ""
    numa: Int32 = 0
    mode: str = ""
    health: bool = False
    devicevendor: str = ""


_USUAL = msgspec.json.Decoder(list[_UsualDevice])


def _usual(text: str) -> tuple[DeviceInfo, ...] | None:
    """The devices; None unless all are usual, and what they are called can be printed."""
    found = from_usual_json(text, _USUAL, "register annotation")
    if found is None or not "".join([one.id + one.type + one.mode + one.devicevendor for one in found]).isprintable():
        return None
    return tuple(
        [
            DeviceInfo(
                id=one.id,
                index=one.index,
                count=one.count,
                devmem=one.devmem,
                devcore=one.devcore,
                type=intern(one.type),  # one text for all devices of a cluster
                numa=one.numa,
                mode=intern(one.mode),
                health=one.health,
                vendor=intern(one.devicevendor),
            )
            for one in found
        ]
    )


def _profile(item: Mapping[str, Any], where: str) -> MigProfile:
    placements = objects(item.get("placements"), f"{where}.placements")
    return MigProfile(
        name=text_of(item, "name", where),
        memory=int_of(item, "memoryMB", where),
        cores=int_of(item, "core", where),
        slices=int_of(item, "sliceCount", where),
        placements=tuple((int_of(place, "start", where), int_of(place, "size", where)) for place in placements),
    )


LEGACY_MODE = "hami-core"
"""The mode of a device whose legacy entry has no mode field."""

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def encode_legacy(infos: Sequence[DeviceInfo]) -> str:
    """Nine fields a device, each device closed by a colon.

    MIG profiles, vendor and custom information have no place in it.
    """
    return joined_legacy((info, legacy_entry(info)) for info in infos)


def legacy_entry(info: DeviceInfo) -> str:
    """One device in ``encode_legacy``."""
    return f"{_fields(info)}:"


def joined_legacy(entries: Iterable[Entry]) -> str:
    """``encode_legacy`` of devices whose entries are made."""
    return "".join(in_order(entries))


def decode_legacy(text: str) -> tuple[DeviceInfo, ...]:
    """Read seven fields (then index 0, mode hami-core) or nine. One bad device spoils the whole, as for HAMi 2.10."""
    printable(bounded(text, "register annotation"), "register annotation")
    if ":" not in text:
        raise WireError(f"register annotation: {shown(text)} has no ':' after a device")
    segments = text.split(":")
    return tuple(_legacy(segment, f"device[{i}]") for i, segment in enumerate(segments) if segment)


def _fields(info: DeviceInfo) -> str:
    # The format has no escapes: a separator inside a name would make two fields, or two devices, of one.
    require_readable(info, without=",:")
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
