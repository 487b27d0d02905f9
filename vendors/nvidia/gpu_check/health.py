"""What a card tells of its own condition, and whether its model can tell it; processes on the card."""

from __future__ import annotations

import ctypes

from vendors.nvidia.gpu_check.binding import ask, constant, refused
from vendors.nvidia.gpu_check.card import Card
from vendors.nvidia.gpu_check.refused import Refused

RECOVERY_FIELD = 230
UNKNOWN_FIELD = 9999
_MODES = (0, 1, 2, 3)
_ACTIONS = range(8)


def check_health(card: Card) -> None:
    with card.about("health") as findings:
        mode = ask("nvmlDeviceGetComputeMode", card.handle)
        findings.judge("compute mode", f"one of {_MODES}", mode, same=mode in _MODES)
        card.supported("ECC mode", "ecc", ask("nvmlDeviceGetEccMode", card.handle))
        card.supported("ECC errors", "ecc", ask("nvmlDeviceGetTotalEccErrors", card.handle, 1, 0))
        card.supported("remapped rows", "row_remapping", ask("nvmlDeviceGetRemappedRows", card.handle))
        _retired_pages(card)
        _recovery_action(card)
        field = _field(card, UNKNOWN_FIELD)
        findings.equal("a field that no card has", refused(card.code("NOT_SUPPORTED")), field)
        card.supported("fabric", "fabric", _fabric(card))


def _retired_pages(card: Card) -> None:
    """Cards with ECC either remap rows or retire pages."""
    answer = ask("nvmlDeviceGetRetiredPagesPendingStatus", card.handle)
    if card.facts.get("ecc") == [True] and card.facts.get("row_remapping") == [False]:
        card.findings.judge("retired pages", "an answer", answer, same=not isinstance(answer, Refused))
    elif card.facts:
        card.findings.equal("retired pages", refused(card.code("NOT_SUPPORTED")), answer)
    else:
        card.findings.not_applicable("retired pages", "the simulation knows no such model", answer)


def _recovery_action(card: Card) -> None:
    """What the driver wants done. A driver that is older than the field may not know it."""
    answer = _field(card, RECOVERY_FIELD)
    known = isinstance(answer, int) and answer in _ACTIONS
    card.findings.judge("recovery action, field 230", "a number from 0 to 7", answer, same=known)


def _field(card: Card, number: int) -> int | Refused:
    values = ask("nvmlDeviceGetFieldValues", card.handle, [number])
    if isinstance(values, Refused):
        return values
    code = int(values[0].nvmlReturn)
    return refused(code) if code else int(values[0].value.uiVal)


def _fabric(card: Card) -> int | Refused:
    """The state of the rack's fabric."""
    made = constant("c_nvmlGpuFabricInfoV_t")
    if made is None:
        return refused(13)
    info = made()
    answer = ask("nvmlDeviceGetGpuFabricInfoV", card.handle, ctypes.byref(info))
    return answer if isinstance(answer, Refused) else int(info.state)


def check_processes(card: Card) -> None:
    """Lists of processes; without any, their use is NotFound."""
    with card.about("processes") as findings:
        running = 0
        for kind in ("Compute", "Graphics", "MPSCompute"):
            answer = ask(f"nvmlDeviceGet{kind}RunningProcesses", card.handle)
            found = len(answer) if isinstance(answer, list) else answer
            findings.judge(f"{kind} processes", "a list", found, same=isinstance(found, int))
            running += found if isinstance(found, int) else 0
        if card.mig_on:
            _busy_by_parts(card)
        else:
            _busy(card, running)


def _busy_by_parts(card: Card) -> None:
    """A card in MIG mode has no utilization as a whole."""
    unsupported = refused(card.code("NOT_SUPPORTED"))
    card.findings.equal("utilization in MIG mode", unsupported, ask("nvmlDeviceGetUtilizationRates", card.handle))
    samples = ask("nvmlDeviceGetProcessUtilization", card.handle, 0)
    card.findings.equal("use by processes in MIG mode", unsupported, samples)


def _busy(card: Card, running: int) -> None:
    findings = card.findings
    rates = ask("nvmlDeviceGetUtilizationRates", card.handle)
    busy = rates if isinstance(rates, Refused) else [int(rates.gpu), int(rates.memory)]
    plausible = isinstance(busy, list) and all(0 <= percent <= 100 for percent in busy)
    findings.judge("utilization of cores and memory", "two percentages", busy, same=plausible)
    if running:
        findings.not_applicable("use by no process", f"{running} processes are running")
        return
    samples = ask("nvmlDeviceGetProcessUtilization", card.handle, 0)
    observed = samples if isinstance(samples, Refused) else len(samples)
    findings.equal("use by no process", refused(card.code("NOT_FOUND")), observed)
