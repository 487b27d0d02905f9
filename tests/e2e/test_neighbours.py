"""Several vendors in one daemon: what happens to one is nothing to the others."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

import vendors
from hami_plugin.protocol import keys
from tests.e2e.manifests import small
from tests.e2e.steps import WITHIN_S, confirm, logged, reported, sound, start, take_down
from tests.e2e.truth import annotation
from tests.support.scale import spread

pytestmark = pytest.mark.executed  # a forked daemon would not look where PYTHONPATH says
RESOURCE = "toy.example/card"
ROOT = Path(__file__).parents[2]
GUARD_S = 30.0
"""Against waiting for ever. Ten Allocates that each waited for a driver that hangs would take longer."""


@pytest.fixture
async def both(set_up, monkeypatch, tmp_path):
    """A daemon that serves simulated GPUs, and cards of a vendor from another folder in a process of their own."""
    more = Path(__file__).parent / "more"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(more))))
    monkeypatch.setattr(vendors, "__path__", [*vendors.__path__, str(more / "vendors")])  # the stage reads it as well
    orders = tmp_path / "orders"
    stage = await set_up(vendors={"toy": {"enabled": True, "orders": str(orders)}})
    await start(stage)
    await stage.until(lambda: stage.kubelet.allocatable(RESOURCE) == 2, "the offer of the toy cards", WITHIN_S)
    return stage, orders


async def component(stage, name):
    return (await stage.readiness())["components"][name]


async def allocations(stage, count, name):
    """Bring pods with a GPU up and take them down, one after the other."""
    async with asyncio.timeout(GUARD_S):
        for number in range(count):
            await stage.until(lambda: not annotation(stage, keys.NODE_LOCK), "the node lock's release", WITHIN_S)
            pod = stage.scheduler.place(small(f"{name}-{number}", stage.family.resources))
            await stage.kubelet.admit(pod)
            await confirm(stage, pod)
            take_down(stage, pod)


def child(stage):
    """The one process that the daemon has started."""
    tasks = Path(f"/proc/{stage.daemon.pid}/task").glob("*/children")
    (found,) = [word for file in tasks for word in file.read_text().split()]
    return int(found)


def alive(process):
    """Whether it still runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def resident(process):
    """What a process adds to the memory in use, in MiB."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


def segfault(orders, _stage):
    orders.write_text("crash")


def kill(_orders, stage):
    os.kill(child(stage), signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "words"), spread([(segfault, "was ended by SIGSEGV"), (kill, "was ended by SIGKILL")], part=2)
)
async def test_a_driver_that_ends_its_process_is_restarted_and_nobody_else_notices(both, tell, end, words):
    stage, orders = both
    await allocations(stage, 5, "before")
    registered = [one.resource_name for one in stage.kubelet.registrations]
    first = child(stage)
    tell(f"the driver's own process takes {resident(first):.0f} MiB")

    end(orders, stage)
    await reported(stage, "DriverCrashed", words)  # a second later it may be back
    await allocations(stage, 10, "during")

    assert await component(stage, "driver nvidia") == ""
    assert [one.resource_name for one in stage.kubelet.registrations] == registered
    orders.unlink(missing_ok=True)
    await stage.until(lambda: stage.kubelet.allocatable(RESOURCE) == 2, "the cards' return", 60)
    assert child(stage) != first
    await sound(stage)


@pytest.mark.full
async def test_a_driver_that_hangs_holds_up_nobody_else_and_not_the_daemons_end(both):
    stage, orders = both
    process = child(stage)
    orders.write_text("hang")
    await logged(stage, "driver call overdue")

    await allocations(stage, 3, "during")  # after a minute, the daemon ends the process
    assert not any("driver answers again" in line for line in stage.log_lines()), "it hangs all the while"
    await stage.stop_daemon()

    await stage.until(lambda: not alive(process), "the end of the driver's process")
