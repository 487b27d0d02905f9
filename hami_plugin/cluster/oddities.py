"""Objects that cannot be read, or in part only: counted each time, and named once in a while."""

from __future__ import annotations

import time
from collections.abc import Callable

from hami_plugin.log import logger
from hami_plugin.model.ports import Observer

SAY_AGAIN_S = 600.0
MOST_SAID = 64
"""So many objects are named in that time. More of them would be an attack on the log."""

log = logger(__name__)


class Oddities:
    """Whoever may write objects may write odd ones, again and again."""

    def __init__(self, observer: Observer, clock: Callable[[], float] = time.monotonic) -> None:
        self._observer = observer
        self._clock = clock
        self._said: dict[tuple[str, str], float] = {}

    def note(self, kind: str, name: str, why: str) -> None:
        """One reading of one object. ``name`` is empty where it has none."""
        self._observer.unreadable(kind)
        now = self._clock()
        self._said = {key: at for key, at in self._said.items() if now - at < SAY_AGAIN_S}
        if (kind, name) in self._said or len(self._said) >= MOST_SAID:
            return
        self._said[kind, name] = now
        log.warning("an object cannot be read", kind=kind, object=name, why=why[:300])
