from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from hami_plugin.telemetry.logs import Format, Level, Logs, configure, plain

Start = Callable[..., tuple[Logs, io.StringIO]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def start() -> Iterator[Start]:
    opened: list[Logs] = []

    def start(
        level: Level = "info", form: Format = "json", stream: io.StringIO | None = None
    ) -> tuple[Logs, io.StringIO]:
        stream = io.StringIO() if stream is None else stream
        opened.append(configure(level, form, stream))
        return opened[-1], stream

    yield start
    for logs in opened:
        logs.close()


def events(logs: Logs, stream: io.StringIO) -> list[dict[str, Any]]:
    assert logs.close(timeout=30)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_line_of_json_that_begins_with_when_and_what(start: Start) -> None:
    logs, stream = start()

    structlog.get_logger("hami_plugin.node").info("device unhealthy", device="GPU-1", why="XID 79")

    (event,) = events(logs, stream)
    assert list(event)[:3] == ["timestamp", "level", "event"]
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "level": "info",
        "event": "device unhealthy",
        "device": "GPU-1",
        "why": "XID 79",
        "logger": "hami_plugin.node",
    }


def test_a_logger_that_was_made_before_the_start_is_heard(start: Start) -> None:
    log = structlog.get_logger()
    logs, stream = start()

    log.bind(vendor="acme").warning("late")

    assert [event["vendor"] for event in events(logs, stream)] == ["acme"]


def test_what_is_below_the_level_is_not_written(start: Start) -> None:
    logs, stream = start("warning")

    structlog.get_logger().info("no")
    logging.getLogger("other").info("no")
    structlog.get_logger().error("yes")

    assert [event["event"] for event in events(logs, stream)] == ["yes"]


def test_other_libraries_take_the_same_way_out(start: Start) -> None:
    logs, stream = start()

    logging.getLogger("aiohttp.server").warning("bad request from %s", "10.0.0.1\nlevel=info forged")

    (event,) = events(logs, stream)
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "level": "warning",
        "event": "bad request from 10.0.0.1\nlevel=info forged",
        "logger": "aiohttp.server",
    }


@pytest.mark.scenario("X10")
def test_debug_records_of_other_libraries_are_never_written_as_they_may_hold_secrets(start: Start) -> None:
    logs, stream = start("debug")

    logging.getLogger("kubernetes").debug("Authorization: Bearer x")
    structlog.get_logger().debug("ours")

    assert [event["event"] for event in events(logs, stream)] == ["ours"]


def test_a_record_whose_arguments_do_not_fit_is_written_all_the_same(start: Start) -> None:
    logs, stream = start()

    logging.getLogger("other").warning("%d of %d", *["one"])

    assert [event["event"] for event in events(logs, stream)] == ["'%d of %d' ('one',)"]


def test_warnings_of_python_are_logged(start: Start) -> None:
    logs, stream = start()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", stacklevel=1)

    (event,) = events(logs, stream)
    assert event["logger"] == "py.warnings"
    assert "UserWarning: old" in event["event"]


@pytest.mark.scenario("X10")
@pytest.mark.parametrize("form", ["json", "console"])
def test_nothing_in_a_value_starts_a_new_line_or_drives_the_terminal(start: Start, form: Format) -> None:
    hostile = "pod\nlevel=info event=forged\r\x1b[2J\x9b\u2028\u202e\x00"
    logs, stream = start(form=form)

    structlog.get_logger(hostile).info(hostile, name=hostile, list=[hostile], error=ValueError(hostile), **{hostile: 1})
    logging.getLogger(hostile).warning(hostile)

    assert logs.close(timeout=30)
    text = stream.getvalue()
    assert text.count("\n") == 2
    assert not {ord(letter) for letter in text} & {0, 0x0D, 0x1B, 0x9B, 0x2028, 0x202E}


def test_a_traceback_stays_readable_for_people_and_on_one_line_for_machines(start: Start) -> None:
    for form, lines in (("console", 2), ("json", 1)):
        logs, stream = start(form=form)
        try:
            int("odd \x1b[31m\n")
        except ValueError:
            structlog.get_logger().exception("failed")
            logging.getLogger("other").exception("failed too")
        assert logs.close(timeout=30)
        text = stream.getvalue()
        assert text.count("ValueError: invalid literal") == 2
        assert "\x1b" not in text
        assert len(text.splitlines()) >= 2 * lines


def test_auto_writes_for_people_on_a_terminal_and_json_elsewhere(start: Start) -> None:
    logs, terminal = start(form="auto", stream=Terminal())
    structlog.get_logger().info("hello")
    assert logs.close(timeout=30)
    logs, file = start(form="auto")
    structlog.get_logger().info("hello")
    assert logs.close(timeout=30)

    assert not terminal.getvalue().startswith("{")
    assert "hello" in terminal.getvalue()
    assert file.getvalue().startswith("{")


def test_closing_leaves_logging_as_it_was(start: Start) -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)

    logs, stream = start("debug")
    assert list(root.handlers) != before[0]
    logs.close()
    logs.close()

    assert (list(root.handlers), root.level) == before
    assert stream.getvalue() == ""
    assert not structlog.is_configured()


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_every_value_can_be_logged(start: Start) -> None:
    loop: list[object] = []
    loop.append(loop)
    values = {"a": Unspeakable(), "b": float("nan"), "c": 10**5000, "d": {1: {2}}, "e": b"\xff", "f": loop}
    logs, stream = start()

    structlog.get_logger().info("all", **values, long="x" * 100_000)

    (event,) = events(logs, stream)
    assert event["a"] == "<Unspeakable that cannot be shown: RuntimeError>"
    assert event["b"] == "nan"
    assert event["c"] == "an integer of 16610 bits"
    assert event["d"] == {"1": [2]}
    assert event["e"] == "b'\\xff'"
    assert event["long"].endswith("… (91808 more)")


def test_values_with_types_of_json_stay_what_they_are() -> None:
    value = {"a": [1, 2.5, True, None, "x"], "b": {"c": ("d",)}}

    assert plain(value) == {"a": [1, 2.5, True, None, "x"], "b": {"c": ["d"]}}


BLOCKED = """
import structlog, sys
from hami_plugin.telemetry.logs import configure
logs = configure("info", "json", sys.stdout)
log = structlog.get_logger()
for number in range(20_000):
    log.info("event", number=number, padding="x" * 400)
print(logs.dropped, file=sys.stderr)
"""


@pytest.mark.scenario("H9")
def test_a_full_stdout_neither_stops_the_daemon_nor_its_exit() -> None:
    with subprocess.Popen([sys.executable, "-c", BLOCKED], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        told = process.stderr.read().decode().split()  # until it ends; nobody reads its stdout

        assert process.wait(timeout=60) == 0
        assert len(told) == 1, told
        assert int(told[0]) > 1000


def test_what_was_logged_before_a_normal_exit_is_written() -> None:
    code = BLOCKED.replace("20_000", "100")

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=120)

    numbers = [json.loads(line)["number"] for line in done.stdout.splitlines()]
    assert numbers == list(range(100))


def test_lost_lines_are_reported_in_the_same_format(start: Start) -> None:
    class Slow(io.StringIO):
        broken = True
        failed = threading.Event()

        def write(self, text: str, /) -> int:
            if self.broken:
                self.failed.set()
                raise OSError("nobody reads")
            return super().write(text)

    stream = Slow()
    logs, _ = start(stream=stream)
    structlog.get_logger().info("first")
    assert stream.failed.wait(timeout=30)
    stream.broken = False
    structlog.get_logger().info("second")

    second, report = events(logs, stream)
    assert second["event"] == "second"
    assert (report["event"], report["count"], report["level"]) == (
        "log lines lost: nothing reads the log",
        1,
        "warning",
    )
