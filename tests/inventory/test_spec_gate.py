"""Nobody is told of a device before a runtime would find it, and what is wrong heals by itself."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from dataclasses import replace

import pytest

from cdi.spec import ContainerEdits, DeviceNode
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.inventory.cdi_specs import SpecFiles, SpecGate, SpecTiming, file_name, remove_stale_specs
from hami_plugin.model.delivery import Delivery, Way
from hami_plugin.model.device import Health, Snapshot
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.process.concurrency import cancel
from tests.support.builders import FAMILY, NODE, changed, device, snapshot, uuid
from tests.support.cluster import FakeCluster
from tests.support.node import until

KIND = "toy.io/card"
NAME = file_name(KIND)
SOON = SpecTiming(check=0.01, describe=30.0, timeout=60.0)


def node_of(item, _host):
    if item.minor == -1:
        raise HamiError(f"{item.uuid} has no device node")
    return ContainerEdits(device_nodes=(DeviceNode(path=f"/dev/toy{item.minor or item.index}"),))


TOY = changed(
    FAMILY,
    delivery=Delivery(ways=(Way.CDI_ANNOTATIONS,), kind=KIND),
    device_edits=node_of,
    shared_edits=lambda _host: ContainerEdits(env={"TOY": "void"}),
)


class Stage:
    """The CDI stage over real directories."""

    def __init__(self, root):
        self.directories = (root / "etc", root / "run")
        for directory in self.directories:
            directory.mkdir()
        self.cluster = FakeCluster()
        self.events = EventRecorder(self.cluster, NODE)
        host = HostFiles(paths=HostPaths(hook=root, hook_view=root))
        files = SpecFiles(TOY, self.directories, host)
        self.observed = []
        self.specs = SpecGate(
            KIND,
            files,
            events=self.events,
            observe=lambda: self.observed.append(self.specs.snapshot.value),
            timing=SOON,
        )

    @property
    def path(self):
        return self.directories[-1] / NAME

    def described(self):
        return {entry["name"] for entry in json.loads(self.path.read_text())["devices"]}

    def healths(self):
        return [item.health for item in self.specs.snapshot.value.devices]

    def reasons(self):
        return {item.uuid: item.reason for item in self.specs.snapshot.value.devices}

    async def healthy(self, count=4):
        await until(lambda: self.healths() == [Health.HEALTHY] * count)

    async def told(self):
        waiting = self.events._queue
        while not waiting.empty():
            await self.events._write(waiting.get_nowait())
        return [(reason, message) for _subject, reason, message, *_rest in self.cluster.events]


@pytest.fixture
async def stage(tmp_path):
    stage = Stage(tmp_path)
    task = asyncio.create_task(stage.specs.run())
    yield stage
    stage.specs.close()
    await cancel(task)


async def test_a_device_is_shown_after_its_spec_is_in_place(stage):
    on_disk = []

    async def watch():
        async for shown in stage.specs.snapshot.follow():
            if shown.devices:
                on_disk.append(stage.described())
                return

    looking = asyncio.create_task(watch())
    stage.specs.take(snapshot(2))
    await asyncio.wait_for(looking, 30)

    assert on_disk == [{uuid(0), "0", uuid(1), "1", "all"}]
    assert stage.specs.problem == ""


async def test_a_device_that_comes_later_is_described_first(stage):
    stage.specs.take(snapshot(1))
    await stage.healthy(1)

    stage.specs.take(snapshot(3))
    await stage.healthy(3)

    assert uuid(2) in stage.described()


async def test_a_node_that_changes_its_number_is_described_anew(stage):
    stage.specs.take(snapshot(1))
    await stage.healthy(1)

    stage.specs.take(Snapshot(devices=(device(0, minor=5),), ready=True, reason=""))
    await until(lambda: "/dev/toy5" in stage.path.read_text())
    await stage.healthy(1)


def written(path):
    """What changes when a file is written, and not when it is read."""
    return path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_ctime_ns


async def test_nothing_is_written_when_nothing_has_changed(stage):
    stage.specs.take(snapshot(2))
    await stage.healthy(2)
    before = written(stage.path)

    stage.specs.take(replace(snapshot(2), facts={"driver": "1"}))
    await until(lambda: stage.specs.snapshot.value.facts == {"driver": "1"})

    assert written(stage.path) == before


@pytest.mark.parametrize("harm", ["unlink", "edit", "truncate", "mode"])
@pytest.mark.scenario("H3")
async def test_a_spec_that_somebody_spoils_is_written_again(stage, harm):
    stage.specs.take(snapshot(2))
    await stage.healthy(2)
    good = stage.path.read_text()

    match harm:
        case "unlink":
            stage.path.unlink()
        case "edit":
            stage.path.write_text(good.replace("/dev/toy0", "/dev/sda0"))
        case "truncate":
            stage.path.write_text("")
        case "mode":
            stage.path.chmod(0o600)

    await until(
        lambda: (
            stage.path.exists() and stage.path.read_text() == good and stat.S_IMODE(stage.path.stat().st_mode) == 0o644
        )
    )
    await stage.healthy(2)


@pytest.mark.parametrize("directory", [0, 1])
@pytest.mark.scenario("H4")
async def test_a_foreign_spec_of_the_same_device_takes_it_away_until_it_is_gone(stage, directory):
    stage.specs.take(snapshot(2))
    await stage.healthy(2)
    foreign = stage.directories[directory] / "foreign.yaml"
    foreign.write_text(
        f"cdiVersion: 0.5.0\nkind: {KIND}\ndevices:\n- name: {uuid(1)}\n  containerEdits:\n    env: [A=1]\n"
    )

    await until(lambda: stage.reasons() == {uuid(0): "", uuid(1): "CDIConflict"})
    ((reason, message),) = await stage.told()
    assert reason == "CDIConflict"
    assert str(foreign) in message
    assert str(stage.path) in message

    foreign.unlink()
    await stage.healthy(2)


async def test_a_device_that_cannot_be_described_does_not_hide_the_others(stage):
    stage.specs.take(Snapshot(devices=(device(0), device(1, minor=-1)), ready=True, reason=""))

    await until(lambda: stage.reasons() == {uuid(0): "", uuid(1): "CDISpecMissing"})
    assert "no device node" in stage.specs.snapshot.value.devices[1].message


async def test_a_foreign_file_that_is_broken_hides_nothing_of_ours(stage):
    (stage.directories[1] / "broken.json").write_text("{")
    stage.specs.take(snapshot(2))

    await stage.healthy(2)


@pytest.mark.scenario("H1")
async def test_a_directory_that_is_in_the_way_leaves_the_old_spec_and_heals(stage):
    stage.specs.take(snapshot(1))
    await stage.healthy(1)
    old = stage.path.read_text()
    aside = stage.directories[1].with_name("aside")
    stage.directories[1].rename(aside)
    stage.directories[1].write_text("a file where the directory was")

    stage.specs.take(snapshot(2))
    await until(lambda: set(stage.reasons().values()) == {"CDISpecMissing"})
    assert (aside / NAME).read_text() == old
    assert str(stage.directories[1]) in stage.specs.problem

    stage.directories[1].unlink()
    aside.rename(stage.directories[1])
    await stage.healthy(2)


async def test_a_missing_directory_is_made(stage):
    stage.directories[1].rmdir()

    stage.specs.take(snapshot(1))

    await stage.healthy(1)
    assert stat.S_IMODE(stage.directories[1].stat().st_mode) == 0o755


@pytest.mark.parametrize("mask", [0o077, 0o000])
@pytest.mark.scenario("H5")
async def test_specs_are_readable_by_all_and_writable_by_us_whatever_the_umask(stage, mask):
    stage.directories[1].rmdir()
    before = os.umask(mask)
    try:
        stage.specs.take(snapshot(1))
        await stage.healthy(1)
    finally:
        os.umask(before)

    assert stat.S_IMODE(stage.path.stat().st_mode) == 0o644
    assert stat.S_IMODE(stage.path.parent.stat().st_mode) == 0o755


async def test_an_unhealthy_device_keeps_its_own_reason(stage):
    ill = device(0, health=Health.UNHEALTHY, reason="XidFatal")
    (stage.directories[1] / "foreign.json").write_text(
        json.dumps(
            {
                "cdiVersion": "0.5.0",
                "kind": KIND,
                "devices": [{"name": uuid(0), "containerEdits": {"env": ["A=1"]}}],
            }
        )
    )

    stage.specs.take(Snapshot(devices=(ill,), ready=True, reason=""))
    await until(lambda: stage.specs.snapshot.value.ready)

    assert stage.reasons() == {uuid(0): "XidFatal"}


async def test_metrics_see_what_the_others_see(stage):
    stage.specs.take(snapshot(1))
    await stage.healthy(1)

    assert stage.observed[-1] == stage.specs.snapshot.value


async def test_a_disk_that_hangs_shows_no_new_device_and_keeps_the_known_ones(stage, tmp_path):
    stage.specs.take(snapshot(1))
    await stage.healthy(1)
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang():
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()

    stage.specs._timing = SpecTiming(check=0.01, timeout=0.05)
    stage.specs._thread.start(hang)
    stage.specs.take(snapshot(2))

    await until(lambda: stage.reasons() == {uuid(0): "", uuid(1): "CDISpecMissing"})
    release.set()
    await stage.healthy(2)


@pytest.mark.scenario("H2")
def test_a_daemon_that_starts_removes_half_written_files_and_kinds_that_are_served_no_more(tmp_path):
    kept = [NAME, "nvidia.yaml", "hami-plugin_toy.io-card.txt"]
    for name in (*kept, ".hami-plugin_toy.io-card.json.writing", file_name("toy.io/old")):
        (tmp_path / name).write_text("{}")

    remove_stale_specs(tmp_path, [KIND])

    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(kept)
