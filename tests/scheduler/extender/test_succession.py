"""From one extender to the next: what was begun is finished first, calls wait meanwhile, and nothing is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from hami_plugin.scheduler.extender import extender
from hami_plugin.scheduler.extender.extender import Decisions, Extender
from tests.support.node import until


class Played:
    """An extender whose calls end when the test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.go = asyncio.Event()
        self.asked = 0
        self.settled = True
        self.seen = True
        self.unready: tuple[str, ...] = ()
        self.ended = False
        self.error: Exception | None = None

    async def filter(self, _request: object) -> Any:
        self.asked += 1
        await self.go.wait()
        return {"by": self.name}

    async def review(self, _request: object) -> Any:
        return {"by": self.name}

    def problems(self) -> tuple[str, ...]:
        return self.unready

    def knows(self, _other: object) -> bool:
        return self.seen

    async def run(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.ended = True
        if self.error:
            raise self.error


def as_extender(one: Played) -> Extender:
    return cast("Extender", one)


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Played, Played, Decisions]]:
    monkeypatch.setattr(extender, "FINISH_S", 0.2)
    monkeypatch.setattr(extender, "KNOW_S", 0.2)
    old, new, stop = Played("old"), Played("new"), asyncio.Event()
    decisions = Decisions(as_extender(old))
    task = asyncio.create_task(decisions.run(stop))
    yield old, new, decisions
    for one in (old, new):
        one.go.set()
    stop.set()
    await task
    assert old.ended


async def test_a_call_that_runs_is_answered_by_the_former_one_and_one_that_waits_by_the_new_one(
    stage: tuple[Played, Played, Decisions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extender, "FINISH_S", 60.0)
    old, new, decisions = stage
    first = asyncio.create_task(decisions.filter({}))
    await until(lambda: old.asked == 1)
    swap = asyncio.create_task(decisions.replace(as_extender(new)))
    await asyncio.sleep(0.05)
    second = asyncio.create_task(decisions.filter({}))
    await asyncio.sleep(0.05)
    assert (old.asked, new.asked, swap.done()) == (1, 0, False)
    assert await decisions.review({}) == {"by": "old"}

    old.go.set()
    new.go.set()

    assert (await first, await second, await swap) == ({"by": "old"}, {"by": "new"}, "")
    assert await decisions.review({}) == {"by": "new"}
    await until(lambda: old.ended)


@pytest.mark.parametrize(
    ("lacking", "why"),
    [
        ("unready", "the cluster was not known"),
        ("settled", "what was begun was not finished"),
        ("seen", "what was begun was not finished"),
    ],
)
async def test_one_that_does_not_know_what_was_decided_does_not_decide(
    stage: tuple[Played, Played, Decisions], lacking: str, why: str
) -> None:
    old, new, decisions = stage
    old.go.set()
    match lacking:
        case "unready":
            new.unready = ("no list",)
        case "settled":
            old.settled = False
        case "seen":
            new.seen = False

    assert why in await decisions.replace(as_extender(new))

    assert await decisions.filter({}) == {"by": "old"}
    await until(lambda: new.ended)
    assert not old.ended
