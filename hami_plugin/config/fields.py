"""Which keys a settings class knows, and what stands behind a key."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hami_plugin.config.documents import Keys


def spelling(name: str, field: FieldInfo) -> str:
    """A field as it is written in files: its alias, or its name when it has none."""
    return field.alias or name


def fields(model: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """All keys of a settings class."""
    return {spelling(name, field): field for name, field in model.model_fields.items()}


def section(field: FieldInfo) -> type[BaseModel] | None:
    """The settings class that a key's value follows, directly or as an item of a list."""
    return next((kind for kind in _types(field.annotation) if issubclass(kind, BaseModel)), None)


def field_at(model: type[BaseModel], keys: Keys) -> FieldInfo | None:
    """The field behind ``keys``; None when no field is there."""
    inner: type[BaseModel] | None = model
    found: FieldInfo | None = None
    for key in keys:
        if isinstance(key, int):
            continue
        found = fields(inner).get(key) if inner else None
        if found is None:
            return None
        inner = section(found)
    return found


def model_at(model: type[BaseModel], keys: Keys) -> type[BaseModel] | None:
    """The settings class whose keys may stand under ``keys``."""
    field = field_at(model, keys)
    return model if not keys else section(field) if field else None


def takes_list(field: FieldInfo) -> bool:
    """Whether a key holds a list, so that text from the environment is split at commas."""
    origin = get_origin(field.annotation) or field.annotation
    return isinstance(origin, type) and issubclass(origin, (tuple, list, set, frozenset))


def suggestion(word: str, known: Iterable[str]) -> str:
    """``did you mean x?``, or all that is known when nothing is near."""
    names = sorted(known)
    near = nearest(word, names)
    if near:
        return f"did you mean {near}?"
    return f"known here: {', '.join(names)}" if names else "nothing can be set here"


def nearest(word: str, known: Sequence[str]) -> str:
    """The known word that ``word`` probably means, whatever its case and separators; empty when none is near."""
    plain = {_plain(name): name for name in known}
    close = difflib.get_close_matches(_plain(word), plain, n=1, cutoff=0.75)
    return plain[close[0]] if close else ""


def _plain(word: str) -> str:
    return word.replace("_", "").replace("-", "").lower()


def _types(annotation: Any) -> Iterable[type[Any]]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        yield annotation
    for argument in get_args(annotation):
        yield from _types(argument)
