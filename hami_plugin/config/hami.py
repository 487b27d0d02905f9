"""HAMi's two files as layers: ``device-config.yaml`` of the cluster, and ``config.json`` with entries of nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hami_plugin.config.documents import Document, Keys, section
from hami_plugin.config.explain import fields, nearest, shown, suggestion
from hami_plugin.config.layers import Layer, ValueLocation, dotted, nested, without_none
from hami_plugin.config.vendors import VendorSettings
from hami_plugin.errors import ConfigError

Models = Mapping[str, type[VendorSettings]]
Reading = tuple[tuple[Layer, ...], tuple[str, ...]]
"""The layers of a file, and warnings about keys that have no effect."""

# HAMi's own plugin reads these from the same file. Here they have no effect.
_PLUGIN_SECTIONS = ("flags", "sharing", "imex", "resources")

# In HAMi's sample of an entry. HAMi never uses the first; what the second enables is always enabled here.
_UNUSED_KEYS = ("migstrategy", "enablegetpreferredallocation")


def device_config(document: Document, models: Models) -> Reading:
    """The sections of ``device-config.yaml`` whose names are vendors here.

    Sections of other vendors are ignored. A key without a value sets nothing.
    """
    content = section(document, (), document.value)
    vendors = {model.hami_section or name: name for name, model in models.items()}
    found = [(key, name) for key, name in vendors.items() if key in content]
    sections = {name: section(document, (key,), models[name].keyed(content[key])) for key, name in found}
    places: dict[Keys, ValueLocation] = {}
    for keys, line in document.lines.items():
        if keys and vendors.get(str(keys[0])) in sections:
            place = ValueLocation(where=f"{document.path}:{line}", path=dotted(keys))
            name = vendors[str(keys[0])]
            listed = (models[name].hami_list,) if len(keys) > 1 and isinstance(keys[1], int) else ()
            places["vendors", name, *listed, *keys[1:]] = place
    layer = Layer(
        name=str(document.path),
        values={"vendors": {name: without_none(values) for name, values in sections.items()}},
        places=places,
        lenient=True,
    )
    return (layer,), tuple(_unused_sections(document, content, vendors))


def node_config(document: Document, models: Models, node: str) -> Reading:
    """One layer for each entry of ``config.json`` with this node's name, in order: a later one wins.

    HAMi's merge cannot set 0, false or an empty list; here every written value counts. Keys match regardless of case,
    as in Go.
    """
    entries = _lower(section(document, (), document.value)).get("nodeconfig")
    if not isinstance(entries, list):
        raise ConfigError([f'{document.path}: has no list "nodeconfig"; write {{"nodeconfig": [{{"name": "…"}}]}}'])
    layers: list[Layer] = []
    warnings: list[str] = []
    for position, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise ConfigError([f"{document.path}: nodeconfig[{position}]: must be an object of keys"])
        at = f"nodeconfig[{position}]"
        name = _lower(entry).get("name")
        if name == node:
            warnings += _unknown_keys(document, at, entry, models)
            layers.append(_entry(document, at, entry, models))
        elif not isinstance(name, str) or not name:
            warnings.append(f'{document.path}: {at}: has no "name" and applies to no node; add the node\'s name')
        elif _short(name) == _short(node):
            warnings.append(
                f"{document.path}: {at}.name: {name!r} is not the name of this node, {node!r}; use the full name"
            )
    return tuple(layers), tuple(warnings)


def _entry(document: Document, at: str, entry: Mapping[str, object], models: Models) -> Layer:
    values: dict[str, dict[str, object]] = {}
    places: dict[Keys, ValueLocation] = {}
    for key, value in entry.items():
        for vendor, model in models.items():
            target = model.node_config.get(key.lower())
            if target is not None and value is not None:
                values.setdefault(vendor, {}).update(nested(target, _lowered(value)))
                places["vendors", vendor, *target.split(".")] = ValueLocation(
                    where=str(document.path), path=f"{at}.{key}"
                )
    return Layer(name=str(document.path), values={"vendors": values}, places=places, lenient=True)


def _unknown_keys(document: Document, at: str, entry: Mapping[str, object], models: Models) -> Iterator[str]:
    known = {"name", *_UNUSED_KEYS, *(key for model in models.values() for key in model.node_config)}
    for key in entry:
        if key.lower() not in known:
            yield f"{document.path}: {at}.{key}: is not a known key and has no effect; {suggestion(key, known)}"


def _unused_sections(document: Document, content: Mapping[str, object], known: Collection[str]) -> Iterator[str]:
    for key in content:
        where = f"{document.path}:{document.lines.get((key,), 1)}: {key}"
        meant = nearest(str(key), list(known))
        if key in _PLUGIN_SECTIONS:
            yield f"{where}: is read only by HAMi's own plugin and has no effect here; use the vendor's section"
        elif meant and key not in known and meant not in content:
            yield f"{where}: is not a vendor here and has no effect; did you mean {meant}?"


def _lower(entry: Mapping[str, object]) -> Mapping[str, object]:
    return {key.lower(): value for key, value in entry.items()}


def _lowered(value: object) -> object:
    return _lower(value) if isinstance(value, Mapping) else value


def _short(name: str) -> str:
    return name.strip().lower().partition(".")[0]


def rename_helm_keys(
    layer: Layer, models: Mapping[str, type[VendorSettings]]
) -> tuple[Layer, Mapping[str, Sequence[str]]]:
    """The layer with Helm values renamed to the keys of each vendor's settings. Places of values are kept.

    Also problems by vendor, which count only if the vendor is served.
    """
    written: Any = layer.values.get("vendors", {})
    sections: dict[str, Mapping[str, object]] = dict(written)
    places: dict[Keys, ValueLocation] = dict(layer.places)
    problems: dict[str, list[str]] = {}
    not_scalar: list[str] = []
    for vendor in models.keys() & sections.keys():
        section = dict(sections[vendor])
        for name in [name for name in section if name not in fields(models[vendor])]:
            keys: Keys = ("vendors", vendor, name)
            key, place = models[vendor].helm.get(name), layer.place(keys)
            where = f"{place.where}: {place.path}"
            if key in section:
                problems.setdefault(vendor, []).append(
                    f"{where}: means the same as {key}, which is set too; remove one of them"
                )
                del section[name]
            elif key:
                section[key] = section.pop(name)
                places["vendors", vendor, key] = place
            elif name in models[vendor].fixed:
                value, fixed = section.pop(name), models[vendor].fixed[name]
                if isinstance(value, (Mapping, list)):
                    not_scalar.append(f"{where}: {shown(value)}: must be a single value; remove it")
                elif value != fixed.value(section) or isinstance(value, bool):
                    problems.setdefault(vendor, []).append(
                        f"{where}: {shown(value)}: cannot be set for this vendor, where {fixed.served}; remove it"
                    )
        sections[vendor] = section
    if not_scalar:
        raise ConfigError(not_scalar)
    if not written:
        return layer, {}
    return replace(layer, values={**layer.values, "vendors": sections}, places=places), problems
