"""How what serves a vendor is built: where its cards are changed, and where that is written down."""

from types import SimpleNamespace

from hami_plugin.config.vendors import VendorSettings
from hami_plugin.daemon import app
from hami_plugin.daemon.build import BuiltVendor
from hami_plugin.daemon.startup import ServedVendor
from hami_plugin.process.concurrency import BoundedCalls
from hami_plugin.sdk import Vendor
from hami_plugin.vendor_boundary.guard import CheckedDriver, Guard, VendorErrors
from tests.support.beside import beside
from tests.support.builders import FAMILY, REGISTER, changed
from tests.support.hardware import ScriptedDriver
from tests.support.node import until


def built() -> BuiltVendor:
    errors = VendorErrors("toy")
    vendor = Vendor(name="toy", title="toy", settings=VendorSettings, families=lambda _settings: (FAMILY,))
    served = ServedVendor(vendor=vendor, settings=VendorSettings(), driver=CheckedDriver(ScriptedDriver))
    guard = Guard(BoundedCalls("toy", timeout=1.0), errors)
    return BuiltVendor(served=served, tasks=None, guard=guard, errors=errors)  # type: ignore[arg-type]  # none is run


def test_what_is_changed_at_each_familys_cards_has_a_file_of_its_own_in_the_state_directory() -> None:
    vendor, other = built(), changed(FAMILY, device_type="A/B:c")

    names = {vendor.journal(what, family) for what in ("partitions", "modes") for family in (FAMILY, other)}

    assert len(names) == 4
    assert "modes-toy-A_B_c" in names


async def test_what_only_the_start_needed_of_memory_is_given_back_once_the_node_is_published(monkeypatch):
    trims = []
    async with beside() as stage:
        libc = SimpleNamespace(malloc_trim=lambda pad: trims.append((pad, REGISTER in stage.api.node.annotations)))
        monkeypatch.setattr(app, "ctypes", SimpleNamespace(CDLL=lambda _none: libc))
        await until(lambda: trims)

    assert trims == [(0, True)]


async def test_a_libc_that_keeps_nothing_back_is_asked_for_nothing(monkeypatch):
    asked = []
    monkeypatch.setattr(app, "ctypes", SimpleNamespace(CDLL=lambda _none: asked.append("libc")))
    async with beside() as stage:
        await until(lambda: asked)
        await stage.the_other_is_served()
