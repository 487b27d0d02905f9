"""Simulated Ascend machines with the real driver before them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.machine import Machine
from hami_plugin.sdk import Family
from tests.support.rigs import known
from vendors.ascend import VENDOR
from vendors.ascend.driver import AscendDriver
from vendors.ascend.settings import AscendSettings
from vendors.ascend.simulation import NpuSimulator, simulate


@dataclass(slots=True, kw_only=True)
class Rig:
    """A machine, what disturbs it, and the driver, which polls without waiting."""

    machine: Machine
    simulator: NpuSimulator
    settings: AscendSettings
    driver: AscendDriver

    def devices(self) -> tuple[Device, ...]:
        return tuple(sighting.device for sighting in self.driver.discover().sightings)

    def family(self, device_type: str = "") -> Family:
        wanted = device_type or self.devices()[0].family
        return next(family for family in VENDOR.families(self.settings) if family.resources.device_type == wanted)

    def faults(self) -> dict[int, str]:
        """The reason of each NPU that is not well, by number."""
        return {s.device.index: s.fault.reason for s in self.driver.discover().sightings if s.fault}


@pytest.fixture
def rig(tmp_path: Path) -> Callable[..., Rig]:
    def build(profile: str | Machine, **configuration: Any) -> Rig:
        machine = profile if isinstance(profile, Machine) else known(profile)
        simulator = simulate(machine, tmp_path / machine.name)
        settings = AscendSettings.model_validate({**simulator.settings(), **configuration})
        driver = AscendDriver(settings, HostPaths(), sleep=lambda _seconds: None)
        return Rig(machine=machine, simulator=simulator, settings=settings, driver=driver)

    return build
