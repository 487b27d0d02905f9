"""The report: one JSON document for the record, and lines for whoever stands before the machine."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from hami_plugin.cli.tables import device_table, snapshot_json, topology_matrix
from hami_plugin.errors import DriverUnavailableError
from tools.gpu_check.daemon import Look
from tools.gpu_check.findings import Check, Findings, Verdict
from tools.gpu_check.library import Timings, release

SCHEMA = "gpu-check/v1"


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Everything that was found out, as far as it went."""

    findings: Findings
    timings: Timings
    look: Look | None = None
    unavailable: DriverUnavailableError | None = None
    kubelet_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def result(self) -> str:
        if self.unavailable:
            return "no driver"
        return "differs" if self.findings.count(Verdict.DIFFERS) else "same"


def document(outcome: Outcome) -> dict[str, Any]:
    """What is written to the file. No host name, no user, no process of others is in it."""
    look, unavailable = outcome.look, outcome.unavailable
    return {
        "schema": SCHEMA,
        "result": outcome.result,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(look),
        "summary": summary(outcome.findings),
        "unavailable": unavailable
        and {"reason": str(unavailable.reason), "message": unavailable.message, "hint": unavailable.hint},
        "checks": [asdict(check) for check in outcome.findings.checks],
        "snapshot": look and json.loads(snapshot_json(look.snapshot)),
        "annotations": look and dict(look.annotations),
        "times": {
            "discovery_ms": look and dict(look.times_ms),
            "kubelet_ms": dict(outcome.kubelet_ms),
            "calls": outcome.timings.summary(),
        },
    }


def environment(look: Look | None) -> dict[str, Any]:
    """What one needs to know to compare two reports."""
    facts = dict(look.snapshot.facts) if look else {}
    return {
        "models": sorted({device.model for device in look.snapshot.devices}) if look else [],
        "cards": len(look.snapshot.devices) if look else 0,
        "driver": facts.get("driver", ""),
        "nvml": facts.get("nvml", ""),
        "cuda": facts.get("cuda", ""),
        "binding": release(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def summary(findings: Findings) -> dict[str, int]:
    return {str(verdict): findings.count(verdict) for verdict in Verdict}


def lines(outcome: Outcome) -> Iterator[str]:
    """For the terminal: what there is, then what could not be compared, then what differs, then the numbers."""
    for name, value in environment(outcome.look).items():
        if value:
            yield f"{name:13} {', '.join(value) if isinstance(value, list) else value}"
    if outcome.look:
        yield from ("", device_table(outcome.look.snapshot), "", topology_matrix(outcome.look.snapshot, "GPU"), "")
        yield from (f"{key}: {value}" for key, value in outcome.look.annotations.items())
        yield ""
        yield "milliseconds: " + _times({**outcome.look.times_ms, **outcome.kubelet_ms})
    if outcome.unavailable:
        yield f"\n{outcome.unavailable.reason}: {outcome.unavailable.message}\nhint: {outcome.unavailable.hint}"
    for verdict in (Verdict.NOT_APPLICABLE, Verdict.NOT_DONE, Verdict.DIFFERS):
        yield from _lines([check for check in outcome.findings.checks if check.verdict is verdict])
    yield ""
    yield ", ".join(f"{count} {verdict}" for verdict, count in summary(outcome.findings).items())


def _lines(checks: Iterable[Check]) -> Iterator[str]:
    """One entry for all cards with the same result."""
    alike: dict[tuple[str, str], list[int]] = {}
    for check in checks:
        cards = alike.setdefault((f"{check.verdict}: {check.area}: {check.name}", _facts(check)), [])
        if check.card is not None:
            cards.append(check.card)
    for (name, facts), cards in alike.items():
        yield f"{name}{f' (card {_listed(cards)})' if cards else ''}{facts}"


def _facts(check: Check) -> str:
    if check.verdict is Verdict.DIFFERS:
        return f"\n    claimed:  {_short(check.expected)}\n    observed: {_short(check.observed)}"
    seen = f"; observed: {_short(check.observed)}" if check.observed is not None else ""
    return f": {check.why}{seen}"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _times(times: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in times.items())


def _short(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:400]
