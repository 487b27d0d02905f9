"""All checks in their order. Each group has a boundary round it: one that breaks is a difference, the rest go on."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from hami_plugin.errors import DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from tools.gpu_check import cards, layout, links, mig
from tools.gpu_check.claims import load
from tools.gpu_check.daemon import check_discovery, check_kubelet, look
from tools.gpu_check.findings import Bench, Findings, Trees
from tools.gpu_check.library import Timings, ask, loader
from tools.gpu_check.report import Outcome
from vendors.nvidia.driver import library_places
from vendors.nvidia.nvml import NoLibraryError, Nvml, NvmlError
from vendors.nvidia.partitions import MigPartitions
from vendors.nvidia.settings import NvidiaSettings

OF_A_CARD = (
    cards.check_identity,
    cards.check_model,
    cards.check_memory,
    cards.check_place,
    layout.check_types,
    links.check_links,
    cards.check_health,
    cards.check_processes,
    mig.check_mig,
)


def run(settings: NvidiaSettings, trees: Trees, *, mutate: bool = False) -> Outcome:
    """Everything there is to find out about this machine. ``mutate``: also what only a change shows."""
    findings, timings = Findings(), Timings()
    outcome = Outcome(findings=findings, timings=timings)
    bench = Bench(findings=findings, claims=load(), trees=trees)
    _guarded(findings, "binding", lambda: layout.check_binding(bench))
    paths = HostPaths(sysfs=trees.sysfs, proc=trees.proc, dev=trees.dev)
    try:
        outcome.look = look(settings, paths, timings)
    except DriverUnavailableError as error:
        outcome.unavailable = error
        return outcome
    _guarded(findings, "library", lambda: _with_library(bench, outcome, settings, timings))
    _guarded(findings, "kubelet", lambda: _kubelet(outcome))
    if mutate:
        driver = mig.partition_driver(settings, trees, timings, changing=True)
        devices = outcome.look.snapshot.devices
        idle = [mig.Idle(index=one.index, uuid=one.uuid, model=one.model) for one in devices]
        _guarded(findings, "changes", lambda: mig.check_changes(bench, driver, idle))
    return outcome


def _with_library(bench: Bench, outcome: Outcome, settings: NvidiaSettings, timings: Timings) -> None:
    """A session of our own, so that the binding's answers are seen as they are."""
    nvml = Nvml(library_places(settings), load=loader(timings))
    try:
        nvml.open()
        _inspect(bench, outcome, mig.partition_driver(settings, bench.trees, timings, changing=False))
    except (NvmlError, NoLibraryError) as error:
        with bench.findings.about("session"):
            bench.findings.judge("a second session", "as the first", str(error), same=False)
    finally:
        nvml.close()


def _inspect(bench: Bench, outcome: Outcome, driver: MigPartitions) -> None:
    findings = bench.findings
    for group in (layout.check_library, cards.check_versions, cards.check_refusals, layout.check_system_types):
        _guarded(findings, group.__name__, lambda group=group: group(bench))  # type: ignore[misc]  # bound at once
    found = cards.cards(bench)
    for card in found:
        for check in OF_A_CARD:
            _guarded(findings, f"{check.__name__} of card {card.index}", lambda check=check, card=card: check(card))  # type: ignore[misc]  # as above
        _guarded(findings, f"instances of card {card.index}", lambda card=card: mig.check_instances(card, driver))  # type: ignore[misc]  # as above
    _guarded(findings, "topology", lambda: links.check_levels(bench, found))
    _guarded(findings, "events", lambda: cards.check_events(bench, found))
    if outcome.look:
        check_discovery(findings, outcome.look, ask("nvmlDeviceGetCount"))
    _guarded(findings, "shutdown", lambda: cards.check_after_shutdown(bench))


def _kubelet(outcome: Outcome) -> None:
    assert outcome.look is not None
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        seen = outcome.look
        outcome.kubelet_ms = asyncio.run(check_kubelet(outcome.findings, seen.family, seen.snapshot, Path(scratch)))


def _guarded(findings: Findings, name: str, check: Callable[[], object]) -> None:
    try:
        check()
    except Exception as error:  # noqa: BLE001  # boundary: a card that answers nonsense must not cost the report
        with findings.about("check"):
            findings.judge(name, "an end", f"broke: {type(error).__name__}: {error}", same=False)
