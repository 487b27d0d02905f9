"""Validation errors as lines for users: place, value, what is wrong, what to do."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined, to_jsonable_python

from hami_plugin.config.documents import Keys
from hami_plugin.config.layers import Layers, dotted
from hami_plugin.config.settings import Section


def spelling(name: str, field: FieldInfo) -> str:
    """A field as it is written in files: its alias, or its name when it has none."""
    return field.alias or name


def fields(model: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """All keys of a settings class."""
    return {spelling(name, field): field for name, field in model.model_fields.items()}


def section(field: FieldInfo) -> type[BaseModel] | None:
    """The settings class of a key's value, or of the items of its list."""
    return next((kind for kind in _types(field.annotation) if issubclass(kind, BaseModel)), None)


def field_at(model: type[BaseModel], keys: Keys) -> FieldInfo | None:
    """The field at ``keys``, or None."""
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
    """The settings class of the section at ``keys``, or None."""
    field = field_at(model, keys)
    return model if not keys else section(field) if field else None


def takes_list(field: FieldInfo) -> bool:
    """Whether a key holds a list, which the environment gives as comma-separated text."""
    origin = get_origin(field.annotation) or field.annotation
    return isinstance(origin, type) and issubclass(origin, (tuple, list, set, frozenset))


def suggestion(name: str, known: Iterable[str]) -> str:
    """``did you mean x?``, or all known names when none is close."""
    names = sorted(known)
    near = nearest(name, names)
    if near:
        return f"did you mean {near}?"
    return f"known keys: {', '.join(names)}" if names else "nothing can be set here"


def nearest(name: str, known: Sequence[str]) -> str:
    """The known name closest to ``name``, ignoring case and separators; empty when none is close."""
    plain = {_plain(name): name for name in known}
    close = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.75)
    return plain[close[0]] if close else ""


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _types(annotation: Any) -> Iterable[type[Any]]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        yield annotation
    for argument in get_args(annotation):
        yield from _types(argument)


_SHOWN = 60
_SHAPE = ("_type", "_parsing", "_parsing_size", "invalid_key", "_from_float")
_WRONG = {
    "model_type": "must be a section of keys",
    "model_attributes_type": "must be a section of keys",
    "dict_type": "must be a section of keys",
    "mapping_type": "must be a section of keys",
    "invalid_key": "is not a text key; put it in quotes",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "set_type": "must be a list",
    "frozen_set_type": "must be a list",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text; put it in quotes",
    "path_type": "must be a path",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "string_pattern_mismatch": "must match {pattern}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "value_error": "{error}",
    "assertion_error": "{error}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationProblem:
    """One thing that is wrong, as a line. ``unknown``: the key at ``keys`` does not exist. ``shape``: the value has the
    wrong type, and is not merely out of range.
    """

    keys: Keys
    text: str
    unknown: bool = False
    missing: bool = False
    shape: bool = False


def explain(
    error: ValidationError, model: type[BaseModel], layers: Layers, prefix: Keys = ()
) -> Iterator[ConfigurationProblem]:
    """One problem for each place. ``prefix`` is the path of ``model`` in the layers."""
    found: dict[Keys, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        if details["type"] != "default_factory_not_called":  # a consequence of another error in the list
            keys = (*prefix, *details["loc"])
            found.setdefault(_written(keys, layers, details["type"]), []).append(details)
    for keys, group in found.items():
        yield _problem(keys, group, model, layers, prefix)


def shown(value: object) -> str:
    """A value as JSON, cut to a readable length, with control characters escaped."""
    try:
        text = json.dumps(to_jsonable_python(value, fallback=str))
    except (ValueError, RecursionError):
        text = ascii(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def unknown_key(keys: Keys, known: Iterable[str], layers: Layers) -> str:
    """The line for a key that does not exist."""
    place = layers.place(keys)
    source = layers.source(keys)
    effect = " and has no effect" if source and source.lenient else ""
    return f"{place.where}: {place.path}: is not a known key{effect}; {suggestion(str(keys[-1]), known)}"


def _problem(
    keys: Keys, group: list[ErrorDetails], model: type[BaseModel], layers: Layers, prefix: Keys
) -> ConfigurationProblem:
    inside = keys[len(prefix) :]
    kinds = {details["type"] for details in group}
    if "extra_forbidden" in kinds:
        holder = model_at(model, inside[:-1])
        return ConfigurationProblem(
            keys=keys, unknown=True, shape=True, text=unknown_key(keys, fields(holder) if holder else (), layers)
        )
    place = layers.place(keys)
    if "missing" in kinds:
        text = f"{place.where}: {place.path}: is missing; {_how_to_give(model, inside)}"
        return ConfigurationProblem(keys=keys, text=text, missing=True)
    wrong = " or ".join(dict.fromkeys(_wrong(details) for details in group))
    value = group[0]["input"]
    complaint = "has no value" if value is None else f"{shown(value)}: {wrong}"
    if not inside and value is not None and isinstance(value, Mapping):
        complaint = wrong  # the rule is about several keys, and the whole section would not help
    text = f"{place.where}: {place.path}: {complaint}{_remedy(model, inside, value)}"
    return ConfigurationProblem(keys=keys, text=text, shape=all(kind.endswith(_SHAPE) for kind in kinds))


def _wrong(details: ErrorDetails) -> str:
    template = _WRONG.get(details["type"])
    if template is None:
        return details["msg"]
    context: dict[str, Any] = dict(details.get("ctx", {}))
    return template.format_map(context)


def _remedy(model: type[BaseModel], inside: Keys, value: object) -> str:
    field = field_at(model, inside)
    if field is None:
        return ""
    default = field.get_default()
    parts = ["set one, or delete the line"] if value is None else []
    if default is not PydanticUndefined and not isinstance(default, Section) and default is not None:
        parts.append(f"the default is {shown(default)}")
    elif not parts and field.description:
        parts.append(f"its purpose: {field.description}")
    return f"; {'; '.join(parts)}" if parts else ""


def _how_to_give(model: type[BaseModel], inside: Keys) -> str:
    environment: Mapping[str, str] = getattr(model, "environment", {})
    variables = [name for name, target in environment.items() if target == dotted(inside)]
    ways = [*(f"set {name} in the environment" for name in variables), f"add {inside[-1]} to the file"]
    return ", or ".join(ways)


def _written(keys: Keys, layers: Layers, kind: str) -> Keys:
    """The part of an error's location that the source has. A union appends the names of its branches."""
    missing = 1 if kind == "missing" else 0
    for size in range(len(keys), 0, -1):
        if layers.source(keys[: size - missing]) is not None:
            return keys[:size]
    return keys
