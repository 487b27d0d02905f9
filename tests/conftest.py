"""What holds for all tests: where everything is required, as in CI, nothing is skipped."""

import pytest

from tests.support.required import required


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
