"""Bodies of requests: how many bytes there may be at once, and JSON that is read in slices."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_plugin.process.concurrency import run_without_pauses
from hami_plugin.scheduler.extender.payloads import MAX_DEPTH, MAX_VALUES, SHORT, parse_json_pausing
from hami_plugin.scheduler.extender.server import Budget
from tests.support.extender import ARGS, BINDING, REVIEW, FakeExtender, Rig, listening
from tests.support.scheduling import until

MIB = 1 << 20
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)

READ_AT_ONCE = st.sampled_from((0, SHORT))
"""Bodies of so many bytes are read at once: none, or all that these tests make."""


@settings(deadline=None)
@given(JSON, st.sampled_from([None, 2]), st.booleans(), READ_AT_ONCE)
def test_json_is_read_as_it_was_written(value, indent, ascii_only, short):
    body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        expected = json.loads(body.decode())
        json.dumps(expected, ensure_ascii=False).encode()
    except UnicodeError:
        with pytest.raises(ValueError, match=r"."):
            run_without_pauses(parse_json_pausing(body, short=short))
        return
    assert run_without_pauses(parse_json_pausing(body, short=short)) == expected


@settings(deadline=None)
@given(st.text(alphabet='{}[]":, \n0n1aul\\', max_size=12), READ_AT_ONCE)
def test_what_python_takes_for_json_is_json_here_and_nothing_else(text, short):
    def read(reader):
        try:
            return reader()
        except ValueError:
            return ValueError

    assert read(lambda: run_without_pauses(parse_json_pausing(text.encode(), short=short))) == read(
        lambda: json.loads(text)
    )


def test_whole_nodes_are_read_with_a_pause_after_each():
    nodes = [{"metadata": {"name": f"n{n}", "annotations": {"a": "x" * 100}}} for n in range(1000)]

    found = []

    def kept():
        found.append((yield from parse_json_pausing(json.dumps({"Pod": {}, "Nodes": {"items": nodes}}).encode())))

    assert sum(1 for _ in kept()) >= 1000
    assert found[0]["Nodes"]["items"] == nodes


@pytest.mark.scenario("X3")
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("short", [0, SHORT])
def test_values_lie_in_each_other_as_deep_as_is_said_and_no_deeper(opening, closing, short):
    def nested(levels):
        return run_without_pauses(parse_json_pausing((opening * levels + "1" + closing * levels).encode(), short=short))

    assert nested(MAX_DEPTH)
    for levels in (MAX_DEPTH + 1, 500, 1200, 9000, 100_000):
        with pytest.raises(ValueError, match="more than 64 levels deep"):
            nested(levels)


def test_a_part_of_a_budget_takes_of_both_and_gives_back_to_both():
    whole = Budget(100)
    part = Budget(40, of=whole)

    assert part.take(30)
    assert (part.left, whole.left) == (10, 70)
    assert not part.take(11)
    assert whole.take(65)
    assert part.left == 5
    part.give_back(30)
    assert (part.left, whole.left) == (35, 35)


async def unfinished(rig: Rig, stack: AsyncExitStack, path: str, size: int) -> asyncio.StreamReader:
    """Send so much of a larger body, and no more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.server.port)
    stack.callback(writer.close)
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{size:x}\r\n".encode())
    writer.write(b" " * size + b"\r\n")
    return reader


@pytest.mark.scenario("X3")
async def test_bodies_that_never_end_take_no_more_than_their_part_and_others_are_answered():
    extender = FakeExtender()
    async with (
        listening(extender, read_seconds=60, review_seconds=60, filter_mebibytes=12, request_mebibytes=12) as rig,
        AsyncExitStack() as stack,
    ):
        readers = [await unfinished(rig, stack, "/webhook", MIB) for _ in range(20)]
        replies = [asyncio.create_task(reader.readuntil(b"\r\n\r\n")) for reader in readers]
        await until(lambda: sum(reply.done() for reply in replies) >= 17)
        heads = [await reply for reply in replies if reply.done()]

        assert len(heads) <= 18
        assert {head.split(b"\r\n")[0] for head in heads} == {b"HTTP/1.1 503 Service Unavailable"}
        assert all(b"retry-after: 1" in head.lower() for head in heads)
        assert (await rig.post("/filter", ARGS))[0] == 200
        assert (await rig.post("/bind", BINDING))[0] == 200
        for reply in replies:
            reply.cancel()
    assert extender.bound == ["p"]


async def test_what_was_taken_for_a_body_is_given_back_however_it_ends():
    async with listening(FakeExtender(), read_seconds=1.0, filter_mebibytes=12, request_mebibytes=12) as rig:
        for _ in range(6):
            async with AsyncExitStack() as stack:
                reader = await unfinished(rig, stack, "/webhook", 2 * MIB)
                assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 408")
            status, _answer = await rig.post("/webhook", b" " * (2 * MIB) + b"{")
            assert status == 400
        assert (await rig.post("/webhook", b" " * (2 * MIB) + json.dumps(REVIEW).encode()))[0] == 200


async def test_senders_that_are_slow_keep_nobody_waiting():
    async with listening(FakeExtender(), read_seconds=60, review_seconds=60) as rig, AsyncExitStack() as stack:
        for _ in range(120):
            await unfinished(rig, stack, "/webhook", 10)

        assert (await asyncio.wait_for(rig.post("/webhook", REVIEW), 30))[0] == 200


@pytest.mark.scenario("X3")
async def test_a_review_has_three_mebibytes_and_a_bounded_number_of_values():
    async with listening(FakeExtender()) as rig:
        status, answer = await rig.post("/webhook", b" " * (3 * MIB + 1))
        assert (status, answer["message"]) == (
            413,
            "the request is larger than 3 MiB; an API server itself takes no larger pod",
        )
        assert (await rig.post("/webhook", b" " * (2 * MIB) + json.dumps(REVIEW).encode()))[0] == 200
        status, answer = await rig.post("/webhook", b"[" + b"{}," * (MAX_VALUES // 2 + 1) + b"{}]")
        assert status == 413
        assert f"at most {MAX_VALUES} are read" in answer["message"]
