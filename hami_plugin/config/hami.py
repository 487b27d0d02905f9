"""HAMi's two files as layers: ``device-config.yaml`` for the cluster, ``config.json`` for single nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hami_plugin.config.documents import Document, Keys, section
from hami_plugin.config.explain import fields, nearest, shown, suggestion
from hami_plugin.config.layers import Layer, Place, dotted, nested, without_nothing
from hami_plugin.config.vendors import VendorSettings
from hami_plugin.errors import ConfigError

Models = Mapping[str, type[VendorSettings]]
Reading = tuple[tuple[Layer, ...], tuple[str, ...]]
"""The layers that a file makes, and warnings about what in it looks meant and has no effect."""

# HAMi's own plugin reads the same file a second time, for these. Here they would change nothing.
_SECOND_READING = ("flags", "sharing", "imex", "resources")

# In HAMi's sample of an entry. It never uses the first; what the second switches on is always on here.
_IDLE = ("migstrategy", "enablegetpreferredallocation")


def device_config(document: Document, models: Models) -> Reading:
    """The sections of ``device-config.yaml`` that are the names of vendors here.

    Sections of vendors that this daemon does not serve are HAMi's business. A key without a value says nothing.
    """
    content = section(document, (), document.value)
    vendors = {model.hami_section or name: name for name, model in models.items()}
    found = [(key, name) for key, name in vendors.items() if key in content]
    sections = {name: section(document, (key,), models[name].keyed(content[key])) for key, name in found}
    places: dict[Keys, Place] = {}
    for keys, line in document.lines.items():
        if keys and vendors.get(str(keys[0])) in sections:
            place = Place(where=f"{document.path}:{line}", path=dotted(keys))
            name = vendors[str(keys[0])]
            listed = (models[name].hami_list,) if len(keys) > 1 and isinstance(keys[1], int) else ()
            places["vendors", name, *listed, *keys[1:]] = place
    layer = Layer(
        name=str(document.path),
        values={"vendors": {name: without_nothing(values) for name, values in sections.items()}},
        places=places,
        lenient=True,
    )
    return (layer,), tuple(_odd_sections(document, content, vendors))


def node_config(document: Document, models: Models, node: str) -> Reading:
    """One layer for each entry of ``config.json`` that is named like this node, in order: a later one wins.

    HAMi merges in a way that cannot set 0, false or an empty list; here what is written counts. Keys are matched
    whatever their case, as Go does.
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
            warnings.append(f'{document.path}: {at}: has no "name" and serves no node; add the node\'s name')
        elif _short(name) == _short(node):
            warnings.append(f"{document.path}: {at}.name: {name!r} is not this node, {node!r}; names must be equal")
    return tuple(layers), tuple(warnings)


def _entry(document: Document, at: str, entry: Mapping[str, object], models: Models) -> Layer:
    values: dict[str, dict[str, object]] = {}
    places: dict[Keys, Place] = {}
    for key, value in entry.items():
        for vendor, model in models.items():
            target = model.node_config.get(key.lower())
            if target is not None and value is not None:
                values.setdefault(vendor, {}).update(nested(target, _lowered(value)))
                places["vendors", vendor, *target.split(".")] = Place(where=str(document.path), path=f"{at}.{key}")
    return Layer(name=str(document.path), values={"vendors": values}, places=places, lenient=True)


def _unknown_keys(document: Document, at: str, entry: Mapping[str, object], models: Models) -> Iterator[str]:
    known = {"name", *_IDLE, *(key for model in models.values() for key in model.node_config)}
    for key in entry:
        if key.lower() not in known:
            yield f"{document.path}: {at}.{key}: is not a known key and has no effect; {suggestion(key, known)}"


def _odd_sections(document: Document, content: Mapping[str, object], known: Collection[str]) -> Iterator[str]:
    for key in content:
        where = f"{document.path}:{document.lines.get((key,), 1)}: {key}"
        meant = nearest(str(key), list(known))
        if key in _SECOND_READING:
            yield f"{where}: is read by HAMi's own plugin only and has no effect here; use the vendor's section"
        elif meant and key not in known and meant not in content:
            yield f"{where}: is not a vendor here and has no effect; did you mean {meant}?"


def _lower(entry: Mapping[str, object]) -> Mapping[str, object]:
    return {key.lower(): value for key, value in entry.items()}


def _lowered(value: object) -> object:
    return _lower(value) if isinstance(value, Mapping) else value


def _short(name: str) -> str:
    return name.strip().lower().partition(".")[0]


def respelt(layer: Layer, models: Mapping[str, type[VendorSettings]]) -> tuple[Layer, Mapping[str, Sequence[str]]]:
    """The layer with each vendor's keys as its settings have them. Where a value was written is still known.

    Beside it, by vendor, what cannot be so where the vendor is served.
    """
    written: Any = layer.values.get("vendors", {})
    sections: dict[str, Mapping[str, object]] = dict(written)
    places: dict[Keys, Place] = dict(layer.places)
    problems: dict[str, list[str]] = {}
    shapeless: list[str] = []
    for vendor in models.keys() & sections.keys():
        section = dict(sections[vendor])
        for name in [name for name in section if name not in fields(models[vendor])]:
            keys: Keys = ("vendors", vendor, name)
            key, place = models[vendor].helm.get(name), layer.place(keys)
            where = f"{place.where}: {place.path}"
            if key in section:
                problems.setdefault(vendor, []).append(
                    f"{where}: means the same as {key}, which is there too; leave one of them out"
                )
                del section[name]
            elif key:
                section[key] = section.pop(name)
                places["vendors", vendor, key] = place
            elif name in models[vendor].fixed:
                value, fixed = section.pop(name), models[vendor].fixed[name]
                if isinstance(value, (Mapping, list)):
                    shapeless.append(f"{where}: {shown(value)}: must be one value; leave it out")
                elif value != fixed.value(section) or isinstance(value, bool):
                    problems.setdefault(vendor, []).append(
                        f"{where}: {shown(value)}: cannot be set for this vendor, where {fixed.served}; leave it out"
                    )
        sections[vendor] = section
    if shapeless:
        raise ConfigError(shapeless)
    if not written:
        return layer, {}
    return replace(layer, values={**layer.values, "vendors": sections}, places=places), problems
