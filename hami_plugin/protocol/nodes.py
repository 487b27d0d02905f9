"""What a node's annotations say: its devices, their scores, who is alive, what is refused, and who holds the lock.

- *register*: a JSON list of the devices;
- *scores*: how well each pair of them is linked;
- *handshake*: a scheduler asks whether the daemon is alive. Schedulers since HAMi 2.8 take the kubelet's device count
  for an answer; for those of 2.7 the daemon writes its own;
- *refusals*: parts of devices, whole families, and unhealthy devices that the daemon does not serve;
- *lock*: under it a scheduler binds one pod at a time. It says when it was taken, and for whom.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from itertools import chain
from sys import intern
from typing import Any, Literal

import msgspec

from hami_plugin.errors import WireError
from hami_plugin.model.device import Device, Links
from hami_plugin.protocol.grammar import (
    INT64_MAX,
    Amount,
    Int32,
    Int64,
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
from hami_plugin.protocol.keys import REFUSES, UNHEALTHY


def encode_scores(scores: Mapping[str, Mapping[str, int]], order: Sequence[str]) -> str:
    """The score annotation: one object for each device of ``order``, peers sorted, without the device itself."""
    return to_json(
        [
            {
                "uuid": printable(uuid, "uuid"),
                "score": {peer: in_range(n, f"score of {uuid} and {peer}") for peer, n in sorted(peers.items())},
            }
            for uuid, peers in ((uuid, scores.get(uuid, {})) for uuid in order)
        ],
        "score annotation",
    )


class _UsualRow(msgspec.Struct, forbid_unknown_fields=True):
    """A device's row as it should be: a scheduler that starts reads those of many nodes."""

    uuid: str
    score: dict[str, Int64]


_USUAL_SCORES = msgspec.json.Decoder(list[_UsualRow])


def decode_scores(text: str) -> dict[str, dict[str, int]]:
    """Read the score annotation."""
    usual = from_usual_json(text, _USUAL_SCORES, "score annotation")
    if usual is not None and "".join(chain.from_iterable([(row.uuid, *row.score) for row in usual])).isprintable():
        return {row.uuid: row.score for row in usual}
    return _decoded(objects(from_json(text, "score annotation"), "score annotation"))


def _decoded(items: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The same, member by member: ``WireError`` names the first one that is not what it should be."""
    scores: dict[str, dict[str, int]] = {}
    for position, item in enumerate(items):
        where = f"score annotation[{position}]"
        peers = object_of(item, "score", where) or {}
        printable("".join(peers), where)
        scores[text_of(item, "uuid", where)] = {peer: int_of(peers, peer, where, _LOW, _HIGH) for peer in peers}
    return scores


_LOW, _HIGH = -INT64_MAX - 1, INT64_MAX


def score_annotation(links: Links, uuids: Sequence[str], budget: int = 64 * 1024) -> str | None:
    """All pairs among ``uuids``; None when that needs more than ``budget`` bytes.

    It grows with the square of the devices: 64 take 193 KiB of the 256 that a node has for all its annotations.
    """
    shortest = sum(len(uuid) + len('"":0') for uuid in uuids) * (len(uuids) - 1)
    if shortest > budget:
        return None
    scores = {uuid: {peer: links.score(uuid, peer) for peer in uuids if peer != uuid} for uuid in uuids}
    text = encode_scores(scores, uuids)
    return text if len(text.encode()) <= budget else None


ANSWER_TIMEOUT = timedelta(seconds=60)
"""How long a scheduler waits for an answer before it looks at the kubelet's device count."""

_STAMP = "%Y-%m-%d %H:%M:%S"
# A stamp after '_', or Go's way of printing a time after a blank, with decimals, offset and more.
_STAMPED = re.compile(r"[^_ ]*[_ ]([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+ [+-][0-9]{4} .*)?")


class HandshakeState(StrEnum):
    """The state in a value. ``OTHER`` is anything else, and no value."""

    REQUESTING = "Requesting"
    REPORTED = "Reported"
    DELETED = "Deleted"
    OTHER = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """A value that was read. ``time`` is the writer's local time, which has no zone; None when it is unreadable."""

    state: HandshakeState
    time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """What a scheduler concludes: whether the node's devices count, and whether it asks again."""

    healthy: bool
    asks: bool


def parse_handshake(text: str) -> Handshake:
    """Parse any value. Nothing is an error: a scheduler overwrites what it does not understand."""
    state = next((state for state in HandshakeState if state and state in text), HandshakeState.OTHER)
    return Handshake(state=state, time=_time(text))


def is_question(text: str) -> bool:
    """Whether a scheduler has asked and has no answer yet."""
    return parse_handshake(text).state is HandshakeState.REQUESTING


def render_answer(now: datetime) -> str:
    """The answer. No scheduler reads its time, only that it is no question; each asks again on the next round."""
    return f"{HandshakeState.REPORTED}_{now.strftime(_STAMP)}"


def render_question(now: datetime) -> str:
    """What a scheduler asks, at its local time ``now``."""
    return f"{HandshakeState.REQUESTING}_{now.strftime(_STAMP)}"


def liveness(text: str, *, now: datetime, allocatable: int) -> Liveness:
    """What a scheduler of today concludes, at its local time ``now``, with ``allocatable`` devices at the kubelet.

    A question of less than a minute, or one whose time cannot be read, is left alone.
    """
    handshake = parse_handshake(text)
    if handshake.state is not HandshakeState.REQUESTING:
        return Liveness(healthy=True, asks=True)
    waiting = handshake.time is None or now - handshake.time < ANSWER_TIMEOUT
    return Liveness(healthy=waiting or allocatable > 0, asks=False)


def _time(text: str) -> datetime | None:
    match = _STAMPED.fullmatch(text)
    if not match:
        return None
    try:
        return datetime.fromisoformat(match.group(1))
    except ValueError:
        return None


MAX_DEVICES = 4096
"""Of one node. Lists go no further."""
MAX_CHARACTERS = 300
"""Of a reason that is shown to people. Whoever may write nodes could write more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuses:
    """``parts``: only whole devices are handed out. ``several``: only whole ones to a container that has several.
    ``all``: none, as the node hands them out under another name.
    """

    what: Literal["parts", "several", "all"]
    why: str

    @property
    def text(self) -> str:
        """The annotation's value."""
        return f"{self.what}: {self.why}"

    def __str__(self) -> str:
        """For people, behind a scheduler's reason. It has no comma, by which reasons are parted."""
        begin = _REFUSED[self.what]
        return f"{begin}: {self.why.replace(',', ';')}" if self.why else begin

    @property
    def whole_from(self) -> int:
        """How many devices a container may have before it can have whole ones only; 0: any number."""
        return {"parts": 1, "several": 2, "all": 0}[self.what]


_REFUSED = {
    "parts": "the node serves whole devices only",
    "several": "the node serves several devices whole only",
    "all": "the node serves none of these",
}


def refuses_key(device_type: str) -> str:
    """The annotation for a family."""
    return f"{REFUSES}{device_type}"


def refusal_of(annotations: Mapping[str, str], device_type: str) -> Refuses | None:
    """What a node's annotations refuse of a family; None if nothing, or nothing known."""
    what, _, why = annotations.get(refuses_key(device_type), "").partition(":")
    reason = "".join(one for one in why.strip()[:MAX_CHARACTERS] if one.isprintable())
    match what.strip():
        case "parts":
            return Refuses(what="parts", why=reason)
        case "several":
            return Refuses(what="several", why=reason)
        case "all":
            return Refuses(what="all", why=reason)
        case _:
            return None


def unhealthy_key(device_type: str) -> str:
    """The annotation for a family."""
    return f"{UNHEALTHY}{device_type}"


def unhealthy_indices(annotations: Mapping[str, str], device_type: str) -> frozenset[int]:
    """The devices, by index, that a node's annotations say are not healthy. Other entries are ignored."""
    parts = annotations.get(unhealthy_key(device_type), "").split(",")[:MAX_DEVICES]
    return frozenset(int(one) for part in parts if (one := part.strip()).isascii() and one.isdecimal() and len(one) < 9)


def without_refusals(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """A node's annotations as if its daemon refused nothing."""
    return {name: text for name, text in annotations.items() if not name.startswith(REFUSES)}


# RFC 3339 as Go reads it: capital letters, seconds, any number of decimals, an offset or Z.
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLock:
    """A lock. ``namespace`` and ``pod`` are empty in the legacy form, which names no owner."""

    time: datetime
    namespace: str = ""
    pod: str = ""


def parse_lock(text: str) -> NodeLock:
    """Read ``<time>,<namespace>,<pod>``, or a time alone."""
    parts = bounded(text, "node lock").split(",")
    match parts:
        case [time]:
            return NodeLock(time=_lock_time(time))
        case [time, namespace, pod]:
            return NodeLock(
                time=_lock_time(time),
                namespace=printable(namespace, "node lock: namespace"),
                pod=printable(pod, "node lock: pod"),
            )
    raise WireError(f"node lock: {shown(text)} has {len(parts)} parts instead of time, namespace and pod")


def render_lock(lock: NodeLock) -> str:
    """The annotation's text, to the second. A lock without an owner has the legacy form."""
    offset = lock.time.utcoffset()
    if offset is None:
        raise WireError(f"node lock: {lock.time.isoformat()} has no time zone")
    # An offset with seconds cannot be written, so such a time is written in UTC.
    time = lock.time.astimezone(UTC) if not offset or offset % timedelta(minutes=1) else lock.time
    stamp = time.isoformat(timespec="seconds").replace("+00:00", "Z")
    if not lock.namespace and not lock.pod:
        return stamp
    names = (printable(name, "node lock", without=",") for name in (lock.namespace, lock.pod))
    return ",".join((stamp, *names))


def owned_by(text: str, namespace: str, name: str) -> bool:
    """Whether the lock names exactly this pod. A legacy lock names nobody."""
    return text.endswith(f",{namespace},{name}")


def _lock_time(text: str) -> datetime:
    match = _RFC3339.fullmatch(text)
    if not match:
        raise WireError(f"node lock: {shown(text)} is not a time such as 2026-08-21T10:11:12+08:00")
    *numbers, decimals, sign, hours, minutes = match.groups()
    micros = int((decimals or "").ljust(6, "0")[:6])
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0)) * (-1 if sign == "-" else 1)
    year, month, day, hour, minute, second = (int(number) for number in numbers)
    try:
        return datetime(year, month, day, hour, minute, second, micros, tzinfo=timezone(offset) if offset else UTC)
    except ValueError as error:
        raise WireError(f"node lock: {shown(text)} is not a time: {error}") from error


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


_USUAL_DEVICES = msgspec.json.Decoder(list[_UsualDevice])


def _usual(text: str) -> tuple[DeviceInfo, ...] | None:
    """The devices; None unless all are usual, and what they are called can be printed."""
    found = from_usual_json(text, _USUAL_DEVICES, "register annotation")
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
