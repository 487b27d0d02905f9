"""Which family a question is about, with the settings that it implies."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from hami_plugin.errors import HamiError
from hami_plugin.sdk import Family, Vendor, load_vendor, vendor_names
from tests.hami.parity import Json, Parity


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A family as a question finds it."""

    vendor: str
    family: Family
    parity: Parity


class Catalog:
    """All vendors, each looked up by HAMi's word for its families."""

    def __init__(self) -> None:
        self._vendors = {name: load_vendor(name) for name in vendor_names()}
        self._parities = {name: parity_of(name) for name in self._vendors}
        self._words = {
            family.resources.device_type: name
            for name, vendor in self._vendors.items()
            for family in _families(vendor, {})
        }
        self._found: dict[tuple[str, str], Family] = {}
        self._sections: dict[tuple[str, str], Mapping[str, Any]] = {}

    @property
    def parities(self) -> tuple[Parity, ...]:
        return tuple(self._parities.values())

    def words(self, vendor: str | None = None) -> tuple[str, ...]:
        """HAMi's words for all families, or for one vendor's."""
        return tuple(device_type for device_type, name in self._words.items() if vendor in (None, name))

    def all(self, question: Json) -> Mapping[str, Known]:
        """Every family by word, under the question's configuration. HamiError when the one it is about is missing."""
        self.find(question)
        return {device_type: self.find({**question, "vendor": device_type}) for device_type in self._words}

    def find(self, question: Json) -> Known:
        """The family that ``vendor`` names, under the question's configuration. HamiError when there is none."""
        device_type = question["vendor"]
        if device_type not in self._words:
            raise HamiError(f"no vendor here has a family {device_type!r}", hint=f"known: {', '.join(self._words)}")
        name = self._words[device_type]
        parity = self._parities[name]
        settings = {**self._section(question.get("config") or "", name), **parity.settings(question)}
        key = (device_type, repr(sorted(settings.items(), key=lambda item: item[0])))
        if key not in self._found:
            families = _families(self._vendors[name], settings)
            self._found[key] = next(family for family in families if family.resources.device_type == device_type)
        return Known(vendor=name, family=self._found[key], parity=parity)

    def _section(self, config: str, name: str) -> Mapping[str, Any]:
        """The vendor's section of a device-config.yaml: few are recorded, and many questions have each."""
        if (config, name) not in self._sections:
            self._sections[config, name] = _section(config, name, self._vendors[name])
        return self._sections[config, name]


def parity_of(vendor: str) -> Parity:
    """The vendor's part in the comparison, from the module of its name in ``tests.hami.vendors``, if there is one."""
    try:
        module = importlib.import_module(f"tests.hami.vendors.{vendor}")
    except ModuleNotFoundError as error:
        if error.name != f"tests.hami.vendors.{vendor}":
            raise
        return Parity()
    found: Parity = module.parity()
    return found


def _families(vendor: Vendor, settings: Json) -> tuple[Family, ...]:
    return vendor.families(vendor.settings.model_validate(settings, by_alias=True))


def _section(config: str, name: str, vendor: Vendor) -> Mapping[str, Any]:
    """The vendor's section of a device-config.yaml, without keys that we do not read."""
    key = vendor.settings.hami_section or name
    content = yaml.safe_load(config) if config else {}
    section = vendor.settings.keyed(content.get(key, {}))
    keys = {field.alias or own for own, field in vendor.settings.model_fields.items()}
    return {key: value for key, value in section.items() if key in keys} if isinstance(section, Mapping) else {}
