from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from hami_plugin.telemetry.logs import LineWriter


def lost(count: int) -> str:
    return f"lost {count}"


class Pipe:
    """A pipe whose reading end reads only when told to."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        self.stream: TextIO = os.fdopen(write, "w")

    def drain(self) -> bytes:
        """Everything until every writer is gone."""
        self.stream.close()
        with os.fdopen(self._read, "rb") as file:
            self._read = -1
            return file.read()

    def hang_up(self) -> None:
        if self._read >= 0:
            os.close(self._read)
            self._read = -1

    def close(self) -> None:
        self.hang_up()
        self.stream.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def test_lines_arrive_whole_and_in_order(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        writer = LineWriter(stream, lost=lost)
        for number in range(1000):
            writer.write(f"line {number}")
        assert writer.close(timeout=30)

    assert (tmp_path / "log").read_text().splitlines() == [f"line {number}" for number in range(1000)]
    assert writer.dropped == 0


def test_a_stream_without_a_descriptor_is_written_too() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream, lost=lost)

    writer.write("café \udcff")

    assert writer.close(timeout=30)
    assert stream.getvalue() == "café \\udcff\n"


def test_a_pipe_that_nobody_reads_never_holds_up_the_writer(pipe: Pipe) -> None:
    writer = LineWriter(pipe.stream, lost=lost, limit=100_000)

    for number in range(10_000):
        writer.write(f"{number:0100}")

    assert writer.dropped > 7000  # the limit, a chunk and the pipe itself take some 2,200 lines
    assert not writer.close(timeout=0.05)
    pipe.drain()


def test_when_the_reader_comes_back_it_gets_the_lines_and_learns_what_it_missed(pipe: Pipe) -> None:
    writer = LineWriter(pipe.stream, lost=lost, limit=100_000)
    for number in range(10_000):
        writer.write(f"{number:0100}")
    dropped = writer.dropped
    assert not writer.close(timeout=0.05)

    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.drain()))
    reader.start()
    assert writer.close(timeout=30)
    reader.join(timeout=30)

    lines = received[0].decode().splitlines()
    numbers = [int(line) for line in lines if not line.startswith("lost")]
    reports = [int(line.removeprefix("lost ")) for line in lines if line.startswith("lost")]
    assert numbers == sorted(set(numbers))
    assert len(numbers) + dropped == 10_000
    assert sum(reports) == dropped
    assert lines[-1].startswith("lost")


def test_a_reader_that_hangs_up_costs_lines_and_nothing_else(pipe: Pipe) -> None:
    writer = LineWriter(pipe.stream, lost=lost)
    pipe.hang_up()

    writer.write("a")
    writer.write("b")

    assert writer.close(timeout=30)
    assert writer.dropped == 2


def test_a_pipe_made_non_blocking_by_somebody_else_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.stream.fileno(), False)
    writer = LineWriter(pipe.stream, lost=lost)
    for number in range(5000):
        writer.write(f"{number:0100}")

    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.drain()))
    reader.start()
    assert writer.close(timeout=30)
    reader.join(timeout=30)

    assert len(received[0].splitlines()) == 5000
    assert writer.dropped == 0


def test_closing_the_stream_first_sends_no_line_into_another_file(tmp_path: Path) -> None:
    stream = (tmp_path / "log").open("w")
    writer = LineWriter(stream, lost=lost)
    stream.close()
    with (tmp_path / "other").open("w"):
        writer.write("for the log")
        assert writer.close(timeout=30)

    assert (tmp_path / "log").read_text() == "for the log\n"
    assert (tmp_path / "other").read_text() == ""


def test_a_line_after_the_end_is_counted_as_lost() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream, lost=lost)
    assert writer.close(timeout=30)

    writer.write("late")

    assert writer.dropped == 1
    assert stream.getvalue() == ""


def test_a_line_larger_than_the_buffer_is_dropped_and_told_with_the_next() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream, lost=lost, limit=100)

    writer.write("x" * 200)
    writer.write("small")

    assert writer.close(timeout=30)
    assert stream.getvalue() == "small\nlost 1\n"
