"""Wait for XIDs, the driver's own fault messages, without ever spinning when the wait itself fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from hami_plugin.log import logger
from hami_plugin.model.device import Fault
from hami_plugin.sdk import HealthEvent
from hami_plugin.sdk.polling import Busy
from vendors.nvidia.binding import NvmlError
from vendors.nvidia.library import Event, EventSet, Handle, Nvml
from vendors.nvidia.trouble import fault_of
from vendors.nvidia.xid import XidPolicy

log = logger(__name__)

# Events that are fetched in one poll at most: a storm is delivered in pieces.
MAX_EVENTS = 256


class EventWatch:
    """The event set of one open driver, and the cards that are registered with it.

    ``driver_gone``: the last wait has shown that no call at all can work before the driver is opened anew.
    """

    def __init__(
        self,
        nvml: Nvml,
        policy: XidPolicy,
        busy: Busy,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml = nvml
        self._policy = policy
        self._busy = busy
        self._sleep, self._clock = sleep, clock
        self._events: EventSet | None = None
        self._handles: dict[str, Handle] = {}
        self._silent: set[str] = set()
        self._backlog: tuple[HealthEvent, ...] = ()
        self._complaint = ""
        self.driver_gone = False

    def watch(self, handles: Mapping[str, Handle], well: Collection[str]) -> Mapping[str, Fault]:
        """Watch the ``well`` ones among the cards that answer, and answer the faults of those that cannot be.

        A card that is watched already stays so while it answers. One that does not is let go of, since it may fail
        the wait for all; NVML can only do that by starting over, so what has arrived is fetched first.
        """
        self.driver_gone = False
        if self._policy.silent:
            return {}
        address = self._nvml.address
        if any(u not in handles or address(handles[u]) != address(h) for u, h in self._handles.items()):
            self.suspend()
        faults = {}
        for uuid, handle in handles.items():
            if uuid in well and uuid not in self._handles and uuid not in self._silent:
                with self._busy.asking(uuid):
                    fault = self._register(uuid, handle)
                if fault:
                    faults[uuid] = fault
        return faults

    def _register(self, uuid: str, handle: Handle) -> Fault | None:
        try:
            if self._events is None:
                self._events = self._nvml.event_set()
            if self._nvml.watch_xids(handle, self._events):
                self._handles[uuid] = handle
            else:
                self._silent.add(uuid)
        except NvmlError as error:
            if error.driver_gone:
                raise
            if not error.unsupported:
                return fault_of(error)
            self._silent.add(uuid)
        return None

    def poll(self, timeout: float) -> tuple[HealthEvent, ...]:
        """Wait up to ``timeout`` seconds, and never return empty-handed much earlier."""
        start = self._clock()
        backlog, self._backlog = self._backlog, ()
        found = backlog + self._fetch(0 if backlog else timeout)
        if not found:
            self._sleep(max(0.0, timeout - (self._clock() - start)))
        return found

    def _fetch(self, timeout: float) -> tuple[HealthEvent, ...]:
        if self._events is None or not self._handles:
            return ()
        found: dict[HealthEvent, None] = {}
        milliseconds = max(0, int(timeout * 1000))
        try:
            for _ in range(MAX_EVENTS):
                event = self._nvml.wait(self._events, milliseconds)
                milliseconds = 0
                found |= dict.fromkeys(self._judge(event))
        except NvmlError as error:
            if not error.timeout:
                found |= dict.fromkeys(self._wait_failed(error))
        return tuple(found)

    def _judge(self, event: Event) -> tuple[HealthEvent, ...]:
        """What an event says of its card. On a partitioned card, of the whole card: all its shares suffer."""
        if event.xid is None:
            return ()
        uuid = next((u for u, h in self._handles.items() if self._nvml.address(h) == event.address), None)
        fault = self._policy.fault(event.xid)
        if fault is None:
            log.debug("xid ignored", device=uuid, xid=event.xid)
            return ()
        if uuid is None:
            log.warning("xid of an unknown card", xid=event.xid)
            return self._lost()
        return (HealthEvent(uuid=uuid, fault=fault),)

    def _wait_failed(self, error: NvmlError) -> tuple[HealthEvent, ...]:
        """The wait fails for all when one card is gone. Find that one, and wait on without it."""
        if error.driver_gone:
            self.close()
            self.driver_gone = True
            return ()
        if self._complaint != error.name:
            self._complaint = error.name
            log.warning("waiting for events failed", error=str(error))
        lost = self._lost()
        left = {u: h for u, h in self._handles.items() if all(event.uuid != u for event in lost)}
        self.close()
        with suppress(NvmlError):  # the next look registers what could not be registered now
            self.watch(left, left)
        return lost

    def _lost(self) -> tuple[HealthEvent, ...]:
        """The cards that do not answer any more."""
        found = []
        for uuid, handle in self._handles.items():
            with self._busy.asking(uuid):
                try:
                    self._nvml.uuid(handle)
                    self._nvml.memory(handle)
                except NvmlError as error:
                    if not error.driver_gone and not error.unsupported:
                        found.append(HealthEvent(uuid=uuid, fault=fault_of(error), confirmed=True))
        return tuple(found)

    def suspend(self) -> None:
        """Let go of all registrations, but keep what has arrived for the next poll."""
        self._backlog += self._fetch(0)
        self.close()

    def close(self) -> None:
        """Let go of the event set and of all registrations."""
        events, self._events = self._events, None
        self._handles.clear()
        self._silent.clear()
        if events is not None:
            with suppress(NvmlError):
                self._nvml.free(events)
