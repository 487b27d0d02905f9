"""The bill of materials: Debian's packages and Python's distributions in a folder, as CycloneDX JSON."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.parser import HeaderParser
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tools.debian.tree import STATUS

Component = dict[str, object]
FORMAT: Final = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
LONGEST: Final = 100
"""Characters of a licence's name. What is longer is its text."""


def document(name: str, version: str, components: Iterable[Component], epoch: int) -> str:
    """Return the bill of an image, the same text for the same components."""
    listed = sorted(components, key=lambda one: str(one["purl"]))
    subject = {"type": "container", "bom-ref": f"{name}@{version}", "name": name, "version": version}
    content = json.dumps([subject, listed], sort_keys=True)
    bill = {
        **FORMAT,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content)}",
        "metadata": {"timestamp": datetime.fromtimestamp(epoch, UTC).isoformat(), "component": subject},
        "components": listed,
    }
    return json.dumps(bill, indent=1) + "\n"


def of_debian(root: Path) -> Iterator[Component]:
    """Yield the packages that were unpacked into a root file system."""
    release = dict(line.split("=", 1) for line in (root / "etc/os-release").read_text().splitlines())
    distro = f"{release['ID']}-{release['VERSION_ID'].strip(chr(34))}"
    for file in sorted((root / STATUS).iterdir()):
        control = HeaderParser().parsestr(file.read_text())
        place = f"{control['Package']}@{quote(control['Version'])}?arch={control['Architecture']}&distro={distro}"
        yield _component(f"pkg:deb/debian/{place}", control["Package"], control["Version"])


def of_python(site: Path) -> Iterator[Component]:
    """Yield the distributions that were installed into a folder."""
    for one in distributions(path=[str(site)]):
        licence = _licence(one)
        purl = f"pkg:pypi/{one.name.lower().replace('_', '-')}@{quote(one.version)}"
        yield {**_component(purl, one.name, one.version), **({"licenses": [licence]} if licence else {})}


def _component(purl: str, name: str, version: str) -> Component:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _licence(one: Distribution) -> dict[str, object] | None:
    """Return what the distribution says of its licence: an expression, a name, or the names of its classifiers."""

    def told(field: str) -> list[str]:
        return [text.strip() for text in one.metadata.get_all(field) or [] if text.strip()]

    for expression in told("License-Expression"):
        return {"expression": expression}
    short = [name for name in told("License") if len(name) <= LONGEST]
    listed = [text.rpartition(" :: ")[2] for text in told("Classifier") if text.startswith("License :: ")]
    name = " and ".join(short or listed)
    return {"license": {"name": name}} if name else None
