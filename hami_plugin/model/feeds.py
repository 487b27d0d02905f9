"""Where a watch delivers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)  # a frozen class with slots cannot be made by an alias such as Feed[PodView]
class Feed(Generic[T]):
    """``replace`` is a whole list (after a start or a gap), in no particular order; ``update`` and ``delete`` follow in
    the order of the API server.
    """

    replace: Callable[[Sequence[T]], None]
    update: Callable[[T], None]
    delete: Callable[[T], None]
