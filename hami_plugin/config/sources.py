"""The three files as layers. What is wrong with one is noted, and the next one is read all the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hami_plugin.config import hami, helm
from hami_plugin.config.documents import Document, Keys, read_json, read_yaml, section
from hami_plugin.config.files import MissingFileError
from hami_plugin.config.layers import Layer, Place, dotted
from hami_plugin.errors import ConfigError


@dataclass(slots=True)
class Findings:
    """What one load has found so far: problems, warnings, and the files that were read."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    of_vendors: dict[str, list[str]] = field(default_factory=dict)
    """Problems of a vendor's section that are none where the vendor is disabled."""

    def layers(
        self,
        path: Path | None,
        read: Callable[[Path], Document],
        interpret: Callable[[Document], hami.Reading],
        *,
        optional: bool = False,
    ) -> tuple[Layer, ...] | None:
        """What ``interpret`` makes of the file; None after noting that it is no use. No path gives no layers."""
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


def own_file(findings: Findings, path: Path | None, models: hami.Models) -> tuple[Layer, ...] | None:
    """Our own file: strict, and must be there when it is named."""
    return findings.layers(path, read_yaml, lambda document: _own(findings, document, models))


def device_config(findings: Findings, path: Path | None, models: hami.Models) -> tuple[Layer, ...]:
    """HAMi's ``device-config.yaml``: must be there when it is named."""
    return findings.layers(path, read_yaml, lambda document: hami.device_config(document, models)) or ()


def node_config(findings: Findings, path: Path | None, models: hami.Models, node: str) -> tuple[Layer, ...]:
    """HAMi's ``config.json``. Not every cluster has one, so a warning is enough when it is not there."""
    return (
        findings.layers(path, read_json, lambda document: hami.node_config(document, models, node), optional=True) or ()
    )


def _own(findings: Findings, document: Document, models: hami.Models) -> hami.Reading:
    value = section(document, (), document.value)
    places: dict[Keys, Place] = {
        keys: Place(where=f"{document.path}:{line}", path=dotted(keys)) for keys, line in document.lines.items() if keys
    }
    layer = Layer(name=str(document.path), values=_with_empty_sections(document, value), places=places)
    respelt, problems = helm.respelt(layer, models)
    for vendor, found in problems.items():
        findings.of_vendors.setdefault(vendor, []).extend(found)
    return (respelt,), ()


def _with_empty_sections(document: Document, values: Mapping[str, object]) -> Mapping[str, object]:
    """``vendors:`` or a vendor's name with nothing after it is a section without keys."""
    vendors = section(document, ("vendors",), values.get("vendors"))
    sections = {name: section(document, ("vendors", name), value) for name, value in vendors.items()}
    return {**values, "vendors": sections}
