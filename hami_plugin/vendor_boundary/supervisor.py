"""Keeps one vendor's loops going: one that ends by a mistake begins again, and nobody else's is touched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping

from hami_plugin.aio import Backoff
from hami_plugin.errors import HamiError
from hami_plugin.log import logger
from hami_plugin.vendor_boundary.guard import VendorErrors

log = logger(__name__)


class VendorSupervisor:
    """One vendor's. A loop that has run for ``backoff.cap`` seconds since it failed is well again."""

    def __init__(self, mistakes: VendorErrors, backoff: Backoff | None = None) -> None:
        self._mistakes = mistakes
        self._backoff = backoff or Backoff(first=1.0, cap=30.0)
        self._wrong: dict[str, str] = {}

    @property
    def vendor(self) -> str:
        return self._mistakes.vendor

    @property
    def wrong(self) -> Mapping[str, str]:
        """Loops that have failed lately, with the reason."""
        return self._wrong

    def note(self, name: str, words: str) -> None:
        """Something of the vendor's that cannot begin again is wrong, for as long as the process lives."""
        self._wrong[name] = words

    async def keep(
        self,
        name: str,
        step: str,
        run: Callable[[], Coroutine[None, None, None]],
        fallen: Callable[[str], None] = lambda _words: None,
    ) -> None:
        """Run until ``run`` returns. When it raises, call ``fallen`` with the reason, and begin anew after a while."""
        loop = asyncio.get_running_loop()
        delays = self._backoff.delays()
        while True:
            began = loop.time()
            well = loop.call_later(self._backoff.cap, self._wrong.pop, name, None)
            try:
                await run()
            except Exception as error:  # noqa: BLE001  # the line between one vendor and all others
                if loop.time() - began > self._backoff.cap:
                    delays = self._backoff.delays()
                self._wrong[name] = words = self._words(name, step, error)
                self._tell(fallen, words)
            else:
                return
            finally:
                well.cancel()
            await asyncio.sleep(next(delays))

    def _words(self, name: str, step: str, error: Exception) -> str:
        if not isinstance(error, HamiError):
            return self._mistakes.made(step, error).message
        if self._wrong.get(name) != str(error):
            log.warning("not served", vendor=self.vendor, what=name, why=str(error))
        return str(error)

    def _tell(self, fallen: Callable[[str], None], words: str) -> None:
        try:
            fallen(words)
        except HamiError as error:
            log.warning("vendor's failure not told", vendor=self.vendor, why=str(error))
        except Exception as error:  # noqa: BLE001  # what the vendor has told may itself be what cannot be compared
            self._mistakes.made("withdrawal", error)
