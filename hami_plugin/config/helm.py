"""The names that Helm values have for vendors' keys: taken for the keys that they mean, in our own file too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hami_plugin.config.documents import Keys
from hami_plugin.config.explain import shown
from hami_plugin.config.fields import fields
from hami_plugin.config.layers import Layer, Place
from hami_plugin.config.vendors import VendorSettings
from hami_plugin.errors import ConfigError


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
