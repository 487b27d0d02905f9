"""Calls that fail because they are told to: which symbol answers which code, for which device."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from vendors.nvidia.simulation.cases import Case, number_of
from vendors.nvidia.simulation.limits import FAILURES, NONE
from vendors.nvidia.simulation.parts import Failure
from vendors.nvidia.simulation.state import State
from vendors.nvidia.simulation.symbols import ALIASES, GROUPS, SYMBOLS

NOT_SUPPORTED: Final = 3


def not_supported(case: Case) -> None:
    name = str(case.value)
    symbols = list(GROUPS.get(name, ())) or [_symbol(name, f"one of the groups {', '.join(GROUPS)}, or a symbol")]
    _fail(case, symbols, NOT_SUPPORTED)


def fail_call(case: Case) -> None:
    name, _, code = str(case.value).partition(":")
    symbol = _symbol(name, "symbol:code, such as nvmlDeviceGetMemoryInfo:15")
    _fail(case, [symbol], number_of(code, "a return code, such as 15 for a lost GPU", high=999))


def _symbol(name: str, form: str) -> str:
    symbol = ALIASES.get(name, name)
    if symbol not in SYMBOLS:
        raise ValueError(f"{name!r} is not a symbol of the simulated library; give {form}")
    return symbol


def forget(state: State, devices: Collection[int]) -> None:
    """Take back what these devices were told."""
    _store(state, [failure for failure in _failures(state) if failure.device not in devices])


def _fail(case: Case, symbols: list[str], code: int) -> None:
    """Make ``symbols`` answer ``code``; 0 takes the failures back."""
    places = {NONE} if case.everywhere else set(case.targets)
    kept = [
        failure
        for failure in _failures(case.state)
        if not (failure.device in places and failure.symbol.decode() in symbols)
    ]
    if code:
        kept += [Failure(symbol=s.encode(), device=place, code=code) for s in symbols for place in sorted(places)]
    _store(case.state, kept)


def _failures(state: State) -> list[Failure]:
    """Copies: the originals are overwritten while the list is stored."""
    return [Failure.from_buffer_copy(failure) for failure in state.header.failures[: state.header.failure_count]]


def _store(state: State, failures: list[Failure]) -> None:
    if len(failures) > FAILURES:
        raise ValueError(f"{len(failures)} failing calls are more than the {FAILURES} that fit; clear some first")
    for position, failure in enumerate(failures):
        state.header.failures[position] = failure
    state.header.failure_count = len(failures)
