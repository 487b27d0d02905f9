"""Specs as text, JSON or YAML, in and out. A spec that a runtime would refuse is refused, with all problems at once.

A spec that it would accept, but that no container starts with, is not written either.

Python's standard library has no reader of YAML, so whoever has one passes it: ``read(..., yaml=yaml.safe_load)``.
Writing needs none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, TypeAlias

from cdi.errors import InvalidNameError, InvalidSpecError, Problem
from cdi.names import Kind
from cdi.spec import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, Spec, SpecDevice
from cdi.validate import least_version, problems, traps

# Starts with a letter or "/", has no space, and no ":" at its end: nothing but a text, in every version of YAML ...
_BARE = re.compile(r"[A-Za-z/]([A-Za-z0-9_./=,@+:-]*[A-Za-z0-9_./=,@+-])?", re.ASCII)
# ... unless some YAML version reads it as a boolean or null.
_RESERVED = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def yaml_text(value: object) -> str:
    """A document of mappings, lists, texts, numbers and truth values."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: object) -> Iterator[str]:
    match value:
        case Mapping() if value:
            for key, entry in value.items():
                yield from _mapping_entry(_scalar(key), entry)
        case list() if value:
            for entry in value:
                first, *others = _lines(entry)
                yield f"- {first}"
                yield from (f"  {line}" for line in others)
        case _:
            yield _scalar(value)


def _mapping_entry(key: str, value: object) -> Iterator[str]:
    if isinstance(value, (Mapping, list)) and value:
        yield f"{key}:"
        yield from (f"  {line}" for line in _lines(value))
    else:
        yield f"{key}: {_scalar(value)}"


def _scalar(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            bare = _BARE.fullmatch(value) and value.lower() not in _RESERVED
            return value if bare else f'"{"".join(map(_quoted, value))}"'
        case Mapping():
            return "{}"
        case list():
            return "[]"
        case _:
            raise TypeError(f"{value!r} has no place in a document; use mappings, lists, texts, numbers, true or false")


def _quoted(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


_NODE = {
    "path": "path",
    "hostPath": "host_path",
    "type": "type",
    "major": "major",
    "minor": "minor",
    "fileMode": "file_mode",
    "permissions": "permissions",
    "uid": "uid",
    "gid": "gid",
}
_INTEL_RDT = {
    "closID": "clos_id",
    "l3CacheSchema": "l3_cache_schema",
    "memBwSchema": "mem_bw_schema",
    "enableCMT": "enable_cmt",
    "enableMBM": "enable_mbm",
}


def plain_spec(spec: Spec) -> dict[str, Any]:
    """The document of ``spec``, with the least version. What is empty or absent is left out."""
    document = {
        "kind": str(spec.kind),
        **_present(annotations=dict(spec.annotations), containerEdits=plain_edits(spec.edits)),
        "devices": [
            {
                "name": device.name,
                **_present(annotations=dict(device.annotations)),
                "containerEdits": plain_edits(device.edits),
            }
            for device in spec.devices
        ],
    }
    return {"cdiVersion": least_version(document), **document}


def plain_edits(edits: ContainerEdits) -> dict[str, Any]:
    rdt = edits.intel_rdt
    return {
        **_present(
            env=[_variable(name, value) for name, value in edits.env.items()],
            deviceNodes=[_present(**_renamed(node, _NODE)) for node in edits.device_nodes],
            mounts=[_plain_mount(mount) for mount in edits.mounts],
            hooks=[_plain_hook(hook) for hook in edits.hooks],
            additionalGids=list(edits.additional_gids),
        ),
        **({} if rdt is None else {"intelRdt": {k: v for k, v in _renamed(rdt, _INTEL_RDT).items() if v}}),
    }


def spec_of(document: Mapping[str, Any]) -> Spec:
    """The spec of a document that the validator has accepted."""
    return Spec(
        kind=Kind.parse(document["kind"]),
        annotations=dict(document.get("annotations") or {}),
        edits=edits_of(document.get("containerEdits")),
        devices=tuple(
            SpecDevice(
                name=device["name"],
                annotations=dict(device.get("annotations") or {}),
                edits=edits_of(device["containerEdits"]),
            )
            for device in document["devices"]
        ),
    )


def edits_of(document: Mapping[str, Any] | None) -> ContainerEdits:
    if document is None:
        return ContainerEdits()
    rdt = document.get("intelRdt")
    return ContainerEdits(
        env=dict(_split(variable) for variable in document.get("env") or ()),
        device_nodes=tuple(
            # In a document the absence of permissions means all of them.
            DeviceNode(**{"permissions": "", **_named(node, _NODE)})
            for node in document.get("deviceNodes") or ()
        ),
        mounts=tuple(_mount_of(mount) for mount in document.get("mounts") or ()),
        hooks=tuple(_hook_of(hook) for hook in document.get("hooks") or ()),
        additional_gids=tuple(document.get("additionalGids") or ()),
        intel_rdt=None if rdt is None else IntelRdt(**_named(rdt, _INTEL_RDT)),
    )


def _plain_mount(mount: Mount) -> dict[str, Any]:
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        **_present(options=[*(["ro"] if mount.read_only else []), *mount.options], type=mount.type),
    }


def _mount_of(document: Mapping[str, Any]) -> Mount:
    options = document.get("options") or ()
    access = [option for option in options if option in ("ro", "rw")]
    return Mount(
        host_path=document["hostPath"],
        container_path=document["containerPath"],
        read_only=access[-1:] == ["ro"],
        options=tuple(option for option in options if option not in ("ro", "rw")),
        type=document.get("type") or "",
    )


def _plain_hook(hook: Hook) -> dict[str, Any]:
    required = {"hookName": hook.name, "path": hook.path}
    return {**required, **_present(args=list(hook.args), env=list(hook.env), timeout=hook.timeout_s)}


def _hook_of(document: Mapping[str, Any]) -> Hook:
    return Hook(
        name=document["hookName"],
        path=document["path"],
        args=tuple(document.get("args") or ()),
        env=tuple(document.get("env") or ()),
        timeout_s=document.get("timeout"),
    )


def _present(**values: object) -> dict[str, Any]:
    """Without what is empty. Zero is not: a device may have minor 0."""
    return {name: value for name, value in values.items() if value not in (None, "", [], {})}


def _renamed(value: object, names: Mapping[str, str]) -> dict[str, Any]:
    return {theirs: getattr(value, ours) for theirs, ours in names.items()}


def _named(document: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names[theirs]: value for theirs, value in document.items() if value is not None}


def _variable(name: str, value: str) -> str:
    if "=" in name:
        raise InvalidNameError(f'variable "{name}" has "=" in its name')
    return f"{name}={value}"


def _split(variable: str) -> tuple[str, str]:
    name, _, value = variable.partition("=")
    return name, value


EXTENSIONS = (".json", ".yaml")
"""Of spec files. Runtimes ignore all others, even ``.yml``."""

MAX_LEVELS = 50
"""A spec has six. Deeper text is refused whatever it says."""

# Runtimes read JSON with a reader of YAML. It refuses these characters unless they are escaped, and others, beyond the
# basic plane, when they are: so these are, and the others are not.
_UNREADABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")

YamlReader: TypeAlias = Callable[[str], object]
"""Text to plain values. It must build plain values only, as ``yaml.safe_load`` of PyYAML does, and bound its own depth:
PyYAML's loaders in C do not, and a few kilobytes of brackets end the process.

It must refuse duplicate keys as runtimes do; PyYAML takes the last one.
"""


def write(spec: Spec, file: str) -> str:
    """The text of ``spec`` for a file of this name, JSON or YAML by its extension."""
    extension = PurePath(file).suffix
    if extension not in EXTENSIONS:
        raise ValueError(f'"{file}" is not the name of a spec: it must end with {" or ".join(EXTENSIONS)}')
    return to_json(spec, file) if extension == ".json" else to_yaml(spec, file)


def to_json(spec: Spec, file: str = "") -> str:
    """``InvalidSpecError`` when a runtime would refuse ``spec``; ``file`` is named in it."""
    text = json.dumps(_document(spec, file), indent=2, ensure_ascii=False)
    return _UNREADABLE.sub(lambda found: f"\\u{ord(found[0]):04X}", text) + "\n"


def to_yaml(spec: Spec, file: str = "") -> str:
    """``InvalidSpecError`` when a runtime would refuse ``spec``; ``file`` is named in it."""
    return yaml_text(_document(spec, file))


def read(text: str, file: str, *, yaml: YamlReader | None = None) -> Spec:
    """The spec in ``text``. ``InvalidSpecError`` has everything that is wrong; its problems name ``file``."""
    document = _parsed(text, file, yaml)
    if found := problems(document, file):
        raise InvalidSpecError(found)
    assert isinstance(document, Mapping)
    return spec_of(document)


def _document(spec: Spec, file: str) -> dict[str, Any]:
    document = plain_spec(spec)
    if found := problems(document, file) or traps(document, file):
        raise InvalidSpecError(found)
    return document


def _parsed(text: str, file: str, yaml: YamlReader | None) -> object:
    if PurePath(file).suffix == ".json":
        yaml = _read_json
    if yaml is None:
        message = "is YAML, and there is no reader of YAML here; pass one, or write the spec as JSON"
        raise InvalidSpecError([Problem(file=file, message=message)])
    try:
        document = yaml(text)
        if not _deeper(document):
            return document
        message = f"is nested more than {MAX_LEVELS} levels deep, or contains itself"
    except RecursionError:
        message = "is nested too deeply"
    except Exception as error:  # noqa: BLE001  # the reader is the caller's, and what it raises its own affair
        message = f"is not readable: {error}"
    raise InvalidSpecError([Problem(file=file, message=message)])


def _deeper(document: object) -> bool:
    """Level by level, and each value of a level once: aliases may lead to one from everywhere, or back to itself."""
    level = [document]
    for _ in range(MAX_LEVELS):
        inner = (one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else () for one in level)
        level = list({id(one): one for some in inner for one in some}.values())
    return bool(level)


def _read_json(text: str) -> object:
    return json.loads(text, object_pairs_hook=_without_repetition, parse_constant=_no_constant)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'"{repeated}" is set twice in one mapping')
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
