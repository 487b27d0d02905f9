"""Modes of cards that the daemon switches: only where nobody has the card, and with what a killed one has left."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from hami_plugin.errors import HamiError
from hami_plugin.model.device import Health, Snapshot
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.partitions.journal import ModeAttempt, ModeJournal
from hami_plugin.partitions.modes import CardUsers, ModeReconciler, ModeTiming, switch_delay
from hami_plugin.process.concurrency import Watched, cancel
from hami_plugin.sdk import InUseError, Mode, ModeSide
from tests.support.builders import NODE, device
from tests.support.cluster import FakeCluster
from tests.support.node import SOON, until

FAST = ModeTiming(look=0.02, first=600.0, cap=3600.0, settle=300.0)


class ToyModes:
    """``on`` and ``pending`` are the cards', ``order`` is what the next switch raises."""

    def __init__(self):
        self.on, self.pending = {"GPU-0": False, "GPU-1": True}, {}
        self.problem = ""
        self.order = None
        self.calls = []
        self.asked = 0

    def mode(self, card):
        self.asked += 1
        on = self.on[card]
        return Mode(capable=True, current=on, pending=self.pending.get(card, on), problem=self.problem)

    def switch(self, card, *, on):
        self.calls.append((card, on))
        if self.order:
            raise self.order
        self.on[card] = on


class Stage:
    """Two cards, of which the first is not in the wanted mode; ``pods`` by card."""

    def __init__(self, path, *, wanted=True):
        self.path = path / "modes"
        self.driver = ToyModes()
        self.pods = {}
        self.current = True
        self.now = 1_000_000.0
        self.api = FakeCluster()
        self.events = EventRecorder(self.api, NODE, backoff=SOON)
        self.apart = []
        self.boot = "boot"
        self.wanted = wanted
        self.snapshot = Watched(self.shown())
        self.keeper = self.made()

    def shown(self):
        def health(card):
            return Health.HEALTHY if self.driver.on[card] is self.wanted else Health.UNHEALTHY

        devices = tuple(device(at, uuid=f"GPU-{at}", health=health(f"GPU-{at}")) for at in (0, 1))
        return Snapshot(devices=devices, ready=True)

    def made(self):
        async def aside(work):
            self.apart.append("closed")
            await asyncio.to_thread(work)
            self.snapshot.set(self.shown())

        return ModeReconciler(
            "toy.io/card",
            ModeSide(name="MIG", open=lambda _host: self.driver, wanted=lambda _device: self.wanted),
            self.driver,
            ModeJournal(self.path, self.boot),
            snapshot=self.snapshot,
            users=CardUsers(of=lambda card: self.pods.get(card, ()), current=lambda: self.current),
            aside=aside,
            events=self.events,
            timing=FAST,
            clock=lambda: self.now,
        )

    def waits(self):
        return {one.card: one.waits for one in self.keeper.shown()}

    def told(self):
        return [reason for _kind, reason, _message in self.api.events]


@asynccontextmanager
async def running(stage):
    tasks = [asyncio.create_task(stage.keeper.run()), asyncio.create_task(stage.events.run())]
    try:
        yield stage
        assert not tasks[0].done(), tasks[0].exception()
    finally:
        for task in tasks:
            await cancel(task)
        await stage.keeper.close()


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)


@pytest.mark.parametrize(("wanted", "card"), [(True, "GPU-0"), (False, "GPU-1")])
async def test_an_idle_card_is_switched_once_with_the_driver_closed_and_no_other_is_asked(tmp_path, wanted, card):
    stage = Stage(tmp_path, wanted=wanted)
    async with running(stage):
        await until(lambda: stage.driver.calls == [(card, wanted)])
        await until(lambda: "ModeSwitched" in stage.told())
        await asyncio.sleep(0.1)

        assert stage.driver.calls == [(card, wanted)]
        assert stage.apart == ["closed"]
        assert stage.driver.asked == 1
        assert stage.waits() == {"GPU-0": "", "GPU-1": ""}


@pytest.mark.parametrize(
    ("hinder", "why"),
    [
        (lambda stage, on: stage.pods.update({"GPU-0": ["default/a"] if on else []}), "pods have the card: default/a"),
        (lambda stage, on: setattr(stage, "current", not on), "it is not known which pods live"),
        (lambda stage, on: setattr(stage.driver, "problem", "processes use it" if on else ""), "processes use it"),
    ],
)
async def test_a_card_that_somebody_may_have_waits_until_nobody_does(stage, hinder, why):
    hinder(stage, True)
    async with running(stage):
        await until(lambda: stage.waits().get("GPU-0") == why)
        await asyncio.sleep(0.1)
        assert stage.driver.calls == []
        assert bool(stage.driver.asked) is (stage.driver.problem == why)  # of a card that pods have, the driver is not

        hinder(stage, False)
        await until(lambda: stage.waits() == {"GPU-0": "", "GPU-1": ""})
        assert stage.driver.on["GPU-0"] is True


async def test_a_switch_that_waits_for_a_reset_is_told_once_and_neither_repeated_nor_taken_back(stage):
    stage.driver.pending["GPU-0"] = True
    async with running(stage):
        await until(lambda: "ModeWaitsForReset" in stage.told())
        await asyncio.sleep(0.1)
        assert stage.told() == ["ModeWaitsForReset"]
        assert "reset the card" in stage.waits()["GPU-0"]
        stage.wanted = False
        await asyncio.sleep(0.1)
        assert ("GPU-0", False) not in stage.driver.calls
        assert ("GPU-0", True) not in stage.driver.calls


async def test_a_failed_switch_is_told_and_tried_again_later_also_by_the_next_daemon(stage):
    stage.driver.order = InUseError("somebody has it open")
    async with running(stage):
        await until(lambda: "ModeNotSwitched" in stage.told())
        await until(lambda: "tried again in 600 s: somebody has it open" in stage.waits()["GPU-0"])
    stage.driver.order = None
    stage.now += 500
    stage.keeper = stage.made()
    async with running(stage):
        await until(lambda: "tried again in 100 s" in stage.waits().get("GPU-0", ""))
        assert len(stage.driver.calls) == 1
        stage.now += 100
        await until(lambda: stage.driver.on["GPU-0"] is True)


async def test_what_a_killed_daemon_has_begun_is_read_from_the_card_before_it_is_begun_again(stage):
    journal = ModeJournal(stage.path, "boot")
    journal.put(ModeAttempt(card="GPU-0", on=True, boot="boot", at=stage.now, under_way=True))
    async with running(stage):
        await until(lambda: "tried again in 300 s" in stage.waits().get("GPU-0", ""))
        assert stage.driver.calls == []
        stage.driver.on["GPU-0"] = True  # the driver has finished what was begun
        await until(lambda: stage.waits()["GPU-0"] == "")
        assert stage.driver.calls == []


async def test_the_attempt_is_written_down_before_the_call(stage):
    seen = []

    def switch(card, *, on):
        journal = ModeJournal(stage.path, "boot")
        journal.load()
        seen.append(journal.attempts[card].under_way)
        stage.driver.on[card] = on

    stage.driver.switch = switch
    async with running(stage):
        await until(lambda: seen == [True])


async def test_without_a_journal_nothing_is_switched(stage, tmp_path):
    stage.path = tmp_path / "file" / "modes"
    (tmp_path / "file").write_text("")
    stage.keeper = stage.made()
    async with running(stage):
        await until(lambda: "cannot be written" in stage.keeper.problem)
        assert stage.driver.calls == []


async def test_a_driver_that_does_not_answer_is_asked_again(stage):
    mode = stage.driver.mode

    def failing(_card):
        raise HamiError("no answer")

    stage.driver.mode = failing
    async with running(stage):
        await until(lambda: "no answer" in stage.waits().get("GPU-0", ""))
        stage.driver.mode = mode
        await until(lambda: stage.driver.on["GPU-0"] is True)


def test_the_journal_has_the_last_attempt_of_each_card_in_this_boot_and_skips_damaged_lines(tmp_path):
    path = tmp_path / "modes"
    journal = ModeJournal(path, "boot")
    first, second = (ModeAttempt(card=card, on=True, boot="boot", at=1.0) for card in ("GPU-0", "GPU-1"))
    journal.put(first)
    journal.put(second)
    journal.put(replace(first, failures=1, problem="no"))
    journal.put(ModeAttempt(card="GPU-2", on=True, boot="earlier", at=1.0))
    journal.close()
    with path.open("a") as file:
        file.write(path.read_text().splitlines()[0].replace("GPU-0", "GPU-9") + "\n")

    again = ModeJournal(path, "boot")
    assert len(again.load()) == 1
    assert again.attempts == {"GPU-0": replace(first, failures=1, problem="no"), "GPU-1": second}


@pytest.mark.parametrize(
    ("changes", "after", "left"),
    [
        ({}, 10.0, 590.0),
        ({"failures": 1}, 0.0, 600.0),
        ({"failures": 2}, 0.0, 1200.0),
        ({"failures": 99}, 0.0, 3600.0),
        ({"under_way": True}, 299.0, 1.0),
        ({"failures": 1}, 601.0, 0.0),
        ({"failures": 1}, -9999.0, 600.0),
        ({"on": False, "failures": 9}, 0.0, 0.0),
    ],
)
def test_the_pause_grows_with_failures_and_a_clock_that_is_set_back_does_not_prolong_it(changes, after, left):
    attempt = ModeAttempt(**{"card": "GPU-0", "on": True, "boot": "boot", "at": 100.0, **changes})

    assert switch_delay(attempt, on=True, now=100.0 + after, timing=FAST) == left
