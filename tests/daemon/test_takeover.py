"""What two daemons of a node say to one another, and who has the lock at the end."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hami_plugin.daemon import takeover
from hami_plugin.daemon.takeover import SOCKET, Ask, NodeClaim, TakeoverAnswer, parsed_answer, parsed_ask, refusal
from hami_plugin.process.concurrency import cancel, poll_condition

SOON_S = 30.0
FINE = {"nvidia": ""}
NEVER = asyncio.Event()
"""Of a process that nobody stops."""


def asks(name: str = "new", **problems: str) -> Ask:
    return Ask(name=name, problems=problems)


@pytest.mark.parametrize(
    ("asked", "ours", "words"),
    [
        (asks(nvidia=""), FINE, ""),
        (asks(), FINE, ""),  # its configuration serves no such vendor
        (asks(nvidia="", amd="no driver"), FINE, ""),  # nobody serves it now
        (asks(nvidia="no driver"), {"nvidia": "no driver either"}, ""),
        (asks(nvidia="no driver", amd=""), FINE, "nvidia: no driver"),
        (asks("old", nvidia=""), FINE, "has taken the node over from old"),
    ],
)
def test_the_node_is_handed_over_unless_it_would_be_served_worse(asked: Ask, ours: dict[str, str], words: str) -> None:
    why = refusal(asked, predecessor="old", ours=ours)

    assert words in why
    assert bool(why) is bool(words)


@pytest.mark.parametrize(
    "line",
    [b"", b"\n", b"{}", b"[]", b"null", b'{"name": 1}', b'{"name": "x", "problems": []}', b'{"name": "x"', b"[" * 9999],
)
def test_a_line_that_asks_for_nothing_is_no_question(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parsed_ask(line)


@pytest.mark.parametrize("line", [b"", b"{}", b'{"name": "x"}', b'{"name": "x", "refused": false}', b"[" * 9999])
def test_a_line_that_neither_refuses_nor_releases_is_no_answer(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parsed_answer(line)


def test_what_is_said_is_bounded() -> None:
    asked = parsed_ask(json.dumps({"name": "n" * 9999, "problems": {"nvidia": "x" * 9999}}).encode())

    assert (len(asked.name), len(asked.problems["nvidia"])) == (256, 500)
    assert len(parsed_answer(json.dumps({"name": "n", "refused": "x" * 9999}).encode()).refused) == 1000
    assert parsed_answer(b'{"name": "n", "refused": ""}') == TakeoverAnswer(name="n")


@pytest.fixture
def state() -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory(prefix="to-") as folder:
        yield Path(folder) / "state"


@asynccontextmanager
async def incumbent(state: Path) -> AsyncIterator[NodeClaim]:
    """A process that has the node, and may be asked for it."""
    claim = NodeClaim(state, name="old")
    assert await claim.take(NEVER, lambda: None)
    async with claim.listening(lambda: FINE):
        yield claim
    claim.lock.release()


async def hand_over(claim: NodeClaim, stop: asyncio.Event, relieved: list[str]) -> bool:
    """What an incumbent does when it is asked, as far as the claim is concerned."""

    async def relieve() -> None:
        relieved.append(claim.waiting)

    return await claim.stand_by(await claim.asked(), stop, relieve)


async def test_the_lock_passes_to_the_successor_and_back_when_that_one_is_gone(state: Path) -> None:
    stop, relieved = asyncio.Event(), []
    async with incumbent(state) as old:
        standing = asyncio.create_task(hand_over(old, stop, relieved))
        new = NodeClaim(state, name="new")
        assert await new.take(stop, lambda: FINE)
        assert (old.lock.generation, new.lock.generation) == (1, 2)
        assert not standing.done()
        assert relieved == []

        await new.relieve()
        assert await poll_condition(lambda: bool(relieved), within=SOON_S)
        new.lock.release()  # as the kernel does for a process that dies

        assert await standing
        assert relieved == ["handed over to new"]
        assert old.lock.generation == 3


async def test_a_successor_that_dies_before_it_serves_leaves_the_incumbent_streaming(state: Path) -> None:
    stop, relieved = asyncio.Event(), []
    async with incumbent(state) as old:
        standing = asyncio.create_task(hand_over(old, stop, relieved))
        new = NodeClaim(state, name="new")
        assert await new.take(stop, lambda: FINE)
        assert new.predecessor
        new.predecessor.close()
        new.lock.release()

        assert await standing
        assert relieved == []


async def test_a_successor_that_never_serves_is_not_waited_for_without_end(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "SERVE_S", 0.2)
    stop, relieved = asyncio.Event(), []
    async with incumbent(state) as old:
        standing = asyncio.create_task(hand_over(old, stop, relieved))
        new = NodeClaim(state, name="new")
        assert await new.take(stop, lambda: FINE)
        assert await poll_condition(lambda: bool(relieved), within=SOON_S)

        assert not standing.done()  # the lock is still the successor's
        await cancel(standing)
        await new.relieve()
        new.lock.release()


async def test_who_is_refused_waits_and_says_why_and_takes_the_lock_once_it_is_free(state: Path) -> None:
    stop = asyncio.Event()
    new = NodeClaim(state, name="new")
    async with incumbent(state):
        waiting = asyncio.create_task(new.take(stop, lambda: {"nvidia": "no driver"}))
        assert await poll_condition(lambda: "no driver" in new.waiting, within=SOON_S)
        assert not new.replaces_mute

    assert await waiting
    assert new.waiting == ""
    new.lock.release()


async def test_nobody_is_asked_before_a_process_knows_what_it_can_serve(state: Path) -> None:
    stop = asyncio.Event()
    async with incumbent(state) as old:
        waiting = asyncio.create_task(NodeClaim(state, name="new").take(stop, lambda: None))
        asked = asyncio.create_task(old.asked())
        await asyncio.sleep(0.3)
        assert not asked.done()
        stop.set()
        assert not await waiting
        await cancel(asked)


async def test_a_process_that_was_replaced_does_not_get_the_node_back_from_its_successor(state: Path) -> None:
    stop, relieved = asyncio.Event(), []
    async with incumbent(state) as old:
        standing = asyncio.create_task(hand_over(old, stop, relieved))
        new = NodeClaim(state, name="new")
        assert await new.take(stop, lambda: FINE)
        await new.relieve()
        await cancel(standing)
    async with new.listening(lambda: FINE):
        again = NodeClaim(state, name="old")  # its container has started anew
        waiting = asyncio.create_task(again.take(stop, lambda: FINE))
        assert await poll_condition(lambda: "does not give it back" in again.waiting, within=SOON_S)
        await cancel(waiting)
    new.lock.release()


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n", b"\xff\n", b"x" * (takeover.MAX_BYTES * 2), b""])
async def test_what_is_no_successor_is_sent_away_and_the_next_one_is_heard(state: Path, said: bytes) -> None:
    async with incumbent(state) as old:
        reader, writer = await asyncio.open_unix_connection(state / SOCKET)
        writer.write(said)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()

        asking = asyncio.create_task(NodeClaim(state, name="new").take(NEVER, lambda: FINE))
        successor = await old.asked()
        assert successor.name == "new"
        successor.close()
        await cancel(asking)


async def test_a_path_too_long_for_a_socket_stops_nobody_from_serving(tmp_path: Path) -> None:
    async with incumbent(tmp_path / ("x" * 100)) as claim:
        assert claim.lock.intact
