"""What holds for all tests: their size, what may be skipped, and that nothing fails for a slow machine."""

import os
import sys

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.support.required import required
from tests.support.scale import FULL, examples

# No example has a deadline: Hypothesis' own, 200 ms, fails whichever test a loaded machine holds up, and what must be
# fast has a test that counts. Making examples may be slow for the same reason. Where a build decides about a change,
# examples follow from the test alone, so that a red build is about the change; everywhere else they are new each time.
_CALM = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
_CALM |= {"max_examples": examples(settings.default.max_examples)}
settings.register_profile("any machine", **_CALM)
settings.register_profile("the same examples", derandomize=True, **_CALM)
settings.register_profile("any failure", derandomize=True, phases=(Phase.explicit, Phase.generate), **_CALM)
settings.load_profile("the same examples" if os.environ.get("CI") else "any machine")

# Some hundred processes are started: without bytecode each of them would compile everything anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to ``make test-all`` what is marked for it alone."""
    left = [item for item in items if not FULL and item.get_closest_marker("full")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """A test that skips fails instead where everything is required, with what it lacked."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and required():
        report.outcome = "failed"
        reason = call.excinfo.value if call.excinfo else "no reason given"
        report.longrepr = f"{item.nodeid} may not be skipped here: {reason}"
    return report


def pytest_report_header() -> str:
    size = "all cases of every subject (TEST_ALL)" if FULL else "a part of every subject (TEST_ALL=1: everything)"
    return f"{size}; {'nothing may be skipped (REQUIRE_ALL)' if required() else 'what this machine lacks is skipped'}"
