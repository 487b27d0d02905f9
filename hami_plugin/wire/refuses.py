"""What the daemon of a node refuses of a family's devices, as the node says it: ``parts: why``, or ``all: why``.

Beside it stand the devices that are not healthy, where the family's register does not tell: schedulers count those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hami_plugin.wire.keys import REFUSES, UNHEALTHY

MOST_DEVICES = 4096
"""Of one node. Lists go no further."""
MOST_CHARACTERS = 300
"""Of a reason that is shown to people. Whoever may write nodes could write more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuses:
    """``parts``: only whole devices are handed out. ``all``: none, as the node hands them out under another name."""

    what: Literal["parts", "all"]
    why: str

    @property
    def text(self) -> str:
        """The annotation's value."""
        return f"{self.what}: {self.why}"

    def __str__(self) -> str:
        """For people, behind a scheduler's reason. It has no comma, by which reasons are parted."""
        begin = "the node serves whole devices only" if self.what == "parts" else "the node serves none of these"
        return f"{begin}: {self.why.replace(',', ';')}" if self.why else begin


def key(word: str) -> str:
    """The annotation for a family."""
    return f"{REFUSES}{word}"


def refused(annotations: Mapping[str, str], word: str) -> Refuses | None:
    """What a node's annotations say of a family. None where they say nothing that is understood."""
    what, _, why = annotations.get(key(word), "").partition(":")
    told = "".join(one for one in why.strip()[:MOST_CHARACTERS] if one.isprintable())
    match what.strip():
        case "parts":
            return Refuses(what="parts", why=told)
        case "all":
            return Refuses(what="all", why=told)
        case _:
            return None


def unhealthy_key(word: str) -> str:
    """The annotation for a family."""
    return f"{UNHEALTHY}{word}"


def unhealthy(annotations: Mapping[str, str], word: str) -> frozenset[int]:
    """The devices, by index, that a node's annotations say are not healthy. What is no number is passed over."""
    parts = annotations.get(unhealthy_key(word), "").split(",")[:MOST_DEVICES]
    return frozenset(int(one) for part in parts if (one := part.strip()).isascii() and one.isdecimal() and len(one) < 9)


def all_served(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """A node's annotations as if its daemon refused nothing."""
    return {name: text for name, text in annotations.items() if not name.startswith(REFUSES)}
