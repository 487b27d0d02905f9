"""What a daemon writes down: read by the next one, there again when somebody takes it away, and told when it is not."""

import asyncio
import shutil
from contextlib import asynccontextmanager

import pytest

from hami_plugin.daemon.node import StateDirectory
from hami_plugin.dra.prepared import Prepared
from hami_plugin.inventory.health import Condition
from hami_plugin.model.device import Health
from hami_plugin.process.concurrency import cancel
from tests.support.builders import grant, held_by, ids, pod, uuid
from tests.support.node import until

CLAIM = Prepared(driver="toy", uid="claim-uid", namespace="team", name="claim")
FILES = {"journal", "claims", "health.json"}


@pytest.fixture
def folder(tmp_path):
    """As the lock makes it, before anything else is there, and whenever it is gone."""
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@asynccontextmanager
async def kept(folder, renew=lambda: True):
    """A loaded state directory that is looked after."""

    def renewed():
        folder.mkdir(exist_ok=True)
        return renew()

    one = StateDirectory(folder, "boot", renewed, every=0.05)
    one.load()
    task = asyncio.create_task(one.run())
    try:
        yield one
        assert not task.done()
    finally:
        await cancel(task)
        await one.close()


def noted(one):
    """Hand out a share, make a claim ready, and find a device unwell."""
    held = held_by(pod("a"), "main", ids((0, 0)), [grant(0)])
    one.ledger.reserve(held)
    one.ledger.write(held)
    one.claims.note(CLAIM)
    one.memory.note("toy", {uuid(0): Condition(health=Health.SUSPECT)})


async def test_what_was_written_is_what_the_next_daemon_reads(folder):
    async with kept(folder) as one:
        noted(one)
        await one.written()
        assert {"journal", "claims"} <= {path.name for path in folder.iterdir()}

    assert StateDirectory(folder, "boot", lambda: True).load() == (1, 1)


async def test_all_files_come_back_when_somebody_removes_the_directory(folder):
    async with kept(folder) as one:
        noted(one)
        await one.written()
        await until(lambda: {path.name for path in folder.iterdir()} >= FILES)
        folder.rename(folder.with_name("gone"))  # at once, whatever is being written
        shutil.rmtree(folder.with_name("gone"), ignore_errors=True)
        await until(lambda: folder.is_dir() and {path.name for path in folder.iterdir()} >= FILES)

    assert StateDirectory(folder, "boot", lambda: True).load() == (1, 1)


async def test_a_directory_that_another_daemon_has_is_told_until_it_is_ours_again(folder):
    mine = False
    async with kept(folder, lambda: mine) as one:
        await until(lambda: "another daemon has claimed it" in one.problem)
        mine = True
        await until(lambda: not one.problem)


async def test_a_directory_that_cannot_be_used_is_told_with_its_path(folder):
    def renew():
        raise PermissionError("read-only file system")

    async with kept(folder, renew) as one:
        await until(lambda: "cannot be used: read-only file system" in one.problem)
        assert str(folder) in one.problem


@pytest.mark.parametrize("file", ["journal", "claims", "health.json"])
async def test_each_file_that_cannot_be_written_is_a_problem(folder, file):
    async with kept(folder) as one:
        one.memory.wait()
        (folder / file).unlink(missing_ok=True)
        (folder / file / "inside").mkdir(parents=True)
        noted(one)
        await until(lambda: one.problem)
