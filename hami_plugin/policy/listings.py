"""What a pod's annotations list to choose devices by: each list is read once, and each type judged once.

A pod's author writes these lists, and every device of every node is held against them. So their size is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

from hami_plugin.policy.demand import Invalid

MOST_BYTES = 4096
MOST_NAMES = 256
_SHOWN = 64


def oversized(annotations: Mapping[str, str], keys: Iterable[str]) -> Invalid | None:
    """The first of these annotations that is too long to be read for every device."""
    for key in keys:
        text = annotations.get(key, "")
        size, names = len(text.encode("utf-8", "replace")), text.count(",") + 1
        if size > MOST_BYTES or names > MOST_NAMES:
            why = (
                f"has {size} bytes and {names} names; at most {MOST_BYTES} bytes and {MOST_NAMES} names are read: "
                "list fewer, or select devices by a part of their type's name"
            )
            return Invalid(resource=key, text=shortened(text), why=why)
    return None


def shortened(text: str) -> str:
    """The beginning of an annotation, for a message."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class Listings:
    """The lists of one pod. Nothing in here changes an answer; it saves reading them again for every node."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._annotations = annotations
        self._names: dict[Hashable, frozenset[str] | None] = {}
        self._verdicts: dict[Hashable, bool] = {}
        self._words: dict[str, tuple[str, ...]] = {}

    def names(self, key: str, spelt: Callable[[str], str] = str) -> frozenset[str] | None:
        """The names in an annotation; None when it says nothing. One that has only commas lists nobody."""
        kept = (key, spelt)
        if kept not in self._names:
            text = self._annotations.get(key)
            names = (spelt(name.strip()) for name in text.split(",")) if text and text.strip() else None
            self._names[kept] = None if names is None else frozenset(filter(None, names))
        return self._names[kept]

    def verdict(self, subject: Hashable, judge: Callable[[], bool]) -> bool:
        """What ``judge`` says of the subject, asked once for each."""
        found = self._verdicts.get(subject)
        if found is None:
            found = self._verdicts[subject] = judge()
        return found

    def words(self, text: str) -> tuple[str, ...]:
        """The words of an order, one after the other."""
        found = self._words.get(text)
        if found is None:
            found = self._words[text] = tuple([word.strip() for word in text.split(",")])
        return found


def mentioned(names: Collection[str], kind: str) -> bool:
    """Whether one of the names is a part of a type's."""
    return any(name in kind for name in names)
