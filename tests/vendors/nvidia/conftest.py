from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.machine import Machine
from tests.support.rigs import known
from vendors.nvidia.driver import NvmlDriver
from vendors.nvidia.settings import NvidiaSettings
from vendors.nvidia.simulation import NvmlSimulator, simulate


@dataclass(frozen=True)
class Rig:
    """A simulated machine, and the real driver on it."""

    machine: Machine
    simulator: NvmlSimulator
    settings: NvidiaSettings
    driver: NvmlDriver

    def uuid(self, index: int) -> str:
        return self.machine.devices[index].uuid

    def faults(self) -> dict[int, str]:
        """Index and reason of each card that is not well."""
        return {s.device.index: s.fault.reason for s in self.driver.discover().sightings if s.fault}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Builds rigs; the drivers are closed in the end, since a process holds one NVML library at a time."""
    drivers = []

    def build(profile: str = "dgx-h100", **settings: Any) -> Rig:
        machine = known(profile)
        simulator = simulate(machine, tmp_path / profile)
        chosen = NvidiaSettings.model_validate({**simulator.settings(), **settings})
        driver = NvmlDriver(chosen, HostPaths())
        drivers.append(driver)
        return Rig(machine=machine, simulator=simulator, settings=chosen, driver=driver)

    yield build
    for driver in drivers:
        driver.close()
