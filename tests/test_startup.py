"""Vendors that are only scheduled, or not here, do not disturb the daemon, and say so when somebody asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.config.load import Configuration
from hami_plugin.config.settings import Settings
from hami_plugin.errors import DriverUnavailableError, HamiError
from hami_plugin.host.paths import HostPaths
from hami_plugin.simulation.hardware import vendor_of
from hami_plugin.simulation.machines import load_machine
from hami_plugin.startup import Plan, opened
from hami_plugin.vendor import load_vendor


def plan(vendors: Mapping[str, Mapping[str, Any]]) -> Plan:
    sections = {name: load_vendor(name).settings.model_validate(section) for name, section in vendors.items()}
    settings = Settings.model_validate({"nodeName": "n"})
    return Plan(configuration=Configuration(settings=settings, vendors=sections), simulated=None)


def test_a_vendor_without_a_node_side_is_passed_over() -> None:
    assert opened(plan({"hygon": {"resourceCountName": "corp.example/dcu"}}), HostPaths()) == ()


def test_a_vendor_without_a_node_side_cannot_be_switched_on() -> None:
    with pytest.raises(HamiError, match=r"vendors\.hygon\.enabled: true, but Hygon DCUs are only scheduled here"):
        opened(plan({"hygon": {"enabled": True}}), HostPaths())


def test_what_has_no_node_side_says_so_when_it_is_asked() -> None:
    (family,) = load_vendor("hygon").families(load_vendor("hygon").settings())

    with pytest.raises(HamiError, match="served by the vendor's own device plugin"):
        family.inject(None, None)  # type: ignore[arg-type]  # never gets that far


def test_a_vendor_whose_hardware_is_not_here_is_passed_over_unless_it_is_enabled(tmp_path: Path) -> None:
    sysfs = {"sysfsRoot": str(tmp_path)}

    assert opened(plan({"amd": sysfs, "awsneuron": sysfs}), HostPaths()) == ()

    (served,) = opened(plan({"amd": {**sysfs, "enabled": True}, "awsneuron": sysfs}), HostPaths())
    with pytest.raises(DriverUnavailableError, match="no AMD GPU on the PCI bus"):
        served.driver.discover()


def test_a_vendor_is_served_where_its_hardware_is_even_without_a_driver(tmp_path: Path) -> None:
    simulator = vendor_of(load_machine("mi300x-8")).simulate(load_machine("mi300x-8"), tmp_path)  # type: ignore[misc]  # it can be
    simulator.inject("driver-gone")

    (served,) = opened(plan({"amd": dict(simulator.settings())}), HostPaths())

    with pytest.raises(DriverUnavailableError, match="amdgpu drives none of the 8"):
        served.driver.discover()


def test_devices_without_names_of_their_own_are_named_after_the_node(tmp_path: Path) -> None:
    machine = load_machine("aws-inf2-xlarge")
    simulator = vendor_of(machine).simulate(machine, tmp_path)  # type: ignore[misc]  # it can be

    (served,) = opened(plan({"awsneuron": dict(simulator.settings())}), HostPaths())

    assert [one.device.uuid for one in served.driver.discover().sightings] == ["n-AWSNeuron-0"]
