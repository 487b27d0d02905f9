"""The names of devices: ``vendor.com/class=device``, taken apart and checked by the specification's grammar."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cdi.errors import InvalidNameError

MAX_VENDOR, MAX_CLASS = 253, 63
"""Characters: a vendor is a DNS subdomain, a class is a label's length."""

_ODD = re.compile(r"[^A-Za-z0-9_.-]")
_ODD_IN_DEVICE = re.compile(r"[^A-Za-z0-9_.:-]")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Kind:
    """What all devices of a spec are: ``vendor.com/class``. Building one that is not allowed raises."""

    vendor: str
    cls: str

    def __post_init__(self) -> None:
        _refuse(str(self), vendor_problem(self.vendor), class_problem(self.cls))

    @classmethod
    def parse(cls, text: str) -> Kind:
        vendor, slash, name = text.partition("/")
        if not (vendor and slash and name):
            raise InvalidNameError(f'kind "{text}" is not of the form vendor/class', hint='such as "example.com/gpu"')
        return cls(vendor=vendor, cls=name)

    def device(self, name: str) -> QualifiedName:
        return QualifiedName(kind=self, device=name)

    def __str__(self) -> str:
        return f"{self.vendor}/{self.cls}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class QualifiedName:
    """What a runtime is asked for: ``vendor.com/class=device``. Building one that is not allowed raises."""

    kind: Kind
    device: str

    def __post_init__(self) -> None:
        _refuse(str(self), device_problem(self.device))

    @classmethod
    def parse(cls, text: str) -> QualifiedName:
        kind, equals, device = text.partition("=")
        if not (equals and device) or text.startswith("/"):
            raise InvalidNameError(
                f'device "{text}" is not of the form vendor/class=device', hint='such as "example.com/gpu=0"'
            )
        return cls(kind=Kind.parse(kind), device=device)

    def __str__(self) -> str:
        return f"{self.kind}={self.device}"


def vendor_problem(vendor: str) -> str | None:
    """Why ``vendor`` is not a vendor's name; None when it is one."""
    return _label_problem("vendor", vendor, MAX_VENDOR)


def class_problem(name: str) -> str | None:
    """Why ``name`` is not a class's name; None when it is one."""
    return _label_problem("class", name, MAX_CLASS)


def device_problem(name: str) -> str | None:
    """Why ``name`` is not a device's name; None when it is one."""
    odd = _ODD_IN_DEVICE.search(name)
    return _first(
        f'device name "{name}"',
        (not name, "is empty"),
        (not _alphanumeric(name[:1]), "must start with a letter or digit"),
        (not _alphanumeric(name[-1:]), "must end with a letter or digit"),
        (odd, f'has {odd and odd[0]!r}; allowed are letters, digits, "_", "-", "." and ":"'),
    )


def _label_problem(what: str, name: str, longest: int) -> str | None:
    odd = _ODD.search(name)
    return _first(
        f'{what} "{name}"',
        (not name, "is empty"),
        (not (name[:1].isascii() and name[:1].isalpha()), "must start with a letter"),
        (not _alphanumeric(name[-1:]), "must end with a letter or digit"),
        (odd, f'has {odd and odd[0]!r}; allowed are letters, digits, "_", "-" and "."'),
        # The library that most runtimes use slices past the end of a name of one letter, and panics.
        (len(name) == 1, "must have two characters or more"),
        (len(name) > longest, f"has {len(name)} characters, {longest} are allowed"),
    )


def _first(subject: str, *complaints: tuple[object, str]) -> str | None:
    return next((f"{subject} {complaint}" for applies, complaint in complaints if applies), None)


def _alphanumeric(character: str) -> bool:
    return character.isascii() and character.isalnum()


def _refuse(name: str, *problems: str | None) -> None:
    if found := [problem for problem in problems if problem]:
        raise InvalidNameError(f'"{name}": {", ".join(found)}')
