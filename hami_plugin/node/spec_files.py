"""A family's CDI spec as files: described from the devices, written, and read back as a runtime would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cdi.directories import load
from cdi.documents import to_json
from cdi.edits import ContainerEdits
from cdi.errors import CdiError
from cdi.names import Kind
from cdi.registry import Registry
from cdi.spec import Spec
from cdi.store import Changes, Store
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles
from hami_plugin.host.plain_yaml import read_yaml
from hami_plugin.model.device import Device, Fault
from hami_plugin.policy.specs import Described, specification, unresolved
from hami_plugin.vendor import Family

PREFIX = "hami-plugin_"
MOST_BESIDE = 100
"""Problems of others' files that are told at once."""


def file_name(kind: str) -> str:
    """The spec file of a kind, as ``hami-plugin_hami.io-gpu.json``."""
    return f"{PREFIX}{kind.replace('/', '-')}.json"


def tidy(directory: Path, kinds: Iterable[str]) -> Changes:
    """Remove what an earlier daemon left: half-written files, and specs of kinds that are served no more."""
    store = Store(directory, PREFIX)
    store.clean()
    return Changes(removed=store.remove_others([file_name(kind) for kind in kinds]))


def describe(family: Family, devices: Sequence[Device], host: HostFiles) -> tuple[Spec, tuple[str, ...]]:
    """The spec of a family's devices, and what could not be described, in words."""
    node, problems = family.node, list[str]()
    if node.specification:
        try:
            return node.specification(devices, host), ()
        except HamiError as error:
            problems.append(str(error))
    found: list[Described] = []
    shared = ContainerEdits()
    try:
        shared = node.shared_edits(host)
    except (HamiError, OSError) as error:
        problems.append(str(error))
    for device in devices:
        try:
            edits, slices = node.device_edits(device, host), node.slices(device, host)
            if edits == ContainerEdits():
                problems.append(f"{device.uuid} adds nothing to a container: its device node is not known")
            else:
                found.append(Described(device=device, edits=edits, slices=slices))
        except (HamiError, OSError) as error:
            problems.append(str(error))
    return specification(Kind.parse(node.delivery.kind), found, shared), tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is wrong, by UUID of the device, and what could not be done, in words.

    ``beside`` are files of others that no runtime can use. They take nothing away from our devices.
    """

    faults: Mapping[str, Fault]
    trouble: str = ""
    beside: tuple[str, ...] = ()


class SpecFiles:
    """One family's spec in ``directories``, the last of which is written to. Every call touches the disk."""

    def __init__(self, family: Family, directories: Sequence[Path], host: HostFiles) -> None:
        self._family = family
        self._directories = directories
        self._host = host
        self._name = file_name(family.node.delivery.kind)
        self._store = Store(directories[-1], PREFIX)
        self._seen: object = None

    def publish(self, devices: Sequence[Device]) -> Verdict:
        """Make the disk describe ``devices``, and see what a runtime would find there."""
        spec, problems = describe(self._family, devices, self._host)
        trouble = "; ".join(problems)
        if spec.devices:
            try:
                self._store.write(self._name, to_json(spec, self._name))
            except CdiError as error:
                trouble = "; ".join((*problems, str(error)))
        self._seen = self._marks()
        found, own = self._load(), str(self._store.path(self._name))
        faults = unresolved(spec, own, devices, found)
        told = {u: replace(f, message=f"{f.message}; {trouble}") if trouble else f for u, f in faults.items()}
        beside = tuple(str(problem) for problem in found.problems if problem.file != own)
        return Verdict(faults=told, trouble=trouble, beside=beside[:MOST_BESIDE])

    def disturbed(self) -> bool:
        """Whether anybody has touched the directories since the last ``publish``."""
        return self._marks() != self._seen

    def _load(self) -> Registry:
        return load(self._directories, yaml=read_yaml)

    def _marks(self) -> object:
        """Every file's identity, size and times: cheap to ask, and different after any change."""
        return tuple(mark for directory in self._directories for mark in _marks_of(directory))


def _marks_of(directory: Path) -> Sequence[object]:
    try:
        files = [(entry.name, entry.lstat()) for entry in sorted(directory.iterdir())]
    except OSError as error:
        return (error.errno,)
    return [(name, f.st_ino, f.st_mode, f.st_size, f.st_mtime_ns, f.st_ctime_ns) for name, f in files]
