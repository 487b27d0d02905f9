import asyncio
import threading

import pytest
from watchdog.observers.api import BaseObserver, EventEmitter

import hami_plugin.kubelet.watch as watch_module
from hami_plugin.kubelet.listener import FileIdentity
from hami_plugin.kubelet.watch import DirectoryWatch


@pytest.fixture
def woken():
    return asyncio.Event()


async def wakes(woken):
    async with asyncio.timeout(30):
        await woken.wait()
    woken.clear()


async def test_every_subscriber_wakes_when_a_file_comes_goes_or_is_renamed(tmp_path, woken):
    other = asyncio.Event()
    watch = DirectoryWatch(tmp_path)
    with watch.subscribed(woken.set), watch.subscribed(other.set):
        (tmp_path / "a").touch()
        await wakes(woken)
        await wakes(other)
        (tmp_path / "a").rename(tmp_path / "b")
        await wakes(woken)
        (tmp_path / "b").unlink()
        await wakes(woken)

    assert not watch.armed


async def test_writing_to_a_file_wakes_nobody(tmp_path, woken):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.touch()
    with DirectoryWatch(tmp_path).subscribed(woken.set):
        checkpoint.write_text("much")
        (tmp_path / "end").touch()
        await wakes(woken)
        await asyncio.sleep(0)

        assert not woken.is_set()


async def test_the_checkpoint_that_the_kubelet_replaces_after_each_allocate_wakes_nobody(tmp_path, woken):
    wakes_so_far = []

    def wake():
        wakes_so_far.append(1)
        woken.set()

    with DirectoryWatch(tmp_path).subscribed(wake):
        for _ in range(5):
            fresh = tmp_path / ".kubelet_internal_checkpoint123"
            fresh.touch()
            fresh.rename(tmp_path / "kubelet_internal_checkpoint")
        (tmp_path / "kubelet.sock").touch()
        await wakes(woken)
        await asyncio.sleep(0)

    assert len(wakes_so_far) == 1


async def test_a_directory_that_comes_later_is_watched_from_the_next_look(tmp_path, woken):
    directory = tmp_path / "later"
    watch = DirectoryWatch(directory)
    with watch.subscribed(woken.set):
        assert not watch.armed
        directory.mkdir()
        watch.look()
        assert watch.armed

        (directory / "a").touch()
        await wakes(woken)


@pytest.mark.scenario("K4")
async def test_a_replaced_directory_is_watched_again(tmp_path, woken):
    directory = tmp_path / "plugins"
    directory.mkdir()
    watch = DirectoryWatch(directory)
    with watch.subscribed(woken.set):
        directory.rmdir()
        await wakes(woken)
        directory.mkdir()
        watch.look()

        (directory / "a").touch()
        await wakes(woken)


async def test_a_folder_that_goes_from_the_directory_leaves_the_watch_as_it_is(tmp_path, woken):
    folder = tmp_path / "cradle"
    folder.mkdir()
    made = []
    watch = DirectoryWatch(tmp_path, observer=lambda: made.append(watch_module.Observer()) or made[-1])
    with watch.subscribed(woken.set):
        folder.rmdir()
        await wakes(woken)
        watch.look()

        assert len(made) == 1


class Deaf(EventEmitter):
    """An emitter whose thread does not hear that it is to stop, as one in a read that does not return."""

    def __init__(self, *asked, **more):
        super().__init__(*asked, **more)
        self.released = threading.Event()

    def run(self):
        self.released.wait()


async def test_threads_of_file_events_that_do_not_end_are_left_behind(tmp_path, woken, monkeypatch):
    monkeypatch.setattr(watch_module, "STOP_TIMEOUT_S", 0.1)
    made = []

    def observer():
        made.append(BaseObserver(Deaf))
        return made[-1]

    watch = DirectoryWatch(tmp_path, observer=observer)
    with watch.subscribed(woken.set):
        assert watch.armed

    assert not watch.armed
    assert any(emitter.is_alive() for emitter in made[0].emitters)
    for emitter in made[0].emitters:
        emitter.released.set()


def test_a_new_file_of_the_same_name_has_another_identity(tmp_path):
    path = tmp_path / "kubelet.sock"
    assert FileIdentity.of(path) is None
    path.touch()
    first = FileIdentity.of(path)
    path.unlink()
    path.touch()

    assert FileIdentity.of(path) != first


def test_a_directory_keeps_its_identity_whatever_is_in_it(tmp_path):
    before = FileIdentity.of_directory(tmp_path)
    (tmp_path / "new").touch()

    assert before is not None
    assert FileIdentity.of_directory(tmp_path) == before
    assert FileIdentity.of_directory(tmp_path / "new") is None
