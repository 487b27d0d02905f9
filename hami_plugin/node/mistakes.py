"""What fails in one vendor's own code without being part of the design: told, counted, and kept to that vendor."""

from __future__ import annotations

import time
from collections.abc import Callable

from hami_plugin.errors import VendorMistakeError
from hami_plugin.log import logger
from hami_plugin.model.ports import NullObserver, Observer

log = logger(__name__)

AGAIN_S = 600.0
"""After how long the same mistake is logged once more."""


class Mistakes:
    """One vendor's. ``clock`` gives monotonic seconds."""

    def __init__(
        self, vendor: str, observer: Observer | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.vendor = vendor
        self._observer = observer or NullObserver()
        self._clock = clock
        self._told: dict[str, tuple[str, float]] = {}

    def made(self, step: str, error: Exception) -> VendorMistakeError:
        """Count it, log it with its traceback if that is new, and answer with what users may read of it."""
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        words = " ".join(words.split())[:500]
        self._observer.mistake(self.vendor, step)
        told, when = self._told.get(step, ("", 0.0))
        if told != words or self._clock() - when >= AGAIN_S:
            self._told[step] = (words, self._clock())
            log.error("mistake of a vendor", vendor=self.vendor, step=step, why=words, exc_info=error)
        return VendorMistakeError(self.vendor, step, words)
