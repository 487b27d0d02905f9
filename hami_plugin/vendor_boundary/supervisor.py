"""Restarts one vendor's loops when they raise. No other vendor's are touched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping

from hami_plugin.aio import Backoff
from hami_plugin.errors import HamiError
from hami_plugin.log import logger
from hami_plugin.vendor_boundary.guard import VendorErrors

log = logger(__name__)


class VendorSupervisor:
    """One vendor's. A loop that has run for ``backoff.cap`` seconds since it failed has recovered."""

    def __init__(self, errors: VendorErrors, backoff: Backoff | None = None) -> None:
        self._errors = errors
        self._backoff = backoff or Backoff(first=1.0, cap=30.0)
        self._wrong: dict[str, str] = {}

    @property
    def vendor(self) -> str:
        return self._errors.vendor

    @property
    def wrong(self) -> Mapping[str, str]:
        """Loops that have failed lately, with the reason."""
        return self._wrong

    def note(self, name: str, why: str) -> None:
        """Something of the vendor's that cannot begin again is wrong, for as long as the process lives."""
        self._wrong[name] = why

    async def keep(
        self,
        name: str,
        step: str,
        run: Callable[[], Coroutine[None, None, None]],
        crashed: Callable[[str], None] = lambda _why: None,
    ) -> None:
        """Run until ``run`` returns. When it raises, call ``crashed`` with the reason, and begin anew after a while."""
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
                self._wrong[name] = why = self._reason(name, step, error)
                self._notify(crashed, why)
            else:
                return
            finally:
                well.cancel()
            await asyncio.sleep(next(delays))

    def _reason(self, name: str, step: str, error: Exception) -> str:
        if not isinstance(error, HamiError):
            return self._errors.record(step, error).message
        if self._wrong.get(name) != str(error):
            log.warning("not served", vendor=self.vendor, what=name, why=str(error))
        return str(error)

    def _notify(self, crashed: Callable[[str], None], why: str) -> None:
        try:
            crashed(why)
        except HamiError as error:
            log.warning("vendor's devices not marked unhealthy", vendor=self.vendor, why=str(error))
        except Exception as error:  # noqa: BLE001  # the vendor's own objects may fail to be compared
            self._errors.record("withdrawal", error)
