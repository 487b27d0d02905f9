"""Whatever a vendor's library does to its process, the daemon gets an answer or a reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.sdk import HealthEvent
from hami_plugin.vendor_boundary.isolated_driver import IsolatedDriver
from tests.support.scale import spread
from tests.vendor_boundary.toys import FAULT, NAMES, ToyDriver

Make = Callable[..., IsolatedDriver]


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def make(orders: Path) -> Iterator[Make]:
    made: list[IsolatedDriver] = []

    def build(deadline: float = 30.0) -> IsolatedDriver:
        made.append(IsolatedDriver(partial(ToyDriver, orders), deadline=deadline))
        return made[-1]

    yield build
    orders.unlink(missing_ok=True)
    for driver in made:
        driver.close()


def alive(process: int) -> bool:
    """Whether it still runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def process_of(driver: IsolatedDriver) -> int:
    assert driver.process
    return driver.process


def until(condition: Callable[[], bool], within: float = 30.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def failure(call: Callable[[], object]) -> DriverUnavailableError:
    with pytest.raises(DriverUnavailableError) as caught:
        call()
    return caught.value


def test_every_answer_is_what_the_driver_says_in_this_process(make: Make, orders: Path) -> None:
    driver, here = make(), ToyDriver(orders)

    found = driver.discover()

    assert found.sightings == here.discover().sightings
    assert driver.links() == here.links()
    assert list(driver.poll(0.01)) == []
    orders.write_text("warm")
    assert list(driver.poll(0.01)) == [HealthEvent(uuid=NAMES[1], fault=FAULT)]
    assert found.facts["process"] == str(driver.process) != str(os.getpid())


@pytest.mark.scenario("D10")
@pytest.mark.parametrize(
    ("order", "words"),
    spread(
        [
            ("crash", "was ended by SIGSEGV in a call of"),
            ("wild pointer", "was ended by SIGSEGV in a call of"),
            ("abort", "was ended by SIGABRT in a call of"),
            ("exit", "ended by itself with status 3 in a call of"),
        ],
        part=4,
    ),
)
@pytest.mark.parametrize("call", spread(["discover", "links", "poll"], part=3))
def test_a_library_that_ends_its_process_is_a_reason_and_the_next_look_starts_another(
    make: Make, orders: Path, order: str, words: str, call: str
) -> None:
    driver = make()
    first = driver.discover().facts["process"]
    orders.write_text(f"{call} {order}")

    error = failure(partial(getattr(driver, call), *[0.01][: call == "poll"]))
    orders.write_text("")

    assert (error.reason, driver.process) == (DriverReason.CRASHED, None)
    assert f"{words} {call}" in str(error)
    assert driver.discover().facts["process"] != first


def test_a_process_that_stops_in_mid_message_is_ended(
    make: Make, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hami_plugin.vendor_boundary.isolated_driver.STALL_S", 0.3)
    driver = make()
    driver.discover()
    process = process_of(driver)
    orders.write_text("half")

    error = failure(driver.discover)

    assert error.reason is DriverReason.HUNG
    assert not alive(process)


@pytest.mark.scenario("D9")
def test_a_library_that_hangs_is_ended_at_its_deadline_with_the_device_that_it_was_asked_about(
    make: Make, orders: Path
) -> None:
    driver = make()
    driver.discover()
    process = process_of(driver)
    driver._deadline = 1.0
    orders.write_text("hang")

    error = failure(driver.discover)

    assert error.reason is DriverReason.HUNG
    assert f"discover about device {NAMES[1]} did not come back" in str(error)
    assert not alive(process)
    assert driver.busy_with is None


def test_what_a_library_prints_is_no_answer(make: Make, orders: Path) -> None:
    orders.write_text("print")
    driver = make()

    assert [len(driver.discover().sightings) for _ in range(3)] == [2, 2, 2]


def test_nonsense_on_the_pipe_itself_is_a_reason(make: Make, orders: Path) -> None:
    driver = make()
    driver.discover()
    process = process_of(driver)
    orders.write_text("scribble")

    error = failure(driver.discover)

    assert error.reason is DriverReason.CRASHED
    assert "wrote nonsense" in str(error)
    assert not alive(process)


def test_the_drivers_own_reasons_arrive_as_they_are(make: Make, orders: Path) -> None:
    orders.write_text("absent")
    driver = make()

    error = failure(driver.discover)
    process = driver.process
    orders.write_text("")

    assert (error.reason, error.message, error.hint) == (DriverReason.NO_DRIVER, "no module", "load it")
    assert driver.discover().facts["process"] == str(process)


def test_a_mistake_in_a_driver_ends_in_a_reason_too(make: Make, orders: Path) -> None:
    orders.write_text("mistake")

    error = failure(make().discover)

    assert (error.reason, error.message) == (DriverReason.FAILED, "ZeroDivisionError: a mistake")


def test_a_driver_that_cannot_be_opened_is_a_reason_and_is_tried_again() -> None:
    driver = IsolatedDriver(partial(ToyDriver, None, None, None))  # type: ignore[call-arg,arg-type]  # the point of it

    for _ in range(2):
        assert "TypeError" in failure(driver.discover).message
    driver.close()


def test_only_a_look_starts_a_process(make: Make) -> None:
    driver = make()

    assert failure(driver.links).reason is DriverReason.FAILED
    assert driver.process is None


def test_closing_lets_the_driver_close_and_ends_its_process(
    make: Make, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hami_plugin.vendor_boundary.isolated_driver.CLOSE_TIMEOUT_S", 30.0)
    driver = make()
    driver.discover()
    process = process_of(driver)

    driver.close()

    assert not alive(process)
    assert orders.with_name("closed").exists()
    assert len(driver.discover().sightings) == 2


def test_closing_waits_for_no_driver_that_hangs(make: Make, orders: Path) -> None:
    driver = make()
    driver.discover()
    process = process_of(driver)
    orders.write_text("hang")

    driver.close()

    assert not alive(process)


def test_a_signal_to_the_whole_group_is_the_daemons_to_answer(make: Make) -> None:
    driver = make()
    first = driver.discover()

    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(process_of(driver), number)

    assert driver.discover().facts == first.facts


DAEMON = """
import functools, pathlib, sys, threading
from hami_plugin.vendor_boundary.isolated_driver import IsolatedDriver
from tests.vendor_boundary.toys import ToyDriver
driver = IsolatedDriver(functools.partial(ToyDriver, pathlib.Path(sys.argv[1])))
driver.discover()
print(driver.process, file=sys.stderr, flush=True)
pathlib.Path(sys.argv[1]).write_text(sys.argv[2])
driver.discover()
threading.Event().wait()
"""


@pytest.mark.parametrize("order", spread(["", "hang"], part=2))
def test_a_killed_daemon_leaves_no_process_behind_whatever_that_is_doing(orders: Path, order: str) -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(orders), order],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with daemon:
        assert daemon.stderr
        process = int(daemon.stderr.readline())
        assert alive(process)

        daemon.kill()

        until(lambda: not alive(process))


class Metered(ToyDriver):
    """It counts what its devices draw."""

    def energy(self) -> dict[str, float]:
        return {NAMES[0]: 12.5}


def test_a_driver_in_its_own_process_tells_energy_if_it_has_a_meter(make: Make, orders: Path) -> None:
    plain, metered = make(), IsolatedDriver(partial(Metered, orders))
    for driver in (plain, metered):
        driver.discover()

    assert plain.energy() == {}
    assert metered.energy() == {NAMES[0]: 12.5}
    metered.close()
