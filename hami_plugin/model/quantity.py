"""Kubernetes quantities as exact integers."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
}
_SUFFIXES |= {letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)}
_SUFFIXES |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)}
_QUANTITY = re.compile(
    r"([+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?)([numkMGTPE]?|[KMGTPE]i)", re.ASCII
)


def whole(text: object) -> int:
    """The integer value of a quantity, rounded up as Kubernetes' ``Value()`` does. ValueError names the text."""
    value = _decimal(text)
    return int(value.to_integral_value(rounding="ROUND_CEILING" if value > 0 else "ROUND_FLOOR"))


def exact(text: object) -> int | None:
    """The value of a quantity, None when it is no integer. ValueError names the text."""
    value = _decimal(text)
    return int(value) if value == value.to_integral_value() else None


def _decimal(text: object) -> Decimal:
    match = _QUANTITY.fullmatch(str(text).strip())
    if not match:
        raise ValueError(f"{str(text)[:64]!r} is not a Kubernetes quantity, such as 1, 500m or 2Gi")
    number, suffix = match.groups()
    try:
        value = Decimal(number) * _SUFFIXES[suffix]
    except InvalidOperation as error:
        raise ValueError(f"{str(text)[:64]!r} is not a number") from error
    if abs(value) >= 2**63:
        raise ValueError(f"{str(text)[:64]!r} is larger than 64 bits hold")
    return value
