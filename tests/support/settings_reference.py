"""The configuration reference, out of the settings classes themselves: a table for people, a schema for editors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import models_json_schema
from pydantic_core import to_json

from hami_plugin.config.explain import fields, section
from hami_plugin.config.settings import Settings
from hami_plugin.config.vendors import VendorSettings

Schema = Mapping[str, Any]
_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "array": "list",
    "object": "section",
}
_HEAD = ("| key | type | default | description |", "|---|---|---|---|")


def reference(models: Mapping[str, type[BaseModel]]) -> str:
    """One Markdown table for each class, under its title. Keys of inner sections are dotted."""
    return "\n\n".join(f"### {title}\n\n" + "\n".join(_table(model)) for title, model in models.items()) + "\n"


def schema(vendors: Mapping[str, type[VendorSettings]]) -> dict[str, Any]:
    """The JSON schema of the configuration file. Nothing in it is required: the environment and flags may give it."""
    models: tuple[type[BaseModel], ...] = (Settings, *vendors.values())
    references, definitions = models_json_schema([(model, "validation") for model in models], by_alias=True)
    shared: dict[str, Any] = dict(definitions["$defs"])
    own = dict(shared.pop(_name(references[Settings, "validation"])))
    own.pop("required", None)
    sections = {name: references[model, "validation"] for name, model in vendors.items()}
    written = {"type": "object", "additionalProperties": False, "properties": sections}
    own["properties"] = {**own["properties"], "vendors": {**_described(own["properties"]["vendors"]), **written}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **own, "$defs": shared}


def _table(model: type[BaseModel]) -> Iterator[str]:
    variables: dict[str, list[str]] = {}
    for name, key in getattr(model, "environment", {}).items():
        variables.setdefault(key, []).append(f"`{name}`")
    whole = model.model_json_schema(by_alias=True)
    yield from _HEAD
    shared = whole.get("$defs", {})
    for key, field, entry in _entries(model, whole, shared, ""):
        about = field.description or ""
        if key in variables:
            about += f" Environment: {', '.join(variables[key])}."
        yield f"| `{key}` | {_cell(_type(entry, shared))} | {_cell(_default(field))} | {_cell(about.strip())} |"


def _entries(
    model: type[BaseModel], description: Schema, shared: Schema, prefix: str
) -> Iterator[tuple[str, FieldInfo, Schema]]:
    for key, field in fields(model).items():
        entry = description["properties"][key]
        inner = section(field)
        if inner is not None and "$ref" in entry:
            yield from _entries(inner, shared[_name(entry)], shared, f"{prefix}{key}.")
        else:
            yield prefix + key, field, entry


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory_takes_validated_data:
        return "follows from other keys"
    value = field.get_default(call_default_factory=True, validated_data={})
    return "none" if value is None else f"`{to_json(value, by_alias=True, fallback=str).decode()}`"


def _type(entry: Schema, shared: Schema) -> str:
    match _resolved(entry, shared):
        case {"enum": choices}:
            return " or ".join(f"`{choice}`" for choice in choices)
        case {"anyOf": choices}:
            return " or ".join(_type(choice, shared) for choice in choices if choice.get("type") != "null")
        case {"type": "array", "items": items}:
            return f"list of {_type(items, shared)}"
        case {"format": "path"}:
            return "path"
        case {"type": str(kind)}:
            return _TYPES[kind] + _range(entry)
        case _:
            return "section" if "$ref" in entry else "anything"


def _resolved(entry: Schema, shared: Schema) -> Schema:
    """One word, or a list of words that is described elsewhere, as a list of words in place."""
    described = shared[_name(entry)] if "$ref" in entry else {}
    if "const" in entry:
        return {"enum": [entry["const"]]}
    return described if "enum" in described else entry


def _range(entry: Schema) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    limits = [f"{word} {_number(entry[key])}" for key, word in words.items() if key in entry]
    return "".join(f", {limit}" for limit in limits)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _described(entry: Schema) -> Schema:
    return {key: value for key, value in entry.items() if key in ("title", "description")}


def _name(entry: Schema) -> str:
    return str(entry["$ref"]).rpartition("/")[2]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
