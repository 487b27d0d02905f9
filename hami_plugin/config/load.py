"""Files, environment and flags become one validated configuration, or one error with every problem.

From the lowest precedence: defaults, HAMi's device-config.yaml and per-node config.json, our file, environment, flags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from hami_plugin.config import hami
from hami_plugin.config.documents import Document, Keys, MissingFileError, read_json, read_yaml, section
from hami_plugin.config.explain import ConfigurationProblem, explain, field_at, takes_list, unknown_key
from hami_plugin.config.hami import Models
from hami_plugin.config.layers import Layer, Layers, ValueLocation, dotted, nested, without_none
from hami_plugin.config.settings import Settings
from hami_plugin.config.vendors import VendorSettings
from hami_plugin.errors import ConfigError, HamiError

HAMI_DEVICE_CONFIG = Path("/device-config.yaml")


@dataclass(slots=True)
class Findings:
    """Problems, warnings and read files of one load so far."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    vendor_problems: dict[str, list[str]] = field(default_factory=dict)
    """Problems of vendors' sections, ignored where the vendor is disabled."""

    def layers(
        self,
        path: Path | None,
        read: Callable[[Path], Document],
        interpret: Callable[[Document], hami.Reading],
        *,
        optional: bool = False,
    ) -> tuple[Layer, ...] | None:
        """The layers that ``interpret`` makes of the file; None after recording its problem. No path: no layers."""
        if path is None:
            return ()
        try:
            document = read(path)
            layers, warnings = interpret(document)
        except MissingFileError as missing:
            (self.warnings if optional else self.problems).extend(missing.problems)
            return None
        except ConfigError as error:
            self.problems += error.problems
            return None
        self.files.append(str(path))
        self.warnings += warnings
        return layers


def read_own_file(findings: Findings, path: Path | None, models: hami.Models) -> tuple[Layer, ...] | None:
    """Our own file: strict, and it must exist if it is named."""
    return findings.layers(path, read_yaml, lambda document: _own(findings, document, models))


def read_device_config(findings: Findings, path: Path | None, models: hami.Models) -> tuple[Layer, ...]:
    """HAMi's ``device-config.yaml``: it must exist if it is named."""
    return findings.layers(path, read_yaml, lambda document: hami.device_config(document, models)) or ()


def read_node_config(findings: Findings, path: Path | None, models: hami.Models, node: str) -> tuple[Layer, ...]:
    """HAMi's ``config.json``. Not every cluster has one, so a missing file is a warning."""
    return (
        findings.layers(path, read_json, lambda document: hami.node_config(document, models, node), optional=True) or ()
    )


def _own(findings: Findings, document: Document, models: hami.Models) -> hami.Reading:
    value = section(document, (), document.value)
    places: dict[Keys, ValueLocation] = {
        keys: ValueLocation(where=f"{document.path}:{line}", path=dotted(keys))
        for keys, line in document.lines.items()
        if keys
    }
    layer = Layer(name=str(document.path), values=_with_empty_sections(document, value), places=places)
    rename_helm_keys, problems = hami.rename_helm_keys(layer, models)
    for vendor, found in problems.items():
        findings.vendor_problems.setdefault(vendor, []).extend(found)
    return (rename_helm_keys,), ()


def _with_empty_sections(document: Document, values: Mapping[str, object]) -> Mapping[str, object]:
    """``vendors:`` or a vendor's name without a value is an empty section."""
    vendors = section(document, ("vendors",), values.get("vendors"))
    sections = {name: section(document, ("vendors", name), value) for name, value in vendors.items()}
    return {**values, "vendors": sections}


# HAMi parses these and ignores them; whoever sets one expects an effect.
_DEAD = {
    "DEVICE_SPLIT_COUNT": "deviceSplitCount",
    "DEVICE_MEMORY_SCALING": "deviceMemoryScaling",
    "DEVICE_CORES_SCALING": "deviceCoreScaling",
    "DISABLE_CORE_LIMIT": "disableCoreLimit",
}


def environment_layers(environment: Mapping[str, str], models: Models) -> Iterator[Layer]:
    """One layer for each declared variable that is set and not empty. Lists are comma-separated."""
    yield from _declared(environment, Settings, Settings.environment, ())
    for vendor, model in models.items():
        yield from _declared(environment, model, model.environment, ("vendors", vendor))


def environment_warnings(environment: Mapping[str, str], models: Models) -> Iterator[str]:
    """Warnings for variables of HAMi that are set and have no effect."""
    read = {name for model in models.values() for name in model.environment}
    for name, key in _DEAD.items():
        if environment.get(name) and name not in read:
            yield f"environment: {name}: has no effect, in HAMi neither; set {key} in the device configuration"


def _declared(
    environment: Mapping[str, str], model: type[BaseModel], declared: Mapping[str, str], prefix: Keys
) -> Iterator[Layer]:
    for name, path in declared.items():
        text = environment.get(name, "").strip()
        if not text:
            continue
        target: Keys = tuple(path.split("."))
        field = field_at(model, target)
        value: object = text
        if field and takes_list(field):
            value = [part.strip() for part in text.split(",") if part.strip()]
        keys = (*prefix, *target)
        yield Layer(
            name="environment",
            values=nested(".".join(str(key) for key in keys), value),
            places={keys: ValueLocation(where="environment", path=name)},
        )


_PLACE = re.compile(r"([^:]*)(?::(\d{1,9}))?:")
"""The beginning of a problem: a file and, if known, a line."""

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What the daemon runs with. ``sections`` has every vendor; ``sources`` the files that were read."""

    settings: Settings
    sections: Mapping[str, VendorSettings]
    sources: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def effective(self) -> dict[str, object]:
        """Every key with its effective value, spelt as in the file, in JSON's types."""
        vendors = {name: section.model_dump(mode="json", by_alias=True) for name, section in self.sections.items()}
        return self.settings.model_dump(mode="json", by_alias=True) | {"vendors": vendors}

    @property
    def vendors(self) -> Mapping[str, VendorSettings]:
        """The sections of vendors that are not disabled."""
        return {name: section for name, section in self.sections.items() if section.enabled is not False}


def load(
    *,
    config: Path | None,
    device_config: Path | None,
    node_config: Path | None,
    overrides: Mapping[str, object],
    environment: Mapping[str, str],
    vendor_settings: Callable[[str], type[VendorSettings]],
    vendor_names: Sequence[str],
) -> Configuration:
    """Read and validate everything. ``overrides`` are spelt like the file; None means that the flag is not set.

    Every vendor of ``vendor_names`` is included unless its section has ``enabled: false``. ``ConfigError`` has one line
    for each problem.
    """
    findings = Findings()
    models = _models(findings, vendor_settings, vendor_names)
    own = read_own_file(findings, config, models)
    flags = Layer(name="command line", values=_given(overrides))
    upper = (*(own or ()), *environment_layers(environment, models), flags)
    findings.warnings += environment_warnings(environment, models)
    node = Layers(upper).at(("nodeName",))
    lower = (
        *read_device_config(findings, device_config, models),
        *read_node_config(findings, node_config, models, node if isinstance(node, str) else ""),
    )
    settings, vendors = _validated(
        findings, Layers((*lower, *upper)), models, names=vendor_names, complete=own is not None
    )
    if findings.problems or settings is None:
        raise ConfigError(in_order(findings.problems))
    return Configuration(
        settings=settings,
        sections=vendors,
        sources=tuple(findings.files),
        warnings=in_order(findings.warnings),
    )


def in_order(lines: Iterable[str]) -> tuple[str, ...]:
    """Sorted by file and line, without duplicates, so that the same mistakes always give the same output."""

    def place(line: str) -> tuple[str, int, str]:
        found = _PLACE.match(line)
        return (found[1], int(found[2] or 0), line) if found else ("", 0, line)

    return tuple(sorted(set(lines), key=place))


def _models(findings: Findings, vendor_settings: Callable[[str], type[VendorSettings]], names: Sequence[str]) -> Models:
    models: dict[str, type[VendorSettings]] = {}
    for name in names:
        try:
            models[name] = vendor_settings(name)
        except HamiError as error:
            findings.problems.append(f"configuration: vendors.{name}: {error}")
    return models


def _validated(
    findings: Findings, layers: Layers, models: Models, *, names: Sequence[str], complete: bool
) -> tuple[Settings | None, Mapping[str, VendorSettings]]:
    """``complete`` is False if our own file could not be read: then missing keys are not reported."""
    own = {key: value for key, value in layers.values.items() if key != "vendors"}
    settings = _checked(findings, Settings, layers, (), value=own, complete=complete)
    written = layers.at(("vendors",))
    unknown = [name for name in written if name not in names] if isinstance(written, Mapping) else []
    findings.problems += [unknown_key(("vendors", name), names, layers) for name in unknown]
    checked = {name: _section(findings, name, model, layers) for name, model in models.items()}
    vendors = {name: section for name, section in checked.items() if section is not None}
    return settings, vendors


def _section(findings: Findings, name: str, model: type[VendorSettings], layers: Layers) -> VendorSettings | None:
    """A vendor's section. Of a disabled vendor only keys and types are checked, not the range of values.

    Defaults need no check, so pydantic builds no validator for a vendor without a section.
    """
    keys = ("vendors", name)
    if layers.at(keys) in (None, {}):
        findings.problems += findings.vendor_problems.get(name, ())
        return model.model_construct()
    if layers.at((*keys, "enabled")) is not False:
        findings.problems += findings.vendor_problems.get(name, ())
        return _checked(findings, model, layers, keys)
    found = Findings()
    section = _checked(found, model, layers, keys, shape=True)
    findings.problems += found.problems
    findings.warnings += found.warnings
    return section or model.model_validate({"enabled": False}, by_alias=True, by_name=False)


def _checked(
    findings: Findings,
    model: type[_Model],
    layers: Layers,
    keys: Keys,
    *,
    value: object | None = None,
    complete: bool = True,
    shape: bool = False,
) -> _Model | None:
    """The section at ``keys``; None after recording its problems. Unknown keys of HAMi's files are dropped first.

    ``shape``: values that are out of range or missing are not problems.
    """
    given = layers.at(keys) if value is None else value
    try:
        return model.model_validate({} if given is None else given, by_alias=True, by_name=False)
    except ValidationError as error:
        problems = list(explain(error, model, layers, keys))
    ignored = [problem for problem in problems if _lenient(layers, problem)]
    for problem in ignored:
        findings.warnings.append(problem.text)
        layers.drop(problem.keys)
    if ignored:
        return _checked(findings, model, layers, keys, value=value, complete=complete, shape=shape)
    noted = [problem for problem in problems if complete or not problem.missing]
    findings.problems += [problem.text for problem in noted if problem.shape or not shape]
    return None


def _lenient(layers: Layers, problem: ConfigurationProblem) -> bool:
    source = layers.source(problem.keys)
    return problem.unknown and source is not None and source.lenient


def _given(overrides: Mapping[str, object]) -> Mapping[str, object]:
    given = without_none(overrides)
    assert isinstance(given, Mapping)
    return given
