"""Whoever may annotate a pod or node writes these texts. Reading them ends soon, with a value or a WireError."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_plugin.errors import WireError
from hami_plugin.protocol.nodes import decode_json, decode_legacy, decode_scores, owned_by, parse_handshake, parse_lock
from hami_plugin.protocol.pods import decode_devices, erase
from tests.support.scale import examples
from vendors.nvidia.rules import decode_mig

FULL = 256 * 1024

READERS: dict[str, Callable[[str], object]] = {
    "decode_json": decode_json,
    "decode_legacy": decode_legacy,
    "decode_scores": decode_scores,
    "decode_devices": decode_devices,
    "erase": lambda text: erase(text, 1),
    "decode_mig": decode_mig,
    "parse_lock": parse_lock,
    "owned_by": lambda text: owned_by(text, "default", "pod-a"),
    "parse_handshake": parse_handshake,
}

TEXTS = {
    "colons": ":" * FULL,
    "commas": "," * FULL,
    "semicolons": ";" * FULL,
    "devices without amounts": "a,b,,:;" * (FULL // 7),
    "devices": "a,b,1,1:;" * (FULL // 9),
    "letters": "a" * FULL,
    "underscores": "_" * FULL,
    "blanks": " " * FULL,
    "deep lists": "[" * FULL,
    "deep maps": '{"":' * (FULL // 4),
    "closed deep lists": "[" * 500 + "]" * 500,
    "deep lists in a field": '[{"id":' + "[" * 900 + "]" * 900 + "}]",
    "deep custom information": '[{"custominfo":{"a":' + "[" * 900 + "]" * 900 + "}}]",
    "deep scores": '[{"score":{"a":' + "[" * 900 + "]" * 900 + "}}]",
    "a long number": '[{"count":' + "9" * (FULL - 20) + "}]",
    "a long fraction": '[{"count":0.' + "9" * (FULL - 20) + "}]",
    "a long exponent": '[{"custominfo":{"a":1e' + "9" * (FULL - 40) + "}}]",
    "a huge float": '[{"custominfo":{"a":1e999}}]',
    "a long amount": "a,b," + "9" * (FULL - 20) + ",1:;",
    "zeros before an amount": "a,b," + "0" * (FULL - 20) + "1,1:;",
    "a long second": "2026-08-21T10:11:12." + "9" * (FULL - 40) + "Z,a,b",
    "nan": '[{"count":NaN,"score":{"a":NaN},"containerIndex":NaN}]',
    "infinity": '[{"count":-Infinity}]',
    "a half surrogate": '[{"id":"\\ud800","uuid":"\\ud800","gpuUUID":"\\ud800"}]',
    "a raw half surrogate": "\ud800,b,1,1:;",
    "nul": "a\x00,b,1,1:;\x00",
    "right to left": "\u202ea,b,1,1:;",
    "the same key often": "[{" + ",".join(['"id":"a"'] * 20_000) + "}]",
    "many objects": "[" + ",".join(["{}"] * 80_000) + "]",
    "too long": "a,b,1,1:;" * FULL,
    "too long in bytes": "é" * FULL,
    "much too long": ";" * (64 * FULL),
}


def problem(reader: str, text: str) -> str:
    """What the reader says is wrong; empty when it found a value."""
    try:
        READERS[reader](text)
    except WireError as error:
        return str(error)
    return ""


@pytest.mark.scenario("X3")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.timeout(60)  # what takes its time in the square of a length takes hours
def test_hostile_text_is_read_or_refused_and_soon(reader: str, text: str):
    said = problem(reader, TEXTS[text])

    assert len(said) < 500
    assert not said or said.isprintable()


@pytest.mark.scenario("X3")
@pytest.mark.parametrize("reader", READERS)
def test_random_text_raises_nothing_else(reader: str):
    marks = [*':;,[]{}"0189-+.eT_ ', "\\", "true", "null", '"id":', '"score":', "NaN", "\x00", "\ud800"]
    texts = st.lists(st.sampled_from(marks), max_size=30).map("".join) | st.text(max_size=30)

    @settings(deadline=None, max_examples=examples(150))
    @given(texts)
    def holds(text: str) -> None:
        said = problem(reader, text)
        assert not said or said.isprintable()

    holds()


@pytest.mark.scenario("X3")
@pytest.mark.parametrize("reader", ["decode_json", "decode_legacy", "decode_scores", "decode_devices", "decode_mig"])
@pytest.mark.parametrize("text", ["too long", "too long in bytes", "much too long"])
def test_more_than_an_annotation_can_hold_is_refused_unread(reader: str, text: str):
    with pytest.raises(WireError, match=r"longer than (262144|65536) bytes"):
        READERS[reader](TEXTS[text])


@pytest.mark.scenario("X3")
@pytest.mark.parametrize("reader", ["decode_devices", "erase", "decode_mig"])
def test_of_what_a_pods_author_may_write_64_kib_are_read(reader: str):
    with pytest.raises(WireError, match="longer than 65536 bytes"):
        READERS[reader](";" * (64 * 1024 + 1))
    with pytest.raises(WireError, match="longer than 65536 bytes"):
        READERS[reader]("é" * (32 * 1024 + 1))

    assert "longer than" not in problem(reader, ";" * (64 * 1024))


def steps_of(reader: str, text: str) -> int:
    """How many lines of ours the reader goes through."""
    count = 0

    def within(_frame: object, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return within

    sys.settrace(within)
    try:
        problem(reader, text)
    finally:
        sys.settrace(None)
    return count


BOMBS = {name: TEXTS[name][: 60 * 1024] for name in TEXTS if len(TEXTS[name]) >= 60 * 1024}


@pytest.mark.scenario("X3")
@pytest.mark.parametrize("reader", READERS)
def test_a_text_four_times_as_long_takes_no_more_than_four_times_the_steps(reader: str):
    for name, text in BOMBS.items():
        short, long = (steps_of(reader, text[:size]) for size in (len(text) // 4, len(text)))

        assert long <= 5 * short + 200, name
