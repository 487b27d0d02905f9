"""How what serves a vendor is built: where its cards are changed, and where that is written down."""

import pytest

from hami_plugin.config.vendors import VendorSettings
from hami_plugin.daemon.build import BuiltVendor, _isolated_modes, _isolated_partitions
from hami_plugin.daemon.startup import ServedVendor
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.process.threads import BoundedCalls
from hami_plugin.sdk import Vendor
from hami_plugin.vendor_boundary.guard import CheckedDriver, Guard, VendorErrors
from hami_plugin.vendor_boundary.isolated_driver import IsolatedModeDriver, IsolatedPartitionDriver
from tests.support.builders import FAMILY, changed
from tests.support.hardware import ScriptedDriver

HOST = HostFiles(paths=HostPaths())


def built(*, isolated: bool = False) -> BuiltVendor:
    errors = VendorErrors("toy")
    vendor = Vendor(
        name="toy", title="toy", settings=VendorSettings, families=lambda _settings: (FAMILY,), isolated=isolated
    )
    served = ServedVendor(vendor=vendor, settings=VendorSettings(), driver=CheckedDriver(ScriptedDriver))
    guard = Guard(BoundedCalls("toy", timeout=1.0), errors)
    return BuiltVendor(served=served, tasks=None, guard=guard, errors=errors)  # type: ignore[arg-type]  # none is run


@pytest.mark.parametrize(
    ("isolate", "kind"), [(_isolated_partitions, IsolatedPartitionDriver), (_isolated_modes, IsolatedModeDriver)]
)
def test_cards_are_changed_in_a_process_of_their_own_if_the_vendors_driver_has_one(isolate, kind) -> None:
    opened = object()

    assert isinstance(built(isolated=True).changer(lambda _host: opened, isolate, HOST)(), kind)
    assert built().changer(lambda _host: opened, isolate, HOST)() is opened


def test_what_is_changed_at_each_familys_cards_has_a_file_of_its_own_in_the_state_directory() -> None:
    vendor, other = built(), changed(FAMILY, device_type="A/B:c")

    names = {vendor.journal(what, family) for what in ("partitions", "modes") for family in (FAMILY, other)}

    assert len(names) == 4
    assert "modes-toy-A_B_c" in names
