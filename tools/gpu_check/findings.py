"""What was expected, what was observed, and the verdict; and what every check is handed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tools.gpu_check.claims import Claims
from tools.gpu_check.library import NO_FUNCTION, NO_PERMISSION, Refused


class Verdict(StrEnum):
    """``DIFFERS`` alone makes the whole check fail."""

    SAME = "same"
    DIFFERS = "differs"
    NOT_APPLICABLE = "not applicable"
    NOT_DONE = "not done"


_EXCUSED = {
    NO_PERMISSION: (Verdict.NOT_DONE, "this needs more permission, such as root"),
    NO_FUNCTION: (Verdict.NOT_APPLICABLE, "driver or binding is older than this call"),
}
"""What we may not ask, or cannot on this driver, is no difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison, of one card or of no particular one. ``expected`` and ``observed`` are what JSON can hold."""

    area: str
    card: int | None
    name: str
    expected: Any
    observed: Any
    verdict: Verdict
    why: str = ""


class Findings:
    """Collects checks. ``about`` says what the following ones are about."""

    def __init__(self) -> None:
        self.checks: list[Check] = []
        self._area = ""
        self._card: int | None = None

    @contextmanager
    def about(self, area: str, card: int | None = None) -> Iterator[None]:
        before = self._area, self._card
        self._area, self._card = area, card
        try:
            yield
        finally:
            self._area, self._card = before

    def equal(self, name: str, expected: object, observed: object) -> bool:
        return self.judge(name, expected, observed, same=plain(expected) == plain(observed))

    def among(self, name: str, allowed: Collection[object], observed: object) -> bool:
        """One of several values, since machines may differ; one alone is shown as such."""
        shown = plain(list(allowed))
        expected = shown[0] if len(shown) == 1 else {"one of": shown}
        return self.judge(name, expected, observed, same=plain(observed) in shown)

    def judge(self, name: str, expected: object, observed: object, *, same: bool) -> bool:
        """A verdict of the caller's own, unless the refusal excuses it."""
        excuse = _EXCUSED.get(observed.code) if isinstance(observed, Refused) and not same else None
        verdict, why = excuse or (Verdict.SAME if same else Verdict.DIFFERS, "")
        self._add(name, expected, observed, verdict, why)
        return same

    def not_applicable(self, name: str, why: str, observed: object = None) -> None:
        self._add(name, None, observed, Verdict.NOT_APPLICABLE, why)

    def not_done(self, name: str, why: str) -> None:
        self._add(name, None, None, Verdict.NOT_DONE, why)

    def count(self, verdict: Verdict) -> int:
        return sum(check.verdict is verdict for check in self.checks)

    def _add(self, name: str, expected: object, observed: object, verdict: Verdict, why: str = "") -> None:
        self.checks.append(
            Check(
                area=self._area,
                card=self._card,
                name=name,
                expected=plain(expected),
                observed=plain(observed),
                verdict=verdict,
                why=why,
            )
        )


def plain(value: object) -> Any:
    """The value as JSON will show it: tuples as lists, refusals and other types as text."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Refused():
            return {"refused": value.name, "code": value.code}
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case set() | frozenset():
            return sorted((plain(item) for item in value), key=repr)
        case _:
            return repr(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """The kernel's file trees, wherever this process sees them."""

    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Handed to every check."""

    findings: Findings
    claims: Claims
    trees: Trees
