"""One look at all vendors, for commands: what one of them does wrong hides nobody else's devices."""

import pytest
from click.testing import CliRunner

from hami_plugin.cli import main
from hami_plugin.cli.snapshot import discover_each
from hami_plugin.config.vendors import VendorSettings
from hami_plugin.daemon.startup import ServedVendor
from hami_plugin.errors import DriverReason, DriverUnavailableError, HamiError
from hami_plugin.sdk import Vendor
from hami_plugin.vendor_boundary.guard import CheckedDriver
from tests.support.beside import OddDriver


def served(driver):
    vendor = Vendor(name="odd", title="Odd cards", settings=VendorSettings, families=lambda _: ())
    return ServedVendor(vendor=vendor, settings=VendorSettings(), driver=driver)


class Raising(OddDriver):
    def __init__(self, error):
        super().__init__(0)
        self.error = error

    def discover(self):
        raise self.error


MISTAKE = ZeroDivisionError("a mistake")
AWAY = DriverUnavailableError(DriverReason.NO_DRIVER, "no module")


@pytest.mark.parametrize("error", [MISTAKE, AWAY])
def test_a_vendor_that_fails_hides_nobody_elses_devices(error):
    found = list(discover_each([served(Raising(error)), served(OddDriver(0, 1))]))

    assert [[device.uuid for device in one.snapshot.devices] for one in found] == [["odd-0", "odd-1"]]


def test_a_driver_that_cannot_be_closed_hides_nobody_elses_devices_nor_its_own():
    class Sticking(OddDriver):
        def close(self):
            raise MISTAKE

    found = list(discover_each([served(Sticking(0)), served(OddDriver(0, 1))]))

    assert [len(one.snapshot.devices) for one in found] == [1, 2]


def test_what_no_driver_can_tell_is_a_problem_of_its_vendor_too():
    with pytest.raises(HamiError, match=r"Odd cards: TypeError: "):
        list(discover_each([served(CheckedDriver(lambda: OddDriver(0, change=lambda _: 7)))]))


def test_where_nobody_has_devices_each_reason_is_told():
    with pytest.raises(HamiError) as told:
        list(discover_each([served(Raising(MISTAKE)), served(Raising(AWAY))]))

    assert "Odd cards: ZeroDivisionError: a mistake; Odd cards: NoDriver: no module" in str(told.value)


def test_where_no_vendor_is_served_that_is_what_is_told():
    with pytest.raises(HamiError, match="this host has no hardware of any vendor"):
        list(discover_each([]))


def test_each_vendors_heat_map_has_a_file_of_its_own(tmp_path):
    drawn = tmp_path / "node.svg"

    outcome = CliRunner().invoke(main, ["topology", "--simulate", "dgx-1v,mi300x-8", "--svg", str(drawn)])

    assert outcome.exit_code == 0, outcome.output
    pictures = sorted(tmp_path.iterdir())
    assert pictures == [tmp_path / "node-2.svg", drawn]
    assert len({picture.read_text() for picture in pictures}) == 2
    assert [line for line in outcome.output.splitlines() if line.startswith("Wrote")] == [
        f"Wrote {drawn}",
        f"Wrote {tmp_path / 'node-2.svg'}",
    ]
