"""Lets the others see only devices that a container runtime would find in CDI specs.

It stands between discovery and everybody who is told of devices: one is offered, registered and handed out after its
spec is in place. What is found wrong makes the device unhealthy, with the reason, until it is mended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from hami_plugin.aio import Watched
from hami_plugin.host.drivers import StuckError, WorkThread
from hami_plugin.log import logger
from hami_plugin.model.device import Device, Fault, Health, Snapshot
from hami_plugin.node.events import EventRecorder
from hami_plugin.node.spec_files import Verdict
from hami_plugin.policy.specs import MISSING

log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times in seconds: between looks at the directories, until files are described anew, until a disk is too slow."""

    look: float = 2.0
    describe: float = 60.0
    patience: float = 5.0


class Files(Protocol):
    """A family's spec on the disk. Both calls block."""

    def publish(self, devices: tuple[Device, ...]) -> Verdict: ...

    def disturbed(self) -> bool: ...


class SpecPublisher:
    """Follows ``found``, and publishes in ``snapshot`` what a runtime can be asked for."""

    def __init__(
        self,
        kind: str,
        found: Watched[Snapshot],
        files: Files,
        *,
        events: EventRecorder,
        observe: Callable[[Snapshot], None] = lambda _snapshot: None,
        pace: Pace | None = None,
    ) -> None:
        self.kind = kind
        self.snapshot: Watched[Snapshot] = Watched(Snapshot())
        self.problem = "no spec is written yet"
        self._found = found
        self._files = files
        self._events = events
        self._observe = observe
        self._pace = pace or Pace()
        self._thread = WorkThread(f"cdi {kind}")
        self._verdict = Verdict(faults={})

    async def run(self) -> None:
        """Until ``found`` is closed: after each change of it or of the directories, and now and then anyway."""
        seen, due = -1, 0.0
        while not self._found.closed:
            changed = self._found.version != seen
            seen, snapshot = self._found.version, self._found.value
            if snapshot.devices and (
                changed or time.monotonic() >= due or self._verdict.faults or await self._disturbed()
            ):
                due = time.monotonic() + self._pace.describe
                self._judge(await self._published(snapshot), snapshot)
            if changed or snapshot.devices:
                self._show(snapshot)
            await self._found.changed(seen, timeout=self._pace.look)
        self.snapshot.close()
        self._thread.close()

    async def _disturbed(self) -> bool:
        try:
            return await self._thread.call(self._files.disturbed, self._pace.patience)
        except StuckError:
            return True

    async def _published(self, snapshot: Snapshot) -> Verdict:
        try:
            return await self._thread.call(lambda: self._files.publish(snapshot.devices), self._pace.patience)
        except StuckError as error:
            words = f"the disk with the CDI specs does not answer: {error}"
            known = {device.uuid for device in self.snapshot.value.devices}
            new = {d.uuid: Fault(reason=MISSING, message=words) for d in snapshot.devices if d.uuid not in known}
            return replace(self._verdict, faults={**self._verdict.faults, **new}, trouble=words)

    def _judge(self, verdict: Verdict, snapshot: Snapshot) -> None:
        """Tell what is new. Nothing is told twice."""
        told = {(fault.reason, fault.message) for fault in self._verdict.faults.values()}
        for fault in dict.fromkeys(verdict.faults.values()):
            if (fault.reason, fault.message) not in told:
                log.warning("cdi spec", kind=self.kind, reason=fault.reason, why=fault.message)
                self._events.node(fault.reason, fault.message)
        if verdict.trouble and verdict.trouble != self._verdict.trouble:
            log.warning("cdi spec", kind=self.kind, why=verdict.trouble)
        for why in verdict.beside:
            if why not in self._verdict.beside:
                log.warning("a cdi spec of others cannot be used", kind=self.kind, why=why)
        if self._verdict.faults and not verdict.faults:
            log.info("cdi spec is in order again", kind=self.kind, devices=len(snapshot.devices))
        self._verdict = verdict
        self.problem = next((fault.message for fault in verdict.faults.values()), verdict.trouble)

    def _show(self, snapshot: Snapshot) -> None:
        shown = replace(snapshot, devices=tuple(self._marked(device) for device in snapshot.devices))
        if self.snapshot.set(shown):
            self._observe(shown)

    def _marked(self, device: Device) -> Device:
        fault = self._verdict.faults.get(device.uuid)
        if fault is None or not device.health.offered:
            return device
        return replace(device, health=Health.UNHEALTHY, reason=fault.reason, message=fault.message)
