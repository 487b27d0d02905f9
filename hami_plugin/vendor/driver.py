"""What a vendor's driver is asked on a node, and the faults that it tells of in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hami_plugin.model.device import Discovery, Fault
from hami_plugin.model.links import Links


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthEvent:
    """A fault of one device, or of all of a driver's devices when ``uuid`` is None."""

    uuid: str | None
    fault: Fault


class Driver(Protocol):
    """One vendor's driver. Every method blocks, is bounded, and is called on the driver's own thread only."""

    @property
    def busy_with(self) -> str | None:
        """UUID of the device that the call in progress is asking about. Read from other threads."""

    def discover(self) -> Discovery:
        """Look at every device. One that fails is a sighting with a fault.

        ``DriverUnavailableError`` when the driver as a whole does not answer.
        """

    def links(self) -> Links:
        """Measure every pair that the last ``discover`` saw. A pair that fails is a problem in the answer, no error."""

    def poll(self, timeout: float) -> Sequence[HealthEvent]:
        """Wait up to ``timeout`` seconds for health events; an empty answer is the usual one."""

    def close(self) -> None:
        """Let go of the driver. A later ``discover`` opens it again."""
