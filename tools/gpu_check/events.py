"""Event sets: what can be registered, and whether a wait really waits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tools.gpu_check.cards import Card
from tools.gpu_check.findings import Bench, Findings
from tools.gpu_check.library import Refused, ask, kind, refused

XID = 0x8
_ECC = 0x1 | 0x2
_ALWAYS = XID | 0x4 | 0x10
_KNOWN = _ECC | _ALWAYS
UNKNOWN_EVENT = 1 << 40
WAITS_MS = (500, 1000)
IDLE_WAIT_MS = 200
_ROUNDING = 0.98
"""Clocks and timers round differently."""


def check_events(bench: Bench, cards: Sequence[Card]) -> None:
    """One event set for all cards, as the daemon has it."""
    for card in cards:
        _supported(card)
    with bench.findings.about("events"):
        findings, code = bench.findings, bench.claims.code
        events = ask("nvmlEventSetCreate")
        if not findings.equal("type of an event set", "LP_struct_c_nvmlEventSet_t", kind(events)):
            return
        timeout = refused(code("TIMEOUT"))
        _wait(findings, "wait with no card registered", events, IDLE_WAIT_MS, timeout)
        if cards:
            unknown = ask("nvmlDeviceRegisterEvents", cards[0].handle, UNKNOWN_EVENT, events)
            findings.equal("an event type that no card has", refused(code("NOT_SUPPORTED")), unknown)
        for card in cards:
            with card.about("events"):
                findings.equal("registration", None, ask("nvmlDeviceRegisterEvents", card.handle, XID, events))
        for milliseconds in WAITS_MS if cards else ():
            _wait(findings, f"wait of {milliseconds} ms", events, milliseconds, timeout)
        findings.equal("release of the set", None, ask("nvmlEventSetFree", events))


def _supported(card: Card) -> None:
    """The event types that the simulation knows. Newer drivers have more, which is no difference."""
    types = ask("nvmlDeviceGetSupportedEventTypes", card.handle)
    with card.about("events") as findings:
        if not card.facts:
            findings.not_applicable("event types", f"the simulation knows no model named {card.model!r}", types)
            return
        expected = [_ALWAYS | (_ECC if ecc else 0) for ecc in card.facts["ecc"]]
        findings.among("event types", expected, types if isinstance(types, Refused) else types & _KNOWN)


def _wait(findings: Findings, name: str, events: Any, milliseconds: int, timeout: Refused) -> None:
    start = time.monotonic()
    answer = ask("nvmlEventSetWait_v2", events, milliseconds)
    waited = round((time.monotonic() - start) * 1000)
    if not isinstance(answer, Refused):
        findings.not_done(name, f"an event of type {answer.eventType:#x} came meanwhile")
        return
    expected = {"answer": timeout, "waited_ms": f"at least {milliseconds}"}
    observed = {"answer": answer, "waited_ms": waited}
    findings.judge(name, expected, observed, same=answer == timeout and waited >= milliseconds * _ROUNDING)
