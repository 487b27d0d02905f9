"""What holds for all tests: their size, what may be skipped, and that nothing fails for a slow machine."""

import gc
import os
import sys
from itertools import accumulate, islice
from pathlib import Path

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

HERE = Path(__file__).parent
LONG = (
    *("tests/e2e/", "tests/seeds/", "tests/tools/", "tests/cli/test_devices_command.py"),
    *("tests/scheduler/extender/test_process.py", "tests/vendor_boundary/test_driver.py"),
    *("tests/scheduler/extender/test_outages.py", "tests/scheduler/extender/test_nothing_grows.py"),
    *("tests/vendors/test_new_vendor.py", "tests/vendors/nvidia/test_hostile_regions.py"),
)
"""What starts processes and waits for them, or has a test of minutes in ``make test-all``."""

# Some hundred processes are started: without bytecode each of them would compile everything anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What collecting makes stays to the end: nobody need look for garbage in it, now or while the tests run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """Each worker begins with a part of its own: on a fresh clone none compiles what another has compiled already."""
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker and collector.path == HERE:
        report.result = begun_at(report.result, int(worker["workerid"].removeprefix("gw")) / int(worker["workercount"]))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """No cases are made of a function that is left to ``make test-all``: each worker would make and drop them.

    A test that is asked for by its name is looked for, and deselected as it is without workers.
    """
    if FULL or not hasattr(collector.config, "workerinput") or any("::" in one for one in collector.config.args):
        return None
    return [] if any(getattr(mark, "name", "") == "full" for mark in getattr(obj, "pytestmark", ())) else None


def begun_at(nodes: list[pytest.Collector], part: float) -> list[pytest.Collector]:
    """All of them, beginning where this part of their code lies behind."""
    ends = list(accumulate(sum(file.stat().st_size for file in node.path.rglob("test_*.py")) for node in nodes))
    first = sum(end <= part * ends[-1] for end in ends)
    return nodes[first:] + nodes[:first]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to ``make test-all`` what is marked for it alone."""
    left = [item for item in items if not FULL and item.get_closest_marker("full")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("full")]
    if workers := int(getattr(config, "workerinput", {}).get("workercount", 0)):
        items[:] = long_first(sorted(items, key=lambda item: item.path.parts), workers)


def long_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Each worker begins with its part of the long tests, file by file: else one of them is the last that runs, alone.

    xdist gives each worker a run of the list, all of the same length, and moves what is left at the end of one's.
    """
    long = [item for item in items if item.nodeid.startswith(LONG)]
    files = list(dict.fromkeys(item.path for item in long))
    turn = {path: number % workers for number, path in enumerate(files)}
    rest = iter([item for item in items if not item.nodeid.startswith(LONG)])
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        ordered += (item for item in long if turn[item.path] == worker)
        ordered += islice(rest, max(0, len(items) * (worker + 1) // workers - len(ordered)))
    return [*ordered, *rest]


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


@pytest.fixture
def tell(request):
    """Print a line, whether or not output is captured."""
    plugins = request.config.pluginmanager
    reporter, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")

    def line(text):
        with capture.global_and_fixture_disabled():
            reporter.write_line(f"\n  {text}")

    return line
