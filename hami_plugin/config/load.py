"""Files, environment and flags become one checked configuration, or one error that lists everything wrong.

From the weakest: defaults, HAMi's device-config.yaml, HAMi's per-node config.json, our file, environment, flags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from hami_plugin.config import sources
from hami_plugin.config.documents import Keys
from hami_plugin.config.environment import environment_layers, environment_warnings
from hami_plugin.config.explain import Problem, explain, unknown_key
from hami_plugin.config.hami import Models
from hami_plugin.config.layers import Layer, Layers, without_nothing
from hami_plugin.config.settings import Settings
from hami_plugin.config.sources import Findings
from hami_plugin.config.vendors import VendorSettings
from hami_plugin.errors import ConfigError, HamiError

_PLACE = re.compile(r"([^:]*)(?::(\d{1,9}))?:")
"""How a line begins: with a file and, where that is known, a line of it."""

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What the daemon runs with. ``vendors`` are those not disabled; ``sources`` the files that were read."""

    settings: Settings
    vendors: Mapping[str, VendorSettings]
    sources: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def effective(self) -> dict[str, object]:
        """Every key with the value in force, spelt as in the file, in JSON's types."""
        return self.settings.model_dump(mode="json", by_alias=True)


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
    """Read and check everything. ``overrides`` are spelt like the file; None in them means that nobody set the flag.

    Each vendor in ``vendor_names`` is in it unless its section says ``enabled: false``. ``ConfigError`` holds one line
    for each problem.
    """
    findings = Findings()
    models = _models(findings, vendor_settings, vendor_names)
    own = sources.own_file(findings, config, models)
    flags = Layer(name="command line", values=_given(overrides))
    upper = (*(own or ()), *environment_layers(environment, models), flags)
    findings.warnings += environment_warnings(environment, models)
    node = Layers(upper).at(("nodeName",))
    lower = (
        *sources.device_config(findings, device_config, models),
        *sources.node_config(findings, node_config, models, node if isinstance(node, str) else ""),
    )
    settings, vendors = _validated(
        findings, Layers((*lower, *upper)), models, names=vendor_names, complete=own is not None
    )
    if findings.problems or settings is None:
        raise ConfigError(in_order(findings.problems))
    return Configuration(
        settings=settings,
        vendors={name: section for name, section in vendors.items() if section.enabled is not False},
        sources=tuple(findings.files),
        warnings=in_order(findings.warnings),
    )


def in_order(lines: Iterable[str]) -> tuple[str, ...]:
    """By file and line, each once: two runs with the same mistakes say the same, whatever order they were found in."""

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
    """``complete`` is False when our own file could not be read: then nobody knows what is missing."""
    own = {key: value for key, value in layers.values.items() if key != "vendors"}
    settings = _checked(findings, Settings, layers, (), value=own, complete=complete)
    written = layers.at(("vendors",))
    unknown = [name for name in written if name not in names] if isinstance(written, Mapping) else []
    findings.problems += [unknown_key(("vendors", name), names, layers) for name in unknown]
    checked = {name: _section(findings, name, model, layers) for name, model in models.items()}
    vendors = {name: section for name, section in checked.items() if section is not None}
    if settings is not None:
        shown = {name: section.model_dump(mode="json", by_alias=True) for name, section in vendors.items()}
        settings = settings.model_copy(update={"vendors": shown})
    return settings, vendors


def _section(findings: Findings, name: str, model: type[VendorSettings], layers: Layers) -> VendorSettings | None:
    """A vendor's section. Of one that is disabled only the shape is looked at: its keys, and what kind of value each
    has. Nobody would serve the values.
    """
    keys = ("vendors", name)
    if layers.at((*keys, "enabled")) is not False:
        findings.problems += findings.of_vendors.get(name, ())
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
    """The section at ``keys``; None after noting what is wrong. Unknown keys of HAMi's files are left out first.

    ``shape``: a value out of its range is not noted, nor one that is missing.
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


def _lenient(layers: Layers, problem: Problem) -> bool:
    source = layers.source(problem.keys)
    return problem.unknown and source is not None and source.lenient


def _given(overrides: Mapping[str, object]) -> Mapping[str, object]:
    given = without_nothing(overrides)
    assert isinstance(given, Mapping)
    return given
