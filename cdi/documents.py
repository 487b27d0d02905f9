"""Specs as text, JSON or YAML, in and out. A spec that a runtime would refuse is refused, with all problems at once.

A spec that it would accept, but that no container starts with, is not written either.

Python's standard library has no reader of YAML, so whoever has one passes it: ``read(..., yaml=yaml.safe_load)``.
Writing needs none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, TypeAlias

from cdi.blocks import yaml_text
from cdi.errors import InvalidSpecError, Problem
from cdi.plain import plain_spec, spec_of
from cdi.spec import Spec
from cdi.validate import problems, traps

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
