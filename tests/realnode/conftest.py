"""One real node for all cases, with the daemon installed by its manifest; and a table of the cases with their times."""

from collections import defaultdict

import pytest

from tests.charts.library import library
from tests.realnode import ground, images, readme, traces, versions
from tests.realnode import node as nodes
from tests.realnode.daemon import Daemon
from tests.realnode.install import install
from tests.realnode.placing import Scheduler
from tests.realnode.pods import Pods
from tests.realnode.release import SIMULATION, Release, values
from tests.realnode.servers import until
from tools.debian.commands import LackingError

PROFILE = "dgx-h100"
SHARES = 80
LAST = ("o", "z")
"""The release is uninstalled, and then the node is gone: other cases come before, whatever their letters."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "case(letter, title): which case of the table a test belongs to")
    config.addinivalue_line(
        "markers", "since(minor, gates=True): what older Kubernetes do not have, or not even with gates"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the order of the cases' letters, but for the ``LAST``."""
    try:
        chosen = versions.chosen()
    except LackingError as error:
        raise pytest.UsageError(str(error)) from error
    ahead = [item for item in items if any(_is_ahead(since, chosen) for since in item.iter_markers("since"))]
    config.hook.pytest_deselected(items=ahead)
    items[:] = [item for item in items if item not in ahead]
    items.sort(key=_place)


def _is_ahead(since: pytest.Mark, chosen: versions.Kubernetes) -> bool:
    newest = chosen.as_new_as if since.kwargs.get("gates", True) else chosen.minor
    return bool(since.args[0] > newest)


def _place(item: pytest.Item) -> tuple[bool, str]:
    marker = item.get_closest_marker("case")
    letter = marker.args[0] if marker else ""
    return letter in LAST, letter


@pytest.fixture(scope="session")
def before() -> traces.Traces:
    """The machine before anything was started."""
    return traces.seen()


@pytest.fixture(scope="session")
def stack():
    """The node's programs. Helm is fetched too, so that what is lacking shows before anything starts."""
    _or_skip(library)
    return _or_skip(install)


@pytest.fixture(scope="session")
def session(before, stack):
    """The running node, and how to end it before the session does."""
    running = nodes.running(stack)
    node = _or_skip(running.__enter__)
    ended = False

    def end() -> None:
        nonlocal ended
        if not ended:
            ended = True
            running.__exit__(None, None, None)

    yield node, end
    end()


@pytest.fixture(scope="session")
def node(session) -> nodes.Node:
    return session[0]


@pytest.fixture(scope="session")
def installed(node, stack) -> Daemon:
    """The chart, installed as the README says; the third of its commands has a case of its own."""
    busybox = node.path("/bin/busybox")
    node.load(stack.image.read_bytes())
    node.load(images.scheduler(stack.programs / "kube-scheduler", stack.kubernetes.version))
    node.load(images.core(busybox))
    node.load(images.cuda(busybox))
    node.path(SIMULATION).mkdir()
    install, label, _ = readme.commands(ground.NAME)
    assert install == readme.HELM_INSTALL
    Release(node=node).install(values(PROFILE))
    node.kubectl(*label[1:])
    daemon = Daemon(node=node, profile=PROFILE)
    daemon.await_ready()
    return daemon


@pytest.fixture
def daemon(installed, node) -> Daemon:
    """The daemon, ready, with all its shares on offer."""
    installed.await_ready()
    until(lambda: node.allocatable("nvidia.com/gpu") == SHARES, f"{SHARES} shares", 60)
    return installed


@pytest.fixture
def scheduler(installed, node) -> Scheduler:
    """Whoever places pods, ready."""
    placing = Scheduler(node=node)
    placing.await_ready()
    return placing


@pytest.fixture
def pods(daemon, scheduler, node):
    made = Pods(node=node, place=scheduler.place)
    yield made
    made.clear()


def _or_skip(what):
    try:
        return what()
    except LackingError as error:
        pytest.skip(f"no real node here: {error}")


_figures: list[str] = []
_times: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    marker = item.get_closest_marker("case")
    if marker and (call.when == "call" or report.outcome != "passed"):
        _times[marker.args].append((call.duration, report.outcome))
        _figures.extend(str(value) for name, value in item.user_properties if name == "figures")
    return report


def pytest_terminal_summary(terminalreporter) -> None:
    if not _times:
        return
    chosen = versions.chosen()
    with_gates = f", {', '.join(chosen.gates)}" if chosen.gates else ""
    terminalreporter.section(f"cases on a real node of Kubernetes {chosen.version[1:]}{with_gates}")
    for (letter, title), runs in sorted(_times.items(), key=lambda one: (one[0][0] in LAST, one[0])):
        outcomes = {outcome for _, outcome in runs}
        outcome = "failed" if "failed" in outcomes else "ok" if outcomes == {"passed"} else "skipped"
        terminalreporter.write_line(f"{letter}  {outcome:8} {sum(s for s, _ in runs):6.1f} s  {title}")
    for line in dict.fromkeys(_figures):
        terminalreporter.write_line(line)
