"""Changes of the configuration's files while a process runs: what they hold, and what became of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from hami_plugin.config.documents import MAX_BYTES
from hami_plugin.config.load import Configuration
from hami_plugin.errors import ConfigError, HamiError

MAX_SHOWN = 20
"""Problems in one message."""


class ReloadRefusal(StrEnum):
    """Why a change was not taken up."""

    INVALID = "invalid"
    RESTART = "restart"
    DEVICES = "devices"
    BUSY = "busy"


def problems_of(error: HamiError) -> str:
    """What is wrong with a configuration, in one message."""
    if not isinstance(error, ConfigError):
        return str(error)
    more = len(error.problems) - MAX_SHOWN
    return "\n".join([*error.problems[:MAX_SHOWN], *([f"and {more} more"] if more > 0 else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationChange:
    """What differs between two configurations, by what it takes to have it in force. Each is a sorted list of keys."""

    live: tuple[str, ...] = ()
    swapped: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationSource:
    """Where the configuration comes from. ``read`` validates all of it, ``paths`` are the files, present or not."""

    read: Callable[[], Configuration]
    paths: tuple[Path, ...]
    level: Callable[[str], None] = lambda _level: None

    def digest(self) -> str:
        """What the files hold now."""
        seen = hashlib.sha256()
        for path in self.paths:
            seen.update(b"\0file\0")
            try:
                with path.open("rb") as file:
                    seen.update(file.read(MAX_BYTES + 1))
            except (OSError, ValueError) as error:
                seen.update(repr(type(error)).encode())
        return seen.hexdigest()


@dataclass(slots=True, kw_only=True)
class Reloads:
    """What became of the changes so far. ``generation`` counts the configurations that were in force.

    ``problem`` is why the files as they are now are not in force; empty while they are. ``refusals`` counts by reason.
    """

    generation: int = 1
    reason: str = ""
    problem: str = ""
    refusals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ReloadRefusal, 0))

    def shown(self) -> dict[str, object]:
        """For ``/readyz``."""
        return {"generation": self.generation, "refused": self.reason, "problem": self.problem}
