"""What a node's daemon says that it does not serve: parts of devices, whole families, devices that are unhealthy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hami_plugin.protocol.keys import REFUSES, UNHEALTHY

MAX_DEVICES = 4096
"""Of one node. Lists go no further."""
MAX_CHARACTERS = 300
"""Of a reason that is shown to people. Whoever may write nodes could write more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuses:
    """``parts``: only whole devices are handed out. ``several``: only whole ones to a container that has several.
    ``all``: none, as the node hands them out under another name.
    """

    what: Literal["parts", "several", "all"]
    why: str

    @property
    def text(self) -> str:
        """The annotation's value."""
        return f"{self.what}: {self.why}"

    def __str__(self) -> str:
        """For people, behind a scheduler's reason. It has no comma, by which reasons are parted."""
        begin = _REFUSED[self.what]
        return f"{begin}: {self.why.replace(',', ';')}" if self.why else begin

    @property
    def whole_from(self) -> int:
        """How many devices a container may have before it can have whole ones only; 0: any number."""
        return {"parts": 1, "several": 2, "all": 0}[self.what]


_REFUSED = {
    "parts": "the node serves whole devices only",
    "several": "the node serves several devices whole only",
    "all": "the node serves none of these",
}


def refuses_key(device_type: str) -> str:
    """The annotation for a family."""
    return f"{REFUSES}{device_type}"


def refusal_of(annotations: Mapping[str, str], device_type: str) -> Refuses | None:
    """What a node's annotations refuse of a family; None if nothing, or nothing known."""
    what, _, why = annotations.get(refuses_key(device_type), "").partition(":")
    reason = "".join(one for one in why.strip()[:MAX_CHARACTERS] if one.isprintable())
    match what.strip():
        case "parts":
            return Refuses(what="parts", why=reason)
        case "several":
            return Refuses(what="several", why=reason)
        case "all":
            return Refuses(what="all", why=reason)
        case _:
            return None


def unhealthy_key(device_type: str) -> str:
    """The annotation for a family."""
    return f"{UNHEALTHY}{device_type}"


def unhealthy_indices(annotations: Mapping[str, str], device_type: str) -> frozenset[int]:
    """The devices, by index, that a node's annotations say are not healthy. Other entries are ignored."""
    parts = annotations.get(unhealthy_key(device_type), "").split(",")[:MAX_DEVICES]
    return frozenset(int(one) for part in parts if (one := part.strip()).isascii() and one.isdecimal() and len(one) < 9)


def without_refusals(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """A node's annotations as if its daemon refused nothing."""
    return {name: text for name, text in annotations.items() if not name.startswith(REFUSES)}
