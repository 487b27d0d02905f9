"""Which vendors a daemon serves, and by which driver; those that are only scheduled do not disturb it."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.config.load import Configuration
from hami_plugin.config.settings import Settings
from hami_plugin.daemon import startup
from hami_plugin.daemon.startup import StartPlan, open_drivers
from hami_plugin.daemon.startup import plan as planned
from hami_plugin.errors import DriverUnavailableError, HamiError
from hami_plugin.host.paths import HostPaths
from hami_plugin.sdk import Vendor, load_vendor
from hami_plugin.simulation.hardware import simulate_all, vendor_of
from hami_plugin.simulation.machines import load_machine
from hami_plugin.vendor_boundary.isolated_driver import IsolatedDriver


def plan(vendors: Mapping[str, Mapping[str, Any]]) -> StartPlan:
    sections = {name: load_vendor(name).settings.model_validate(section) for name, section in vendors.items()}
    settings = Settings.model_validate({"nodeName": "n"})
    return StartPlan(configuration=Configuration(settings=settings, sections=sections))


TOY = Path(__file__).parents[1] / "e2e" / "more"
OPTIONS = {"config": None, "device_config": None, "node_config": None, "nvml_library": None, "simulation_dir": None}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A vendor with a node side, from another folder than ours."""
    vendors = importlib.import_module("vendors")
    monkeypatch.setattr(vendors, "__path__", [*vendors.__path__, str(TOY / "vendors")])
    importlib.invalidate_caches()
    yield "toy"
    for name in ("toy", "paper"):
        sys.modules.pop(f"vendors.{name}", None)


@pytest.fixture
def paper(toy: str) -> str:
    """A vendor without a node side, from the same folder."""
    assert toy
    return "paper"


def test_a_vendor_without_a_node_side_is_passed_over(paper: str) -> None:
    assert open_drivers(plan({paper: {"resourceCountName": "corp.example/card"}}), HostPaths()) == ()


def test_a_vendor_without_a_node_side_cannot_be_switched_on(paper: str) -> None:
    with pytest.raises(HamiError, match=r"vendors\.paper\.enabled: true, but Paper cards are only scheduled here"):
        open_drivers(plan({paper: {"enabled": True}}), HostPaths())


def test_what_has_no_node_side_says_so_when_it_is_asked(paper: str) -> None:
    (family,) = load_vendor(paper).families(load_vendor(paper).settings())

    with pytest.raises(HamiError, match="served by the vendor's own device plugin"):
        family.node.inject(None, None)  # type: ignore[arg-type]  # never gets that far


def served(vendors: Mapping[str, Mapping[str, Any]], host: HostPaths | None = None) -> list[str]:
    return [one.vendor.name for one in open_drivers(plan(vendors), host or HostPaths())]


def test_under_auto_a_vendor_is_served_where_its_hardware_is(toy: str, tmp_path: Path) -> None:
    host = HostPaths(dev=tmp_path)
    assert served({toy: {}}, host) == []

    (tmp_path / "toy0").touch()

    assert served({toy: {}}, host) == [toy]
    assert served({toy: {"enabled": "auto"}}, host) == [toy]


def test_a_vendor_that_is_enabled_is_served_whether_its_hardware_is_there_or_not(toy: str, tmp_path: Path) -> None:
    assert served({toy: {"enabled": True}}, HostPaths(dev=tmp_path)) == [toy]


@pytest.mark.parametrize(("isolated", "expected"), [(None, True), (True, True), (False, False)])
def test_a_vendor_that_needs_it_has_a_process_of_its_own_unless_somebody_says_otherwise(
    toy: str, isolated: bool | None, expected: bool
) -> None:
    (one,) = open_drivers(plan({toy: {"enabled": True, "isolated": isolated}}), HostPaths())

    assert isinstance(one.driver._opening(), IsolatedDriver) is expected


@pytest.mark.parametrize("conduct", ["raises", "hangs"])
def test_a_vendor_that_cannot_tell_whether_its_hardware_is_here_is_asked_by_its_driver(
    toy: str, conduct: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()

    def present(*_asked: object) -> bool:
        if conduct == "hangs":
            never.wait()
        raise ZeroDivisionError

    vendor = load_vendor(toy)
    broken = replace(vendor, present=present)
    monkeypatch.setattr(startup, "PRESENCE_S", 0.1)
    monkeypatch.setattr(startup, "load_vendor", lambda name: broken if name == toy else load_vendor(name))

    try:
        assert toy in served({toy: {}})
    finally:
        never.set()


def test_all_vendors_look_for_their_hardware_at_the_same_time(toy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes long holds up nobody. Whoever fails to say is taken for present."""
    both = threading.Barrier(2)

    def present(*_asked: object) -> bool:
        both.wait(30)
        return False

    def load(name: str) -> Vendor:
        return replace(load_vendor(name), present=present)

    monkeypatch.setattr(startup, "load_vendor", load)

    assert served({toy: {}, "amd": {}}) == []


def test_nothing_that_this_host_has_mixes_with_simulated_machines(toy: str, tmp_path: Path) -> None:
    (tmp_path / "toy0").touch()
    host = HostPaths(dev=tmp_path)
    options = {**OPTIONS, "simulate": "t4-4-pcie"}

    alone = open_drivers(planned(options, {"NODE_NAME": "n"}), host)
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"vendors": {toy: {"enabled": True}}}))
    both = open_drivers(planned({**options, "config": config}, {"NODE_NAME": "n"}), host)

    assert [one.vendor.name for one in alone] == ["nvidia"]
    assert [one.vendor.name for one in both] == ["nvidia", toy]


def test_two_machines_of_one_vendor_are_no_node() -> None:
    with pytest.raises(HamiError, match="two machines have NVIDIA GPUs"):
        simulate_all("t4-4-pcie,dgx-1v")


def test_two_machines_whose_files_have_one_name_do_not_share_a_folder(tmp_path: Path) -> None:
    for folder, profile in (("a", "gaudi2-8"), ("b", "kunlun-p800-8")):
        (tmp_path / folder).mkdir()
        text = (resources.files("hami_plugin.simulation") / f"profiles/{profile}.yaml").read_text(encoding="utf-8")
        (tmp_path / folder / "node.yaml").write_text(text, encoding="utf-8")
    both = f"{tmp_path}/a/node.yaml,{tmp_path}/b/node.yaml"

    with pytest.raises(HamiError, match="two machines are named node; rename one of them"):
        simulate_all(both, tmp_path / "machines")


def test_a_vendor_whose_hardware_is_not_here_is_passed_over_unless_it_is_enabled(tmp_path: Path) -> None:
    sysfs = {"sysfsRoot": str(tmp_path)}

    assert open_drivers(plan({"amd": sysfs, "awsneuron": sysfs}), HostPaths()) == ()

    (served,) = open_drivers(plan({"amd": {**sysfs, "enabled": True}, "awsneuron": sysfs}), HostPaths())
    with pytest.raises(DriverUnavailableError, match="no AMD GPU on the PCI bus"):
        served.driver.discover()


def test_a_vendor_is_served_where_its_hardware_is_even_without_a_driver(tmp_path: Path) -> None:
    simulator = vendor_of(load_machine("mi300x-8")).simulate(load_machine("mi300x-8"), tmp_path)
    simulator.inject("driver-gone")

    (served,) = open_drivers(plan({"amd": dict(simulator.settings())}), HostPaths())

    with pytest.raises(DriverUnavailableError, match="8 AMD GPUs are on the PCI bus, but no driver is bound to them"):
        served.driver.discover()


def test_devices_without_names_of_their_own_are_named_after_the_node(tmp_path: Path) -> None:
    machine = load_machine("aws-inf2-xlarge")
    simulator = vendor_of(machine).simulate(machine, tmp_path)

    (served,) = open_drivers(plan({"awsneuron": dict(simulator.settings())}), HostPaths())

    assert [one.device.uuid for one in served.driver.discover().sightings] == ["n-AWSNeuron-0"]
