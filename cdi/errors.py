"""Errors of names, specs and their files. Each says what happened, and ``hint`` what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class CdiError(Exception):
    """The base of this library's errors."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class InvalidNameError(CdiError, ValueError):
    """A name that the grammar of the specification does not allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with one spec. ``file``, ``device`` and ``field`` may be empty."""

    file: str = ""
    device: str = ""
    field: str = ""
    message: str

    def __str__(self) -> str:
        place = (self.file, f'device "{self.device}"' if self.device else "", self.field)
        return ": ".join((*(part for part in place if part), self.message))


class InvalidSpecError(CdiError):
    """A spec that a runtime would refuse, with everything that is wrong with it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UnresolvableError(CdiError):
    """The devices that do not resolve. ``reasons`` has the reason for each."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__(f"unresolvable CDI devices {', '.join(self.reasons)}")


class InjectionError(CdiError):
    """Edits that a runtime could not apply to a container."""


class StoreError(CdiError):
    """A spec that could not be written or removed. The previous one is unchanged."""
