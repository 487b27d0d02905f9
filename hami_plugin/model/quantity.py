"""Kubernetes quantities as exact integers."""

from __future__ import annotations

import re
from decimal import Decimal

_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
}
_SUFFIXES |= {letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)}
_SUFFIXES |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)}
_NUMBER = r"[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})"
_QUANTITY = re.compile(rf"({_NUMBER})([numkMGTPE]?|[KMGTPE]i)|({_NUMBER}[eE][+-]?\d{{1,3}})", re.ASCII)
_SHORT = 10
_MOST = 2**63 - 1
"""Kubernetes takes whatever is more for this."""


def whole(text: object) -> int:
    """The integer value of a quantity, rounded away from 0 as Kubernetes' ``Value()`` does. ValueError names the text.

    Beyond 64 bits it is the most that these hold, with its sign.
    """
    if isinstance(text, str) and len(text) < _SHORT and text.isdecimal() and text.isascii():
        return int(text)  # as nearly every quantity is written
    value = _decimal(text)
    return int(value.to_integral_value(rounding="ROUND_UP"))


def exact(text: object) -> int | None:
    """The value of a quantity, None when it is no integer. ValueError names the text."""
    if isinstance(text, str) and len(text) < _SHORT and text.isdecimal() and text.isascii():
        return int(text)
    value = _decimal(text)
    return int(value) if value == value.to_integral_value() else None


def _decimal(text: object) -> Decimal:
    """A suffix or an exponent, not both. Without spaces around it, as the API server demands."""
    match = _QUANTITY.fullmatch(str(text))
    if not match:
        raise ValueError(f"{str(text)[:64]!r} is not a Kubernetes quantity, such as 1, 500m or 2Gi")
    number, suffix, exponential = match.groups()
    value = Decimal(exponential) if exponential else Decimal(number) * _SUFFIXES[suffix]
    return max(min(value, Decimal(_MOST)), Decimal(-_MOST))
