"""Validate a spec: everything that a runtime would refuse, each problem with its file, device and field.

A ``Check`` takes a value and its place, and yields what is wrong; small checks add up to the one of a whole document.

A runtime refuses a spec whose ``cdiVersion`` is older than its fields, and one that is newer than the runtime itself.
So a document gets the least version that knows every field in use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from cdi.errors import InvalidNameError, Problem
from cdi.names import Kind, device_problem
from cdi.spec import HOOK_NAMES

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0")
"""The released versions with these fields, in order. 0.8.0 and 1.0.0 brought no field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A field in use that asks for a version. ``device`` is the position of the device, None for the spec's own."""

    version: str
    device: int | None = None
    field: str


def least_version(document: Mapping[str, Any]) -> str:
    """The least version that knows all fields of a document, given as plain values."""
    return max((need.version for need in needs(document)), key=VERSIONS.index, default=VERSIONS[0])


def needs(document: Mapping[str, Any]) -> Iterator[Need]:
    """What in a document asks for more than the first version. A malformed part asks for nothing."""
    if "." in str(document.get("kind")).partition("/")[2]:
        yield Need(version="0.6.0", field="kind")
    yield from _needs_of_part(document, None)
    for position, device in enumerate(_items(document.get("devices"))):
        if str(device.get("name"))[:1].isdecimal():
            yield Need(version="0.5.0", device=position, field="name")
        yield from _needs_of_part(device, position)


def _needs_of_part(part: Mapping[str, Any], device: int | None) -> Iterator[Need]:
    """What annotations and edits, of the spec or of one device, ask for."""
    if part.get("annotations"):
        yield Need(version="0.6.0", device=device, field="annotations")
    edits = part.get("containerEdits")
    if not isinstance(edits, Mapping):
        return
    for position, mount in enumerate(_items(edits.get("mounts"))):
        if mount.get("type"):
            yield Need(version="0.4.0", device=device, field=f"containerEdits.mounts[{position}].type")
    for position, node in enumerate(_items(edits.get("deviceNodes"))):
        if node.get("hostPath"):
            yield Need(version="0.5.0", device=device, field=f"containerEdits.deviceNodes[{position}].hostPath")
    if edits.get("intelRdt") is not None:
        yield Need(version="0.7.0", device=device, field="containerEdits.intelRdt")
    if edits.get("additionalGids"):
        yield Need(version="0.7.0", device=device, field="containerEdits.additionalGids")


def _items(value: object) -> list[Mapping[str, Any]]:
    """The entries of a list that are mappings, at their places; others stand as empty ones."""
    return [item if isinstance(item, Mapping) else {} for item in value] if isinstance(value, list) else []


MAX_ANNOTATIONS = 256 * 1024
"""Bytes of all annotations of one spec or device, keys and values, as for Kubernetes objects."""

_UINT32, _INT64 = 2**32 - 1, 2**63 - 1
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.ASCII)
_MAX_NAME_LENGTH = 4095


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecLocation:
    """Where in which document a value stands."""

    file: str = ""
    device: str = ""
    field: str = ""

    def of(self, name: str) -> SpecLocation:
        return replace(self, field=f"{self.field}.{name}" if self.field else name)

    def item(self, position: int) -> SpecLocation:
        return replace(self, field=f"{self.field}[{position}]")

    def problem(self, message: str) -> Problem:
        return Problem(file=self.file, device=self.device, field=self.field, message=message)


Check: TypeAlias = Callable[[object, SpecLocation], Iterator[Problem]]
Rule: TypeAlias = Callable[[str], str | None]
"""What is wrong with a text; None when nothing is."""


def text(*rules: Rule) -> Check:
    def check(value: object, place: SpecLocation) -> Iterator[Problem]:
        if not isinstance(value, str):
            quotes = "; put it in quotes" if isinstance(value, (int, float)) else ""
            yield place.problem(f"must be text, is {shown(value)}{quotes}")
            return
        wrong = next((wrong for rule in (encodable, *rules) if (wrong := rule(value)) is not None), None)
        if wrong is not None:
            yield place.problem(wrong)

    return check


def number(least: int, most: int) -> Check:
    def check(value: object, place: SpecLocation) -> Iterator[Problem]:
        if not isinstance(value, int) or isinstance(value, bool):
            yield place.problem(f"must be a whole number, is {shown(value)}")
        elif not least <= value <= most:
            yield place.problem(f"must be from {least} to {most}, is {value}")

    return check


def truth(value: object, place: SpecLocation) -> Iterator[Problem]:
    if not isinstance(value, bool):
        yield place.problem(f"must be true or false, is {shown(value)}")


def several(item: Check) -> Check:
    def check(value: object, place: SpecLocation) -> Iterator[Problem]:
        if not isinstance(value, list):
            yield place.problem(f"must be a list, is {shown(value)}")
            return
        for position, entry in enumerate(value):
            yield from item(entry, place.item(position))

    return check


def fields(known: Mapping[str, Check], *, required: tuple[str, ...] = ()) -> Check:
    """A mapping with these keys and no others. A key without a value counts as absent."""

    def check(value: object, place: SpecLocation) -> Iterator[Problem]:
        if not isinstance(value, Mapping):
            yield place.problem(f"must be a mapping, is {shown(value)}")
            return
        for name, entry in value.items():
            if name not in known:
                yield place.of(str(name)).problem(f"unknown field; known are {', '.join(known)}")
            elif entry is not None:
                yield from known[name](entry, place.of(name))
        for name in required:
            if value.get(name) is None:
                yield place.of(name).problem("is missing")

    return check


def mapping(key: Rule) -> Check:
    """A mapping from texts to texts, whose keys follow a rule."""
    entry_check = text()

    def check(value: object, place: SpecLocation) -> Iterator[Problem]:
        if not isinstance(value, Mapping):
            yield place.problem(f"must be a mapping, is {shown(value)}")
            return
        for name, entry in value.items():
            wrong = key(name) if isinstance(name, str) else "key must be text"
            if wrong is not None:
                yield place.of(str(name)).problem(wrong)
            yield from entry_check(entry, place.of(str(name)))

    return check


def encodable(value: str) -> str | None:
    """No file, variable or path can hold a NUL or half of a surrogate pair."""
    if "\0" in value:
        return f"must not contain NUL, is {value!r}"
    return f"must be Unicode text, is {value!r}" if any("\ud800" <= mark <= "\udfff" for mark in value) else None


def filled(value: str) -> str | None:
    return None if value else "must not be empty"


def absolute(value: str) -> str | None:
    return None if value.startswith("/") else f'must be absolute, is "{value}"'


def one_of(*values: str) -> Rule:
    return lambda value: None if value in values else f'must be one of {", ".join(values)}, is "{value}"'


def shown(value: object) -> str:
    """A value as a message shows it: short, or only what kind of value it is."""
    match value:
        case str():
            return f'"{value}"' if len(value) <= 60 else f'"{value[:57]}..."'
        case bool() | int() | float():
            return str(value).lower()
        case list():
            return "a list"
        case Mapping():
            return "a mapping"
        case _:
            return f"a {type(value).__name__}"


def problems(document: object, file: str = "") -> tuple[Problem, ...]:
    """Everything that is wrong with a document, given as plain values. Nothing: runtimes accept it."""
    place = SpecLocation(file=file)
    found = list(_SPEC(document, place))
    if isinstance(document, Mapping):
        found += _version_problems(document, place)
        found += _device_problems(document, place)
    return tuple(found)


def traps(document: Mapping[str, Any], file: str = "") -> tuple[Problem, ...]:
    """What runtimes read, but start no container with, in a document without problems: mounts that bind nothing.

    Neither the specification nor a runtime's reader minds them. The kernel does: it knows no file system "bind".
    """
    place = SpecLocation(file=file)
    found = [*_unbound(document.get("containerEdits"), place)]
    for position, device in enumerate(document["devices"]):
        found += _unbound(device["containerEdits"], _device_place(device, place.of("devices").item(position)))
    return tuple(found)


def _unbound(edits: Mapping[str, Any] | None, place: SpecLocation) -> Iterator[Problem]:
    for position, mount in enumerate((edits or {}).get("mounts") or ()):
        if _is_bind(mount) and not {"bind", "rbind"} & set(mount.get("options") or ()):
            options = place.of("containerEdits").of("mounts").item(position).of("options")
            yield options.problem('must have bind or rbind, or containers do not start: "no such device"')


def _is_bind(mount: Mapping[str, Any]) -> bool:
    """Whether a mount is of no file system: it shows a path of the host."""
    return mount.get("type") in (None, "", "bind", "none")


def _variable(value: str) -> str | None:
    return None if value.find("=") > 0 else f'must be NAME=value, is "{value}"'


def _permissions(value: str) -> str | None:
    return f'must be of "r", "w" and "m", is "{value}"' if value.strip("rwm") else None


def _kind(value: str) -> str | None:
    try:
        Kind.parse(value)
    except InvalidNameError as error:
        return str(error)
    return None


def _annotation(key: str) -> str | None:
    prefix, slash, name = key.lower().rpartition("/")
    if _LABEL.fullmatch(name) and (_SUBDOMAIN.fullmatch(prefix) if slash else True):
        return None
    return f'"{key}" must be a name of at most 63 characters, which may follow a domain and a "/"'


def _clos(value: str) -> str | None:
    if value == "/" or not (value in (".", "..") or "/" in value or "\n" in value or len(value) > _MAX_NAME_LENGTH):
        return None
    return f'must be a file name, or "/" for the root class, is "{value}"'


def _mount(value: object, place: SpecLocation) -> Iterator[Problem]:
    yield from _MOUNT(value, place)
    bound = isinstance(value, Mapping) and _is_bind(value)
    source = value.get("hostPath") if isinstance(value, Mapping) else None
    if bound and isinstance(source, str) and source and (wrong := absolute(source)):
        yield place.of("hostPath").problem(wrong)


_DEVICE_NODE = fields(
    {
        "path": text(absolute),
        "hostPath": text(absolute),
        "type": text(one_of("b", "c", "u", "p")),
        "major": number(0, _INT64),
        "minor": number(0, _INT64),
        "fileMode": number(0, 0o7777),
        "permissions": text(_permissions),
        "uid": number(0, _UINT32),
        "gid": number(0, _UINT32),
    },
    required=("path",),
)
_MOUNT = fields(
    {
        "hostPath": text(filled),
        "containerPath": text(absolute),
        "options": several(text(filled)),
        "type": text(),
    },
    required=("hostPath", "containerPath"),
)
_HOOK = fields(
    {
        "hookName": text(one_of(*HOOK_NAMES)),
        "path": text(absolute),
        "args": several(text()),
        "env": several(text(_variable)),
        "timeout": number(1, _UINT32),
    },
    required=("hookName", "path"),
)
_INTEL_RDT = fields(
    {
        "closID": text(_clos),
        "l3CacheSchema": text(),
        "memBwSchema": text(),
        "enableCMT": truth,
        "enableMBM": truth,
    }
)
_EDITS = fields(
    {
        "env": several(text(_variable)),
        "deviceNodes": several(_DEVICE_NODE),
        "mounts": several(_mount),
        "hooks": several(_HOOK),
        "additionalGids": several(number(0, _UINT32)),
        "intelRdt": _INTEL_RDT,
    }
)
_ANNOTATIONS = mapping(_annotation)


def _annotations(value: object, place: SpecLocation) -> Iterator[Problem]:
    yield from _ANNOTATIONS(value, place)
    if isinstance(value, Mapping):
        texts = (entry for pair in value.items() for entry in pair if isinstance(entry, str))
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        if size > MAX_ANNOTATIONS:
            yield place.problem(f"must have at most {MAX_ANNOTATIONS} bytes together, has {size}")


_DEVICE = fields(
    {"name": text(device_problem), "annotations": _annotations, "containerEdits": _EDITS},
    required=("name", "containerEdits"),
)


def _named_device(value: object, place: SpecLocation) -> Iterator[Problem]:
    yield from _DEVICE(value, _device_place(value, place))


def _device_place(device: object, place: SpecLocation) -> SpecLocation:
    """By its name once it has one, else by its position."""
    name = device.get("name") if isinstance(device, Mapping) else None
    return replace(place, device=name, field="") if isinstance(name, str) and name else place


_SPEC: Check = fields(
    {
        "cdiVersion": text(one_of(*VERSIONS)),
        "kind": text(_kind),
        "annotations": _annotations,
        "devices": several(_named_device),
        "containerEdits": _EDITS,
    },
    required=("cdiVersion", "kind", "devices"),
)


def _device_problems(document: Mapping[str, Any], place: SpecLocation) -> Iterator[Problem]:
    """What concerns a device as a whole: none, two of one name, or one that adds nothing."""
    devices = document.get("devices")
    if not isinstance(devices, list):
        return
    if not devices:
        yield place.of("devices").problem("must have at least one device")
    seen: dict[str, int] = {}
    for position, device in enumerate(devices):
        if not isinstance(device, Mapping):
            continue
        at = _device_place(device, place.of("devices").item(position))
        edits = device.get("containerEdits")
        if isinstance(edits, Mapping) and not any(edits.values()) and edits.get("intelRdt") is None:
            yield at.of("containerEdits").problem("must add something, is empty")
        name = device.get("name")
        if isinstance(name, str) and (first := seen.setdefault(name, position)) != position:
            yield at.of("name").problem(f"is taken: devices[{first}] and devices[{position}] have it")


def _version_problems(document: Mapping[str, Any], place: SpecLocation) -> Iterator[Problem]:
    """Fields that the document's version does not know."""
    version = document.get("cdiVersion")
    if not isinstance(version, str) or version not in VERSIONS:
        return
    for need in needs(document):
        if VERSIONS.index(need.version) > VERSIONS.index(version):
            at = place
            if need.device is not None:
                at = _device_place(document["devices"][need.device], place.of("devices").item(need.device))
            yield at.of(need.field).problem(f"needs cdiVersion {need.version} or later, is {version}")
