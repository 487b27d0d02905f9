"""Small checks that add up to the check of a document: each takes a value and its place, and reports what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from cdi.errors import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in which document a value stands."""

    file: str = ""
    device: str = ""
    field: str = ""

    def of(self, name: str) -> Place:
        return replace(self, field=f"{self.field}.{name}" if self.field else name)

    def item(self, position: int) -> Place:
        return replace(self, field=f"{self.field}[{position}]")

    def problem(self, message: str) -> Problem:
        return Problem(file=self.file, device=self.device, field=self.field, message=message)


Check: TypeAlias = Callable[[object, Place], Iterator[Problem]]
Rule: TypeAlias = Callable[[str], str | None]
"""What is wrong with a text; None when nothing is."""


def text(*rules: Rule) -> Check:
    def check(value: object, place: Place) -> Iterator[Problem]:
        if not isinstance(value, str):
            quotes = "; put it in quotes" if isinstance(value, (int, float)) else ""
            yield place.problem(f"must be text, is {shown(value)}{quotes}")
            return
        wrong = next((wrong for rule in (encodable, *rules) if (wrong := rule(value)) is not None), None)
        if wrong is not None:
            yield place.problem(wrong)

    return check


def number(least: int, most: int) -> Check:
    def check(value: object, place: Place) -> Iterator[Problem]:
        if not isinstance(value, int) or isinstance(value, bool):
            yield place.problem(f"must be a whole number, is {shown(value)}")
        elif not least <= value <= most:
            yield place.problem(f"must be from {least} to {most}, is {value}")

    return check


def truth(value: object, place: Place) -> Iterator[Problem]:
    if not isinstance(value, bool):
        yield place.problem(f"must be true or false, is {shown(value)}")


def several(item: Check) -> Check:
    def check(value: object, place: Place) -> Iterator[Problem]:
        if not isinstance(value, list):
            yield place.problem(f"must be a list, is {shown(value)}")
            return
        for position, entry in enumerate(value):
            yield from item(entry, place.item(position))

    return check


def fields(known: Mapping[str, Check], *, required: tuple[str, ...] = ()) -> Check:
    """A mapping with these keys and no others. A key without a value counts as absent."""

    def check(value: object, place: Place) -> Iterator[Problem]:
        if not isinstance(value, Mapping):
            yield place.problem(f"must be a mapping, is {shown(value)}")
            return
        for name, entry in value.items():
            if name not in known:
                yield place.of(str(name)).problem(f"unknown field; known are {', '.join(known)}")
            elif entry is not None:
                yield from known[name](entry, place.of(name))
        for name in required:
            if value.get(name) is None:
                yield place.of(name).problem("is missing")

    return check


def mapping(key: Rule) -> Check:
    """A mapping from texts to texts, whose keys follow a rule."""
    entry_check = text()

    def check(value: object, place: Place) -> Iterator[Problem]:
        if not isinstance(value, Mapping):
            yield place.problem(f"must be a mapping, is {shown(value)}")
            return
        for name, entry in value.items():
            wrong = key(name) if isinstance(name, str) else "key must be text"
            if wrong is not None:
                yield place.of(str(name)).problem(wrong)
            yield from entry_check(entry, place.of(str(name)))

    return check


def encodable(value: str) -> str | None:
    """No file, variable or path can hold a NUL or half of a surrogate pair."""
    if "\0" in value:
        return f"must not contain NUL, is {value!r}"
    return f"must be Unicode text, is {value!r}" if any("\ud800" <= mark <= "\udfff" for mark in value) else None


def filled(value: str) -> str | None:
    return None if value else "must not be empty"


def absolute(value: str) -> str | None:
    return None if value.startswith("/") else f'must be absolute, is "{value}"'


def one_of(*values: str) -> Rule:
    return lambda value: None if value in values else f'must be one of {", ".join(values)}, is "{value}"'


def shown(value: object) -> str:
    """A value as a message shows it: short, or only what kind of value it is."""
    match value:
        case str():
            return f'"{value}"' if len(value) <= 60 else f'"{value[:57]}..."'
        case bool() | int() | float():
            return str(value).lower()
        case list():
            return "a list"
        case Mapping():
            return "a mapping"
        case _:
            return f"a {type(value).__name__}"
