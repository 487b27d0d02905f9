"""What the driver finds on a machine is what the machine's profile says, through a real library."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.simulation.machines import load_machine, machine_names
from vendors.ascend.driver import AscendDriver, link
from vendors.ascend.settings import CHIPS, MODULES

PROFILES = [name for name in machine_names() if name.startswith("ascend-")]
WORDS = {name: device_type for device_type, (name, *_rest) in CHIPS.items()}


def mixed():
    """A machine with two chips: the last NPU of a 910B3 machine is a 310P."""
    machine = load_machine("ascend-910b3-8")
    *rest, last = machine.devices
    return replace(machine, devices=(*rest, replace(last, model="310P3")))


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_is_discovered_as_it_is_written(rig, profile):
    built = rig(profile)

    discovery = built.driver.discover()

    assert discovery.problems == ()
    assert [
        (d.uuid, d.index, d.minor, d.model, d.memory, d.pci, d.numa, d.family)
        for d in (sighting.device for sighting in discovery.sightings)
    ] == [
        (d.uuid, d.index, d.extra["phy_id"], d.model, d.memory, d.pci, d.numa, WORDS[d.model])
        for d in built.machine.devices
    ]
    assert all(sighting.fault is None for sighting in discovery.sightings)


def test_chips_of_one_card_are_closer_than_those_behind_the_switch(rig):
    built = rig("ascend-910c-16")
    first, twin, near, far, *_ = (device.uuid for device in built.devices())

    links = built.driver.links()

    assert [links.between(first, other).label for other in (twin, near, far)] == ["SIO", "HCCS_SW", "HCCS_SW"]
    assert links.score(first, twin) > links.score(first, near)


def test_dcmis_numbers_are_no_order():
    labels = {kind: link(kind, same_numa=True).label for kind in range(1, 8)}

    assert labels == {1: "SYS", 2: "PHB", 3: "HCCS", 4: "PXB", 5: "PIX", 6: "SIO", 7: "HCCS_SW"}
    scores = {label: link(kind, same_numa=True).score for kind, label in labels.items()}
    assert sorted(scores, key=scores.__getitem__) == ["SYS", "PHB", "PXB", "PIX", "HCCS", "HCCS_SW", "SIO"]
    with pytest.raises(ValueError, match="unknown connection, 9"):
        link(9, same_numa=True)


def test_two_chips_on_one_node_are_of_two_families(rig):
    built = rig(mixed())

    assert [device.family for device in built.devices()] == ["Ascend910B3"] * 7 + ["Ascend310P"]
    assert built.devices()[7].memory == CHIPS["Ascend310P"][1]


def test_a_chip_that_is_not_configured_hides_no_other(rig):
    built = rig(mixed(), configs=[{"commonWord": "Ascend910B3"}])

    discovery = built.driver.discover()

    assert len(discovery.sightings) == 7
    assert "'310P3', which no entry of vnpus.configs names" in discovery.problems[0]


def test_the_number_of_an_npu_is_that_of_its_node(rig):
    machine = load_machine(PROFILES[0])
    shifted = tuple(replace(d, extra={**d.extra, "phy_id": d.extra["phy_id"] + 8}) for d in machine.devices)

    devices = rig(replace(machine, devices=shifted)).devices()

    assert [(device.index, device.minor) for device in devices] == [(n, n) for n in range(8, 16)]


def test_modules_are_one_word_for_two_chips_of_a_card(rig):
    assert {device.family for device in rig("ascend-910c-16").devices()} == {MODULES}


@pytest.mark.parametrize(
    ("breaks", "reason", "words"),
    [
        (lambda rig: rig.simulator.inject("unplug"), DriverReason.NO_DEVICES, "no NPU is on the PCI bus"),
        (lambda rig: rig.simulator.inject("driver-gone"), DriverReason.NO_DRIVER, "davinci_manager is missing"),
        (
            lambda rig: (rig.simulator.directory / "libdcmi.so").unlink(),
            DriverReason.NO_LIBRARY,
            "the driver's library cannot be loaded",
        ),
        (
            lambda rig: (rig.simulator.directory / "npus").write_text("driver"),
            DriverReason.FAILED,
            r"dcmi_init answered InnerError \(-8005\)",
        ),
        (lambda rig: rig.simulator.inject("garbage"), DriverReason.NO_DEVICES, "answers a die number of zeros"),
        (lambda rig: rig.simulator.inject("lost"), DriverReason.NO_DEVICES, "DeviceDoesNotExist"),
    ],
    ids=["no NPU", "no module", "no library", "garbage", "no names", "none answers"],
)
def test_a_driver_that_shows_nothing_says_what_is_missing(rig, breaks, reason, words):
    built = rig("ascend-310p-8")
    breaks(built)

    with pytest.raises(DriverUnavailableError, match=words) as caught:
        built.driver.discover()

    assert caught.value.reason is reason
    assert caught.value.hint


def test_what_refuses_is_told_apart_from_what_fails(rig):
    built = rig("ascend-310p-8")
    state = built.simulator.directory / "npus"
    state.write_text(state.read_text().replace("24.1.rc3 0 ", "24.1.rc3 -8002 "))

    with pytest.raises(DriverUnavailableError, match="run the daemon as root") as caught:
        built.driver.discover()

    assert caught.value.reason is DriverReason.NO_PERMISSION


def test_a_driver_of_dcmi_2_alone_is_named_as_such(rig):
    built = rig("ascend-310p-8")

    class OnlyV2:
        def dcmiv2_init(self):
            return 0

    driver = AscendDriver(built.settings, HostPaths(), load=lambda _path: OnlyV2())

    with pytest.raises(DriverUnavailableError, match="this driver has DCMI 2 only"):
        driver.discover()


def test_the_library_is_looked_for_in_the_drivers_folders(rig, tmp_path):
    built = rig("ascend-310p-8")
    tried = []

    def load(path):
        tried.append(path)
        raise OSError("no such file")

    settings = built.settings.model_copy(update={"dcmi_library": None, "container_driver_root": tmp_path / "host"})

    with pytest.raises(DriverUnavailableError):
        AscendDriver(settings, HostPaths(), load=load).discover()
    assert tried == [
        "libdcmi.so",
        f"{tmp_path}/host/usr/local/Ascend/driver/lib64/driver/libdcmi.so",
        f"{tmp_path}/host/usr/local/dcmi/libdcmi.so",
    ]
