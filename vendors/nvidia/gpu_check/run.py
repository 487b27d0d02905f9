"""All checks in their order. Each group has a boundary round it: one that breaks is a difference, the rest go on."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from hami_plugin.errors import DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from vendors.nvidia.binding import NoLibraryError, NvmlError
from vendors.nvidia.gpu_check import answers, events, health, layout, links, memory, mig, place, session
from vendors.nvidia.gpu_check.bench import Bench, Trees
from vendors.nvidia.gpu_check.binding import ask
from vendors.nvidia.gpu_check.card import cards
from vendors.nvidia.gpu_check.claims import load
from vendors.nvidia.gpu_check.discovery import check_discovery, look
from vendors.nvidia.gpu_check.options import Options
from vendors.nvidia.gpu_check.readonly import Timings, loader
from vendors.nvidia.gpu_check.report import Outcome
from vendors.nvidia.gpu_check.verdicts import Findings
from vendors.nvidia.library import Nvml
from vendors.nvidia.nvml import library_places

OF_A_CARD = (
    session.check_identity,
    session.check_model,
    memory.check_memory,
    place.check_place,
    answers.check_types,
    links.check_links,
    health.check_health,
    health.check_processes,
    mig.check_mig,
)


def run(options: Options, trees: Trees) -> Outcome:
    """Everything there is to find out about this machine."""
    findings, timings = Findings(), Timings()
    outcome = Outcome(findings=findings, timings=timings)
    bench = Bench(findings=findings, claims=load(), trees=trees)
    _guarded(findings, "binding", lambda: layout.check_binding(bench))
    paths = HostPaths(sysfs=trees.sysfs, proc=trees.proc, dev=trees.dev)
    try:
        outcome.look = look(options, paths, timings)
    except DriverUnavailableError as error:
        outcome.unavailable = error
        return outcome
    _guarded(findings, "library", lambda: _with_library(bench, outcome, options, timings))
    _guarded(findings, "kubelet", lambda: _kubelet(outcome))
    return outcome


def _with_library(bench: Bench, outcome: Outcome, options: Options, timings: Timings) -> None:
    """A session of our own, so that the binding's answers are seen as they are."""
    nvml = Nvml(library_places(options.settings()), load=loader(timings))
    try:
        nvml.open()
        _inspect(bench, outcome)
    except (NvmlError, NoLibraryError) as error:
        with bench.findings.about("session"):
            bench.findings.judge("a second session", "as the first", str(error), same=False)
    finally:
        nvml.close()


def _inspect(bench: Bench, outcome: Outcome) -> None:
    findings = bench.findings
    for group in (layout.check_library, session.check_versions, session.check_refusals, answers.check_system_types):
        _guarded(findings, group.__name__, lambda group=group: group(bench))  # type: ignore[misc]  # bound at once
    found = cards(bench)
    for card in found:
        for check in OF_A_CARD:
            _guarded(findings, f"{check.__name__} of card {card.index}", lambda check=check, card=card: check(card))  # type: ignore[misc]  # as above
    _guarded(findings, "topology", lambda: links.check_levels(bench, found))
    _guarded(findings, "events", lambda: events.check_events(bench, found))
    if outcome.look:
        check_discovery(findings, outcome.look, ask("nvmlDeviceGetCount"))
    _guarded(findings, "shutdown", lambda: session.check_after_shutdown(bench))


def _kubelet(outcome: Outcome) -> None:
    """Both gRPC and protobuf may be missing, or older than the code that was generated for them."""
    assert outcome.look is not None
    try:
        from vendors.nvidia.gpu_check.kubelet import check_kubelet  # noqa: PLC0415  # needs gRPC
    except ImportError as error:
        package = {"google": "protobuf", "grpc": "grpcio"}.get((error.name or "").partition(".")[0], error.name)
        _not_done(outcome, f"{package} is missing, pip install {package}")
        return
    except Exception as error:  # noqa: BLE001  # boundary: gRPC and protobuf each refuse old releases in their own way
        _not_done(outcome, f"the generated code does not load: {error}")
        return
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        seen = outcome.look
        outcome.kubelet_ms = asyncio.run(check_kubelet(outcome.findings, seen.family, seen.snapshot, Path(scratch)))


def _not_done(outcome: Outcome, why: str) -> None:
    with outcome.findings.about("kubelet"):
        outcome.findings.not_done("registration and Allocate", why)


def _guarded(findings: Findings, name: str, check: Callable[[], object]) -> None:
    try:
        check()
    except Exception as error:  # noqa: BLE001  # boundary: a card that answers nonsense must not cost the report
        with findings.about("check"):
            findings.judge(name, "an end", f"broke: {type(error).__name__}: {error}", same=False)
