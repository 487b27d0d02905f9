"""The configuration changes while the daemon runs: by a ConfigMap's swap, under load, and with mistakes in it."""

import asyncio
import json
import random
import re
import shutil
import signal
from pathlib import Path

import pytest

from hami_plugin.demo.node import CONFIGURATION
from hami_plugin.simulation.kubelet import Manners, Rivals
from tests.e2e.arrivals import WITHIN_S, Arrivals
from tests.e2e.manifests import small
from tests.e2e.steps import bring_up, confirm, logged, probed, reported, said, sound, start, take_down
from tests.support.scale import sized, spread

DEVICES = 8


class ConfigMap:
    """A directory as the kubelet mounts it: files are links through ``..data``, which is replaced in one step."""

    def __init__(self, directory):
        self.directory = directory
        self.number = 0
        directory.mkdir()

    @property
    def file(self):
        return self.directory / "config.yaml"

    def put(self, content):
        self.number += 1
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        version = self.directory / f"..{self.number}"
        version.mkdir()
        (version / "config.yaml").write_text(text)
        data, new = self.directory / "..data", self.directory / "..data_tmp"
        before = data.resolve() if data.is_symlink() else None
        new.symlink_to(version.name)
        new.rename(data)
        if not self.file.is_symlink():
            self.file.symlink_to("..data/config.yaml")
        if before:
            shutil.rmtree(before)


def configuration(split=10, **own):
    return {**CONFIGURATION, "decisionWaitSeconds": 1.0, "vendors": {"nvidia": {"deviceSplitCount": split}}, **own}


async def mounted(stage, content=None, **options):
    """Let the daemon read a ConfigMap in place of the stage's own file."""
    config = ConfigMap(stage.directory / "mounted")
    config.put(content or configuration(**options))
    stage.options["--config"] = str(config.file)
    return config


async def metrics(stage):
    """The metrics about the configuration, without their labels' quotes."""
    _status, text = await stage.get("/metrics")
    found = re.findall(r'^hami_plugin_(config_\w+)(?:\{reason="(\w*)"\})? ([0-9.]+)$', text, re.MULTILINE)
    return {f"{name} {reason}".strip(): float(number) for name, reason, number in found}


async def until(condition, what):
    """Wait for an answer of the daemon that is as it should be."""
    ends = asyncio.get_running_loop().time() + WITHIN_S
    while not await condition():
        assert asyncio.get_running_loop().time() < ends, what


async def in_force(stage, generation):
    async def reached():
        return (await metrics(stage)).get("config_generation", 0) >= generation

    await until(reached, "the generation")


async def refused(stage, reason, count=1):
    async def reached():
        seen = await metrics(stage)
        return seen.get(f"config_refusals_total {reason}", 0) >= count and seen.get(f"config_refused {reason}") == 1

    await until(reached, "the refusal")
    return (await stage.readiness())["configuration"]


async def effective(stage):
    _status, text = await stage.get("/debug/config")
    return json.loads(text)


async def shares(stage, count):
    """Wait until the kubelet and the annotation have so many shares of each device."""
    await stage.until(
        lambda: (
            stage.kubelet.allocatable(stage.resource) == count * DEVICES
            and {info.count for info in stage.registered()} == {count}
        ),
        f"{count} shares of each device",
        WITHIN_S,
    )


async def test_a_configmap_that_is_swapped_is_in_force_without_a_restart_of_daemon_or_registration(set_up):
    stage = await set_up()
    config = await mounted(stage)
    await start(stage)
    pod = await bring_up(stage, small("before", stage.family.resources))
    process, registrations = stage.daemon.pid, len(stage.kubelet.registrations)

    config.put(configuration(split=7))
    await in_force(stage, 2)

    await shares(stage, 7)
    assert (await effective(stage))["vendors"]["nvidia"]["deviceSplitCount"] == 7
    assert "vendors.nvidia.deviceSplitCount" in await reported(stage, "ConfigurationChanged")
    assert stage.daemon.pid == process
    assert len(stage.kubelet.registrations) == registrations
    assert (await stage.readiness())["configuration"] == {"generation": 2, "refused": "", "problem": ""}
    await bring_up(stage, small("after", stage.family.resources))
    take_down(stage, pod)
    await probed(stage, 200)
    await sound(stage)


REFUSED = [
    pytest.param(
        "vendors:\n  nvidia:\n    deviceSplitCount: many\n", "invalid", "config.yaml:3: vendors.nvidia", id="type"
    ),
    pytest.param("rescanSeconds: 3\nrescanSecond: 4\n", "invalid", "config.yaml:2: rescanSecond", id="key"),
    pytest.param("{", "invalid", "is not YAML", id="syntax"),
    pytest.param(
        configuration(split=4, cdiDirs=["/etc/cdi"]),
        "restart",
        "needs a restart of the daemon: cdiDirs",
        id="directory",
    ),
]


@pytest.mark.parametrize(("content", "reason", "words"), spread(REFUSED, part=3))
async def test_a_change_that_cannot_be_in_force_is_refused_whole_and_named(set_up, content, reason, words):
    stage = await set_up()
    config = await mounted(stage)
    await start(stage)

    config.put(content)
    answer = await refused(stage, reason)

    assert words in answer["problem"]
    assert (answer["generation"], answer["refused"]) == (1, reason)
    event = "ConfigurationNeedsRestart" if reason == "restart" else "ConfigurationRefused"
    assert words in await reported(stage, event)
    await shares(stage, 10)
    assert (await stage.readiness())["ready"]
    await bring_up(stage, small("served", stage.family.resources))

    config.put(configuration(split=3))
    await in_force(stage, 2)
    await shares(stage, 3)
    assert (await metrics(stage))["config_refused"] == 0


@pytest.mark.full
async def test_the_level_of_the_log_changes_in_the_daemon_that_serves(set_up):
    stage = await set_up()
    config = await mounted(stage, logLevel="error")
    await start(stage)
    assert not said(stage, "registered")

    config.put(configuration(logLevel="info"))
    await in_force(stage, 2)

    await logged(stage, "configuration taken up", "logLevel")
    assert not said(stage, "journal read")


@pytest.mark.full
async def test_sighup_judges_the_files_anew_and_ends_nothing(set_up):
    stage = await set_up()
    await mounted(stage)
    await start(stage)

    stage.daemon.send_signal(signal.SIGHUP)
    await bring_up(stage, small("served", stage.family.resources))

    assert stage.daemon.returncode is None
    assert (await metrics(stage))["config_generation"] == 1


@pytest.mark.full
async def test_a_resource_that_gets_another_name_leaves_the_kubelet_under_the_first(set_up):
    stage = await set_up()
    config = await mounted(stage)
    await start(stage)

    config.put(configuration(vendors={"nvidia": {"resourceCountName": "corp.example/gpu"}}))
    await in_force(stage, 2)

    await stage.until(lambda: stage.kubelet.allocatable("corp.example/gpu") == 10 * DEVICES, "the new name", WITHIN_S)
    await stage.until(lambda: stage.kubelet.allocatable(stage.resource) == 0, "the end of the first name", WITHIN_S)
    _status, text = await stage.get("/metrics")
    assert 'hami_plugin_registered{resource="corp.example/gpu"} 1.0' in text
    assert f'resource="{stage.resource}"' not in "".join(x for x in text.splitlines(True) if "_registered{" in x)
    config.put(configuration())
    await shares(stage, 10)
    await bring_up(stage, small("served", stage.family.resources))


@pytest.mark.parametrize("rivals", spread([Rivals.NEWEST, Rivals.BY_RESOURCE]))
async def test_random_changes_under_load_lose_no_allocate_and_show_no_mixture(set_up, tell, rivals):
    """Each configuration has its own pair of shares and memory, so a mixture of two would be a pair of neither."""
    stage = await set_up()
    config = await mounted(stage)
    await start(stage)
    stage.kubelet.manners = Manners(rivals=rivals)
    chance = random.Random(rivals.value)
    memory = stage.registered()[0].devmem
    torn, ended = [], asyncio.Event()

    async def watch():
        while not ended.is_set():
            for info in stage.registered():
                scaling = info.devmem / memory
                if abs(scaling - info.count / 10) > 0.001:
                    torn.append((info.count, info.devmem))
            await asyncio.sleep(0.01)

    async def changed(split):
        config.put(_paired(split))

    watching = asyncio.create_task(watch())
    final, bursts = 10, sized(2, 50)
    async with Arrivals(stage) as arrivals:
        for _burst in range(bursts):
            for _ in range(10):
                match chance.choice(["valid", "valid", "level", "mistake", "restart"]):
                    case "valid":
                        await changed(chance.randint(10, 20))
                    case "level":
                        config.put(_paired(final, logLevel=chance.choice(["info", "warning", "debug"])))
                    case "mistake":
                        config.put("vendors: {nvidia: {deviceSplitCount: -1}}")
                    case "restart":
                        config.put(_paired(chance.randint(10, 20), cdiDirs=["/elsewhere"]))
                await asyncio.sleep(chance.choice([0.0, 0.02, 0.2]))
            final = chance.choice([split for split in range(10, 21) if split != final])
            await changed(final)
            await shares(stage, final)
        await in_force(stage, 1 + bursts)  # each burst ends with other shares than it began with
        await arrivals.more(3)
    ended.set()
    await watching
    applied = (await metrics(stage))["config_generation"]
    tell(f"{rivals}: {config.number} changes, {applied:.0f} configurations in force; {arrivals}")

    assert not torn
    assert (arrivals.failed, arrivals.why) == (0, set())
    for pod in arrivals.pods:
        await confirm(stage, pod)
    await sound(stage)


def _paired(split, **own):
    nvidia = {"deviceSplitCount": split, "deviceMemoryScaling": split / 10}
    return configuration(vendors={"nvidia": nvidia}, **own)


@pytest.mark.full
async def test_changes_leave_no_threads_or_descriptors_behind(set_up):
    stage = await set_up()
    config = await mounted(stage)
    await start(stage)

    async def counted():
        proc = Path(f"/proc/{stage.daemon.pid}")
        return len(list((proc / "task").iterdir())), len(list((proc / "fd").iterdir()))

    for number in range(4):
        config.put(configuration(split=11 + number))
        await in_force(stage, 2 + number)
        await shares(stage, 11 + number)
    before = await counted()
    for number in range(30):
        config.put(configuration(split=11 + number % 3, rescanSeconds=40 + number))
        await in_force(stage, 6 + number)

    async def let_go():
        now = await counted()
        return now[0] <= before[0] + 3 and now[1] <= before[1] + 6

    await until(let_go, "the end of former daemons' threads and files")
