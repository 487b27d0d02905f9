"""What a changed configuration takes, and what becomes of it when it cannot be in force at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hami_plugin.config.changes import ConfigurationSource, ReloadRefusal, Reloads
from hami_plugin.config.load import Configuration, load
from hami_plugin.daemon import reload
from hami_plugin.daemon.reload import Reloader, Succession, change
from hami_plugin.process.concurrency import cancel, poll_condition
from hami_plugin.sdk import load_vendor, vendor_names

SOON_S = 30.0


def read(path: Path) -> Configuration:
    return load(
        config=path,
        device_config=None,
        node_config=None,
        overrides={"nodeName": "n1"},
        environment={},
        vendor_settings=lambda name: load_vendor(name).settings,
        vendor_names=vendor_names(),
    )


def remove(path: Path) -> None:
    path.unlink()


def write(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("")
    return path


@pytest.mark.parametrize(
    ("text", "live", "swapped", "restart"),
    [
        ("", "", "", ""),
        ("scheduler: {name: other}", "", "", ""),
        ("logLevel: debug", "logLevel", "", ""),
        ("rescanSeconds: 7", "", "rescanSeconds", ""),
        ("vendors: {nvidia: {deviceSplitCount: 3}}", "", "vendors.nvidia.deviceSplitCount", ""),
        ("vendors: {amd: {enabled: false}}", "", "vendors.amd.enabled", ""),
        ("stateDir: /s", "", "", "stateDir"),
        ("vendors: {nvidia: {containerDriverRoot: /x}}", "", "", "vendors.nvidia.containerDriverRoot"),
        ("httpPort: 1\nlogLevel: debug\nrescanSeconds: 7", "logLevel", "rescanSeconds", "httpPort"),
    ],
)
def test_each_key_says_what_it_takes_to_have_it_in_force(
    file: Path, text: str, live: str, swapped: str, restart: str
) -> None:
    before = read(file)
    file.write_text(text)

    found = change(before, read(file))

    assert (found.live, found.swapped, found.restart) == tuple(tuple(x.split()) for x in (live, swapped, restart))


def test_a_library_of_a_vendor_that_is_not_served_yet_needs_no_restart(file: Path) -> None:
    file.write_text("vendors: {nvidia: {enabled: false}}")
    before = read(file)
    file.write_text("vendors: {nvidia: {enabled: true, containerDriverRoot: /x}}")

    assert not change(before, read(file)).restart


@dataclass
class Process:
    """Stands in for the process: it takes what it is given, unless it is busy or lacks devices."""

    configuration: Configuration
    why_busy: str = ""
    lacks: str = ""
    of_claims: list[str] = field(default_factory=list)
    tried: int = 0
    told: list[tuple[str, str]] = field(default_factory=list)

    def busy(self) -> str:
        return self.why_busy

    def claimed(self) -> list[str]:
        return self.of_claims

    def isolated(self) -> list[str]:
        return []

    def adopt(self, configuration: Configuration) -> None:
        self.configuration = configuration

    async def replace(self, configuration: Configuration) -> str:
        self.tried += 1
        if not self.lacks:
            self.configuration = configuration
        return self.lacks

    def tell(self, reason: str, message: str, *, warning: bool) -> None:
        self.told.append((reason, message))


@asynccontextmanager
async def reloading(file: Path) -> AsyncIterator[tuple[Process, Reloads, Reloader]]:
    process, reloads = Process(read(file)), Reloads()
    reloader = Reloader(ConfigurationSource(read=lambda: read(file), paths=(file,)), process, reloads)
    task = asyncio.create_task(reloader.run())
    await asyncio.sleep(0)  # it watches the file from here on
    try:
        yield process, reloads, reloader
    finally:
        await cancel(task)


async def until(condition: Callable[[], bool]) -> None:
    assert await poll_condition(condition, within=SOON_S)


async def test_a_file_that_is_written_in_place_is_in_force(file: Path) -> None:
    async with reloading(file) as (process, reloads, _reloader):
        write(file, "rescanSeconds: 7")
        await until(lambda: reloads.generation == 2)

        assert process.configuration.settings.rescan_seconds == 7
        assert [reason for reason, _message in process.told] == ["ConfigurationChanged"]


async def test_a_change_before_the_watch_began_is_seen(file: Path) -> None:
    process, reloads = Process(read(file)), Reloads()
    write(file, "rescanSeconds: 7")
    reloader = Reloader(ConfigurationSource(read=lambda: read(file), paths=(file,)), process, reloads)
    reloader.again()
    task = asyncio.create_task(reloader.run())
    await until(lambda: reloads.generation == 2)
    await cancel(task)


async def test_what_has_no_effect_is_no_new_generation(file: Path) -> None:
    async with reloading(file) as (process, reloads, _reloader):
        write(file, "scheduler: {name: other}")
        await until(lambda: process.configuration.settings.scheduler.name == "other")

        assert (reloads.generation, process.told) == (1, [])


async def test_a_busy_daemon_is_asked_again_until_it_is_not(file: Path) -> None:
    async with reloading(file) as (process, reloads, _reloader):
        process.why_busy = "the API server is away"
        write(file, "rescanSeconds: 7")
        await until(lambda: reloads.problem == "the API server is away")
        assert process.told == []

        process.why_busy = ""
        await until(lambda: reloads.generation == 2)
        assert (reloads.reason, reloads.problem) == ("", "")


async def test_devices_that_cannot_be_served_keep_the_former_and_are_tried_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "RETRY", reload.Backoff(first=0.05, cap=0.05))
    async with reloading(file) as (process, reloads, _reloader):
        process.lacks = "nvidia: NoLibrary"
        write(file, "rescanSeconds: 7")
        await until(lambda: process.tried > 2)
        assert (reloads.generation, reloads.reason) == (1, ReloadRefusal.DEVICES)
        assert [reason for reason, _message in process.told] == ["ConfigurationRefused"]

        process.lacks = ""
        await until(lambda: reloads.generation == 2)


async def test_while_devices_are_offered_by_claims_a_change_needs_a_restart_and_the_level_does_not(file: Path) -> None:
    async with reloading(file) as (process, reloads, _reloader):
        process.of_claims = ["nvidia"]
        write(file, "rescanSeconds: 7")
        await until(lambda: reloads.reason == ReloadRefusal.RESTART)
        assert "ResourceClaims" in reloads.problem
        assert process.tried == 0

        write(file, "logLevel: debug")
        await until(lambda: reloads.generation == 2)


async def test_a_file_that_goes_away_is_refused(file: Path) -> None:
    async with reloading(file) as (_process, reloads, _reloader):
        remove(file)
        await until(lambda: reloads.reason == ReloadRefusal.INVALID)

        assert "does not exist" in reloads.problem


@dataclass
class Serving:
    gave: int = 0

    def driver_problems(self) -> dict[str, str]:
        return {"nvidia": "", "amd": "no driver"}

    async def give_way(self) -> str:
        self.gave += 1
        return ""


@pytest.mark.parametrize(
    ("problems", "words"),
    [
        ({"nvidia": "", "amd": "no driver"}, ""),
        ({"amd": ""}, ""),
        ({"nvidia": "no library"}, "cannot serve what is served now (nvidia: no library)"),
        (None, "the devices were not found within"),
    ],
)
async def test_the_node_passes_only_to_a_daemon_that_serves_as_well(
    problems: dict[str, str] | None, words: str
) -> None:
    serving = Serving()
    turn = Succession(serving, within=0.2)

    taken = await turn.take(asyncio.Event(), lambda: problems)

    assert taken is turn.given is (not words)
    assert serving.gave == (not words)
    assert words in turn.refused
