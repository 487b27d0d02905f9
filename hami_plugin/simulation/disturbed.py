"""A simulated machine that lives in files: its faults are changes of these, made by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hami_plugin.model.machine import Machine, MachineDevice

Disturb = Callable[[MachineDevice, int | str], None]
"""What a fault changes of one device. The value is whatever the fault asks for."""


class FileSimulator:
    """A ``Simulator``. ``faults`` are of one device each, ``machine_faults`` of the machine as a whole.

    It keeps nothing in memory, so any process that has been given the same folder may cause or end a fault.
    """

    def __init__(
        self,
        machine: Machine,
        settings: Mapping[str, Any],
        faults: Mapping[str, Disturb],
        machine_faults: Mapping[str, Callable[[], None]],
    ) -> None:
        self._machine = machine
        self._settings = settings
        self._faults = faults
        self._machine_faults = machine_faults

    def settings(self) -> Mapping[str, Any]:
        return self._settings

    def inject(self, fault: str, device: int | None = None, value: int | str = 0) -> None:
        """Cause a fault, on one device by its index or on all."""
        if fault in self._machine_faults:
            self._machine_faults[fault]()
            return
        disturb = self._faults.get(fault)
        if disturb is None:
            names = ", ".join((*self._faults, *self._machine_faults))
            raise ValueError(f"no fault is named {fault!r}; choose from: {names}")
        chosen = [one for one in self._machine.devices if device is None or one.index == device]
        if not chosen:
            raise ValueError(f"there is no device {device}; {self._machine.name} has {len(self._machine.devices)}")
        for one in chosen:
            disturb(one, value)
