"""What holds for all tests: nothing is skipped where everything is required, and nothing fails for a slow machine."""

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.support.required import required

# No example has a deadline: Hypothesis' own, 200 ms, fails whichever test a loaded machine holds up, and what must be
# fast has a test that counts. Making examples may be slow for the same reason. Where a build decides about a change,
# examples follow from the test alone, so that a red build is about the change; everywhere else they are new each time.
_CALM = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("any machine", **_CALM)
settings.register_profile("the same examples", derandomize=True, **_CALM)
settings.load_profile("the same examples" if os.environ.get("CI") else "any machine")


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
    return "every test must run (REQUIRE_ALL)" if required() else "what this machine cannot run is skipped"
