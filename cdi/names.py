"""The names of devices, ``vendor.com/class=device``, and how a container asks for them through annotations.

An annotation is ``cdi.k8s.io/<plugin>_<id>: name,name``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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


PREFIX = "cdi.k8s.io/"
"""The default prefix of runtimes."""
MAX_NAME = 63
"""Characters after the prefix: the limit that Kubernetes sets for the name in an annotation's key."""

_ANNOTATION_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)


def annotation_key(plugin: str, request: str, *, prefix: str = PREFIX) -> str:
    """The key for one request of ``plugin``. ``request`` tells it from the plugin's other requests; "/" becomes "_"."""
    if not plugin or not request:
        raise InvalidNameError(f'annotation key needs a plugin and a request, has "{plugin}" and "{request}"')
    name = f"{plugin}_{request.replace('/', '_')}"
    if len(name) > MAX_NAME:
        raise InvalidNameError(
            f'annotation name "{name}" has {len(name)} characters, {MAX_NAME} are allowed',
            hint="use a shorter plugin name or request",
        )
    if not _ANNOTATION_NAME.fullmatch(name):
        raise InvalidNameError(
            f'annotation name "{name}" must be letters, digits, "_", "-" and ".", with a letter or digit at both ends'
        )
    return f"{prefix.removesuffix('/')}/{name}"


def annotation_value(names: Iterable[QualifiedName]) -> str:
    return ",".join(str(name) for name in names)


def annotated(annotations: Mapping[str, str], *, prefix: str = PREFIX) -> tuple[QualifiedName, ...]:
    """The devices that ``annotations`` ask for, by key, each once. Other annotations are ignored.

    ``InvalidNameError`` names the key of a value that is not a list of qualified names.
    """
    start = f"{prefix.removesuffix('/')}/"
    asked: dict[QualifiedName, None] = {}
    for key in sorted(key for key in annotations if key.startswith(start)):
        for text in annotations[key].split(","):
            try:
                asked[QualifiedName.parse(text)] = None
            except InvalidNameError as error:
                raise InvalidNameError(f"annotation {key}: {error.message}", hint=error.hint) from error
    return tuple(asked)
