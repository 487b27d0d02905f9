"""NVIDIA's driver, as the daemon sees it: look at cards, measure links, wait for XIDs, over NVML."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hami_plugin.errors import DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.log import logger
from hami_plugin.model.device import Discovery, Fault, Sighting
from hami_plugin.model.links import NO_LINKS, Links
from hami_plugin.sdk import HealthEvent
from hami_plugin.sdk.polling import Busy
from vendors.nvidia.binding import BARE_NAME, NoLibraryError, NvmlError
from vendors.nvidia.discover import Discoverer
from vendors.nvidia.events import EventWatch
from vendors.nvidia.host import HostTrees
from vendors.nvidia.library import Handle, Nvml
from vendors.nvidia.links import measure
from vendors.nvidia.trouble import driver_unavailable, library_missing

if TYPE_CHECKING:  # the driver also runs where pydantic is not installed
    from vendors.nvidia.settings import NvidiaSettings

log = logger(__name__)

# How often a card that does not answer is reason enough to open the driver anew.
REOPEN_SECONDS = 60.0
_LIBRARY_FOLDERS = ("usr/lib64", "usr/lib/*-linux-gnu", "usr/lib", "lib64", "lib/*-linux-gnu", "lib")


def library_places(settings: NvidiaSettings) -> tuple[str, ...]:
    """Where to look for NVML: the configured file alone, else the loader's own way, else the driver's root."""
    if settings.nvml_library:
        return (str(settings.nvml_library),)
    root = settings.container_driver_root
    return (BARE_NAME, *(str(root / folder / BARE_NAME) for folder in _LIBRARY_FOLDERS))


class NvmlDriver:
    """A ``Driver`` over NVML. It opens the library at the first look, and anew when its view may be out of date.

    NVML lists cards once, when it is opened. So a driver that was replaced, a card that came or went, and, once in a
    while, a card that does not answer, are reasons to open it anew.
    """

    def __init__(
        self,
        settings: NvidiaSettings,
        paths: HostPaths,
        *,
        clock: Callable[[], float] = time.monotonic,
        load: Callable[[str], Any] = ctypes.CDLL,
    ) -> None:
        self._host = HostTrees(sysfs=settings.sysfs_root or paths.sysfs, proc=settings.proc_root or paths.proc)
        self._nvml = Nvml(library_places(settings), load=load)
        self._busy = Busy()
        self._cards = Discoverer(self._nvml, self._host, settings, self._busy)
        self._events = EventWatch(self._nvml, settings.healthchecks.policy(), self._busy)
        self._clock = clock
        self._opened_at = 0.0
        self._opened_on: tuple[str, ...] = ()
        self._silent = False
        self._facts: Mapping[str, str] = {}
        self._handles: Mapping[str, Handle] = {}
        self._addresses: Mapping[str, str] = {}

    @property
    def busy_with(self) -> str | None:
        return self._busy.uuid

    def discover(self) -> Discovery:
        try:
            if self._nvml.is_open and self._up_to_date():
                try:
                    return self._look()
                except NvmlError as error:
                    log.warning("driver does not answer, opening it anew", error=str(error))
            self.close()
            self._open()
            return self._look()
        except NvmlError as error:
            version = self._version()
            self.close()
            raise driver_unavailable(error, self._host, version) from error
        except DriverUnavailableError:
            self.close()
            raise

    def _up_to_date(self) -> bool:
        """Whether the library that is open still sees the driver and the cards that there are."""
        if self._host.signature() != self._opened_on:
            log.info("driver or cards have changed, opening the driver anew")
            return False
        if self._silent and self._clock() - self._opened_at >= REOPEN_SECONDS:
            log.info("a card does not answer, opening the driver anew")
            return False
        return True

    def links(self) -> Links:
        if not self._nvml.is_open:
            return NO_LINKS
        try:
            return measure(self._nvml, self._handles, self._addresses, self._busy)
        except NvmlError as error:
            return Links(problems=(f"the driver went away while links were measured: {error}",))

    def poll(self, timeout: float) -> Sequence[HealthEvent]:
        events = self._events.poll(timeout)
        if self._events.driver_gone:
            self.discover()  # opens the driver anew, or tells why it cannot
        return events

    def close(self) -> None:
        self._events.suspend()
        self._handles = {}
        self._cards.forget_order()
        self._nvml.close()

    def _open(self) -> None:
        self._opened_on, self._opened_at = self._host.signature(), self._clock()
        try:
            self._nvml.open()
        except NoLibraryError as error:
            raise library_missing(str(error), self._host) from error
        self._facts = self._versions()
        log.info("driver opened", **self._facts)

    def _version(self) -> str:
        """Version of the driver that the library belongs to: ``12.535.104.05`` is that of 535.104.05."""
        with suppress(NvmlError):
            return self._nvml.nvml_version().partition(".")[2]
        return ""

    def _versions(self) -> dict[str, str]:
        """Versions as far as the driver tells them: none is needed to work."""
        asked = {"driver": self._nvml.driver_version, "cuda": self._nvml.cuda_version, "nvml": self._nvml.nvml_version}
        facts = {}
        for name, ask in asked.items():
            with suppress(NvmlError):
                facts[name] = ask()
        return facts

    def _look(self) -> Discovery:
        look = self._cards.look()
        self._handles = look.handles
        self._silent = bool(look.problems) or any(s.device.uuid not in look.handles for s in look.sightings)
        self._addresses = {sighting.device.uuid: sighting.device.pci for sighting in look.sightings}
        well = {s.device.uuid for s in look.sightings if s.fault is None}
        faults = self._events.watch(look.handles, well)
        return Discovery(
            sightings=tuple(_with(sighting, faults) for sighting in look.sightings),
            problems=look.problems,
            facts=self._facts,
        )


def _with(sighting: Sighting, faults: Mapping[str, Fault]) -> Sighting:
    fault = faults.get(sighting.device.uuid)
    return Sighting(device=sighting.device, fault=fault) if fault else sighting


def open_driver(settings: NvidiaSettings, paths: HostPaths) -> NvmlDriver:
    """What the daemon calls to get the driver. Nothing is loaded before the first look."""
    if settings.operating_mode == "mps":
        log.warning("operating mode mps is registered as such, and containers share cards as in hami-core")
    return NvmlDriver(settings, paths)
