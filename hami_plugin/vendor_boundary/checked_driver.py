"""A vendor's driver as the daemon may rely on it: opened on its own thread, each answer checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hami_plugin.log import logger
from hami_plugin.model.device import Discovery
from hami_plugin.model.links import Links
from hami_plugin.model.validation import limited, of_kind, plausible, plausible_fault, plausible_links
from hami_plugin.sdk import Driver, HealthEvent

log = logger(__name__)

MAX_EVENTS = 2_000


class CheckedDriver:
    """A ``Driver`` made of another, which ``opening`` opens at the first ``discover``.

    So an opening that fails or hangs is one of the driver's failures. Answers are read to their end here, on the
    driver's thread: a generator has run out, and whatever it raises is raised by the call.
    """

    def __init__(self, opening: Callable[[], Driver]) -> None:
        self._opening = opening
        self._driver: Driver | None = None
        self._last: Discovery | None = None
        self._complained = False

    @property
    def busy_with(self) -> str | None:
        """As the driver tells; None where it fails to."""
        try:
            about = self._driver.busy_with if self._driver else None
            return None if about is None else of_kind(str, about)
        except Exception:
            if not self._complained:
                log.exception("driver does not tell what it is busy with")
            self._complained = True
            return None

    def discover(self) -> Discovery:
        if self._driver is None:
            self._driver = self._opening()
        found = plausible(self._driver.discover())
        if self._last == found:  # whoever follows the devices compares them: what fails to be compared, fails here
            return self._last
        self._last = found
        return found

    def links(self) -> Links:
        return plausible_links(self._driver.links()) if self._driver else Links()

    def poll(self, timeout: float) -> Sequence[HealthEvent]:
        return [_event(one) for one in limited(self._driver.poll(timeout), MAX_EVENTS)] if self._driver else ()

    def close(self) -> None:
        if self._driver is not None:
            self._driver.close()


def _event(told: object) -> HealthEvent:
    event = of_kind(HealthEvent, told)
    if event.uuid is not None:
        of_kind(str, event.uuid)
    return replace(event, fault=plausible_fault(event.fault))
