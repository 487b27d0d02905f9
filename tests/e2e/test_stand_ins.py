"""What takes the place of a module's own in a daemon under test."""

import pytest

from hami_plugin.daemon import app
from tests.support.forked import stand_in


def test_nothing_takes_the_place_of_a_name_that_no_function_of_the_module_reads():
    with pytest.raises(LookupError, match=r"no function of hami_plugin.daemon.app reads DaemonProcess"):
        stand_in(app, "DaemonProcess", None)
