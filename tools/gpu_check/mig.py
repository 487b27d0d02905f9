"""MIG: mode, profiles and placements against the table of the model, and the instances that there are.

Nothing is created, switched or destroyed, but by ``check_changes``, which is asked for by name: on a card that nobody
uses it makes every instance that there could be, and leaves the card as it was.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.sdk.partitions import NoRoomError, Partition, Placement, Profile
from tools.gpu_check.cards import Card
from tools.gpu_check.findings import Bench, Findings, Trees
from tools.gpu_check.library import Refused, Timings, ask, constant, loader, refused
from vendors.nvidia.host import read_capabilities
from vendors.nvidia.partitions import CHANGES, MigPartitions, profile_name
from vendors.nvidia.settings import NvidiaSettings

PROFILE_NUMBERS = 0x12
_FIELDS = {
    "id": "id",
    "memorySizeMB": "memory_mib",
    "sliceCount": "compute_slices",
    "instanceCount": "max_instances",
    "multiprocessorCount": "multiprocessors",
    "copyEngineCount": "copy_engines",
    "decoderCount": "decoders",
    "encoderCount": "encoders",
    "jpegCount": "jpegs",
    "ofaCount": "ofas",
}
"""The binding's name of each number of a profile, and the table's."""


def check_mig(card: Card) -> None:
    mode = ask("nvmlDeviceGetMigMode", card.handle)
    with card.about("MIG") as findings:
        is_mig = ask("nvmlDeviceIsMigDeviceHandle", card.handle)
        findings.equal("the card itself is no MIG device", 0, getattr(is_mig, "value", is_mig))
        card.supported("mode", "mig", mode)
        if isinstance(mode, list):
            _pending(card, mode)
        table = _table(card)
        if table is None:
            _without_mig(card, mode)
            return
        count = ask("nvmlDeviceGetMaxMigDeviceCount", card.handle)
        findings.equal("most MIG devices", table["compute_slices"], count)
        first = ask("nvmlDeviceGetMigDeviceHandleByIndex", card.handle, 0)
        if card.mig_on:
            findings.not_applicable("a MIG device's handle while MIG is off", "MIG is on")
        else:
            findings.equal("a MIG device's handle while MIG is off", refused(card.code("INVALID_ARGUMENT")), first)
        profiles = {row["number"]: row for row in table["profiles"]}
        for number in range(PROFILE_NUMBERS):
            _profile(card, number, profiles.get(number))


def _pending(card: Card, mode: Sequence[int]) -> None:
    if mode[0] == mode[1]:
        card.findings.equal("mode after a reset", mode[0], mode[1])
    else:
        card.findings.not_applicable(
            "mode after a reset", "somebody has changed it, and the card waits for a reset", mode
        )


def _table(card: Card) -> Mapping[str, Any] | None:
    """What a machine profile says of the model, else the table that names it."""
    tables = card.bench.claims.mig
    name = next((name for name in card.facts.get("mig", ()) if name), None)
    return tables[name] if name else next((one for one in tables.values() if card.model in one["models"]), None)


def _without_mig(card: Card, mode: object) -> None:
    if not card.facts and not isinstance(mode, Refused):
        card.findings.not_applicable("profiles", "the simulation has no table for this model", _seen(card))
        return
    info = ask("nvmlDeviceGetGpuInstanceProfileInfo", card.handle, 0)
    card.findings.equal("profiles", refused(card.code("NOT_SUPPORTED")), info)


def _seen(card: Card) -> dict[str, Any]:
    """Every profile of a card that no table describes: the table that could be written."""
    infos = {n: ask("nvmlDeviceGetGpuInstanceProfileInfo", card.handle, n) for n in range(PROFILE_NUMBERS)}
    return {
        str(n): {"name": _name(info), **_numbers(info), "placements": _placements(card, int(info.id))}
        for n, info in infos.items()
        if not isinstance(info, Refused)
    }


def _profile(card: Card, number: int, row: Mapping[str, Any] | None) -> None:
    """By NVML's number of the profile, which is not its id."""
    findings = card.findings
    info = ask("nvmlDeviceGetGpuInstanceProfileInfo", card.handle, number)
    if row is None:
        expected = refused(card.code("NOT_SUPPORTED"))
        observed = info if isinstance(info, Refused) else {"name": _name(info), **_numbers(info)}
        findings.equal(f"profile number {number}, which the table lacks", expected, observed)
        return
    name = f"profile {row['name']}"
    if isinstance(info, Refused):
        findings.judge(name, "an answer", info, same=False)
        return
    findings.equal(f"{name}: name", f"MIG {row['name']}", _name(info))
    whole = ask("nvmlDeviceGetMemoryInfo", card.handle)
    if not isinstance(whole, Refused):
        made = profile_name(number, int(info.sliceCount), int(info.memorySizeMB), int(whole.total))
        findings.equal(f"{name}: name for an older driver", row["name"], made)
    findings.equal(name, {field: row[key] for field, key in _FIELDS.items()}, _numbers(info))
    expected_places = [[start, row["size"]] for start in row["starts"]]
    findings.equal(f"{name}: placements", expected_places, _placements(card, int(info.id)))


def _numbers(info: Any) -> dict[str, int]:
    return {field: int(getattr(info, field)) for field in _FIELDS}


def _name(info: Any) -> str:
    return info.name.decode(errors="replace") if isinstance(info.name, bytes) else str(info.name)


def _placements(card: Card, profile_id: int) -> list[list[int]] | Refused:
    """Where instances of the profile may start, and their size, in memory slices. Asked twice, as NVML wants it."""
    ask_for, count = "nvmlDeviceGetGpuInstancePossiblePlacements", ctypes.c_uint(0)
    answer = ask(ask_for, card.handle, profile_id, None, ctypes.byref(count))
    if isinstance(answer, Refused):
        return answer
    places = (constant("c_nvmlGpuInstancePlacement_t") * count.value)()
    answer = ask(ask_for, card.handle, profile_id, places, ctypes.byref(count))
    if isinstance(answer, Refused):
        return answer
    return sorted([int(place.start), int(place.size)] for place in places[: count.value])


def partition_driver(settings: NvidiaSettings, trees: Trees, timings: Timings, *, changing: bool) -> MigPartitions:
    """The daemon's own, behind the glass."""
    host = HostFiles(paths=HostPaths(sysfs=trees.sysfs, proc=trees.proc, dev=trees.dev))
    return MigPartitions(settings, host, load=loader(timings, CHANGES if changing else ()))


def check_instances(card: Card, driver: MigPartitions) -> None:
    """The instances as the daemon lists them, against the MIG devices by index, the tables and the kernel's files."""
    uuid = ask("nvmlDeviceGetUUID", card.handle)
    with card.about("MIG instances") as findings:
        if not card.mig_on:
            findings.not_applicable("instances", "MIG is off, or the card has none")
            return
        try:
            listed = driver.partitions(str(uuid))
        except HamiError as error:
            if "NoPermission" in error.message:
                findings.not_done("instances", error.hint)
            else:
                findings.judge("instances", "a list", str(error), same=False)
            return
        whole = sorted([one.uuid, one.ids["gi"], one.ids["ci"]] for one in listed if one.uuid)
        findings.equal("MIG devices by index", whole, _by_index(card))
        places = sorted({one.placement for one in listed})
        clear = not any(one.overlaps(other) for one, other in pairwise(places))
        findings.judge("places", "none overlaps", [[one.start, one.size] for one in places], same=clear)
        for one in listed:
            _instance(card, one)


def _by_index(card: Card) -> list[list[Any]]:
    found = []
    for index in range(int(ask("nvmlDeviceGetMaxMigDeviceCount", card.handle))):
        device = ask("nvmlDeviceGetMigDeviceHandleByIndex", card.handle, index)
        if not isinstance(device, Refused):
            names = ("nvmlDeviceGetUUID", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId")
            found.append([ask(name, device) for name in names])
    return sorted(found)


def _instance(card: Card, one: Partition) -> None:
    findings, table = card.findings, _table(card)
    name = f"{one.profile} at {one.placement.start}"
    if table:
        findings.equal(f"{name}: number", _number(table, one.placement), one.ids["gi"])
    if "ci" not in one.ids:
        findings.not_applicable(name, "a GPU instance without a compute instance is no device")
        return
    minor, trees = ask("nvmlDeviceGetMinorNumber", card.handle), card.bench.trees
    nodes = read_capabilities(trees.proc).nodes(minor, one.ids["gi"], one.ids["ci"])
    missing = [node for node in nodes if not (trees.dev / node).exists()]
    findings.judge(f"{name}: nodes", "two, both there", missing or list(nodes), same=len(nodes) == 2 and not missing)


def _number(table: Mapping[str, Any], place: Placement) -> int:
    """Of a GPU instance: as in a tree, whose root is the whole card."""
    return int(table["memory_slices"]) // place.size - 1 + place.start // place.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """A card that nobody uses: its number, UUID and model."""

    index: int
    uuid: str
    model: str


def check_changes(bench: Bench, driver: MigPartitions, cards: Sequence[Idle]) -> None:
    """On the first of the cards that is idle: the mode, and every profile at every place."""
    findings = bench.findings
    with findings.about("MIG changes"):
        reasons = []
        for card in cards:
            mode = driver.mode(card.uuid)
            if mode.capable and not mode.problem:
                break
            reasons.append(f"card {card.index}: {mode.problem}")
        else:
            findings.not_done("changes", "; ".join(reasons) or "there is no card")
            return
    table = next((one for one in bench.claims.mig.values() if card.model in one["models"]), None)
    with findings.about("MIG changes", card.index), _in_mig_mode(findings, driver, card.uuid):
        trial = _Trial(findings=findings, driver=driver, card=card.uuid, table=table)
        for profile in driver.profiles(card.uuid):
            for place in profile.placements:
                trial.make(profile, place)


@contextmanager
def _in_mig_mode(findings: Findings, driver: MigPartitions, card: str) -> Iterator[None]:
    before = driver.mode(card).current
    if not before:
        driver.switch(card, on=True)
    try:
        yield
    finally:
        for left in driver.partitions(card):  # there was none before
            driver.destroy(left, _unheard)
        if not before:
            driver.switch(card, on=False)
        after = driver.mode(card)
        findings.equal("mode afterwards", [before, before], [after.current, after.pending])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """Instances on one card, which has none else."""

    findings: Findings
    driver: MigPartitions
    card: str
    table: Mapping[str, Any] | None

    def make(self, profile: Profile, place: Placement) -> None:
        """One instance's whole life, and its successor's."""
        name = f"{profile.name} at {place.start}"
        try:
            self._live(name, profile.name, place)
        except HamiError as error:
            self.findings.judge(name, "made and destroyed", str(error), same=False)
            for left in self._listed():
                self.driver.destroy(left, _unheard)

    def _live(self, name: str, profile: str, place: Placement) -> None:
        findings = self.findings
        first = self.driver.create(self.card, profile, place, _unheard)
        findings.equal(f"{name}: listed as it was made", [str(first)], [str(one) for one in self._listed()])
        if self.table:
            findings.equal(f"{name}: number", _number(self.table, place), first.ids["gi"])
        findings.equal(f"{name}: the same once more", NoRoomError.__name__, self._refusal(profile, place))
        self.driver.destroy(first, _unheard)
        findings.equal(f"{name}: listed when it is gone", [], [str(one) for one in self._listed()])
        second = self.driver.create(self.card, profile, place, _unheard)
        findings.judge(f"{name}: made anew", "another UUID", second.uuid, same=second.uuid != first.uuid)
        self.driver.destroy(second, _unheard)

    def _listed(self) -> Sequence[Partition]:
        return self.driver.partitions(self.card)

    def _refusal(self, profile: str, place: Placement) -> str:
        try:
            self.driver.create(self.card, profile, place, _unheard)
        except HamiError as error:
            return type(error).__name__
        return "made twice"


def _unheard(_ids: Mapping[str, int]) -> None:
    """What is left after a failure is found by listing: the card had nothing else."""
