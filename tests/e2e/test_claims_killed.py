"""The daemon is killed before and after each write and call of a claim's life, and nothing is lost or left behind."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from hami_plugin.demo.node import GUARD_S
from hami_plugin.dra.slices import device_name
from hami_plugin.simulation.allocation import pool_slices
from hami_plugin.simulation.dra import PrepareError
from hami_plugin.simulation.objects import RESOURCES
from tests.e2e import dying_claims as dying
from tests.e2e.claiming import DRIVER, NAMESPACE, Stage, spec_directories, staged
from tests.support.scale import spread

LAUNCHER = str(Path(dying.__file__))


class Killed:
    """A stage whose daemon dies at points that are named one after the other."""

    def __init__(self, stage: Stage):
        self.stage, self.node, self.kubelet = stage, stage.node, stage.kubelet
        self.file = stage.node.directory / "point"
        self.boots = 0

    async def start(self):
        self.file.with_suffix(".boot").write_text(f"boot-{self.boots}")
        await self.stage.start(LAUNCHER, str(self.file))

    async def dead(self):
        async with asyncio.timeout(GUARD_S):
            assert await self.node.daemon.wait() == -signal.SIGKILL
        self.node.daemon = None

    async def dies(self, name, spot):
        """The pod whose claim the daemon was asked about when it died at ``spot``."""
        pod = self.stage.place(name, memory="3000Mi", cores="30")
        call = self.kubelet.prepare
        if spot in dying.UNPREPARE:
            await self.kubelet.prepare(pod)
            call = self.kubelet.unprepare
        self.file.write_text(spot)
        with pytest.raises(PrepareError, match="UNAVAILABLE"):
            await call(pod)
        await self.dead()
        return pod

    def wipe(self):
        for path in self.stage.directories[-1].iterdir():
            path.unlink()

    async def boot(self):
        """The directory of specs is empty, the boot id another, the kubelet new, and no container runs."""
        self.wipe()
        self.boots += 1
        await self.kubelet.restart()

    def answer(self, pod):
        devices = [one.SerializeToString(deterministic=True) for one in self.kubelet.devices(pod.claims["gpu"])]
        files = {path.name: path.read_bytes() for path in self.stage.directories[-1].iterdir()}
        return devices, files, self.stage.edits(pod)

    def rival(self, name, pod):
        """A pod whose claim has all of the same card, as of a scheduler that knows nothing of the first."""
        (result,) = self.stage.api.claim(NAMESPACE, pod.claims["gpu"])["status"]["allocation"]["devices"]["results"]
        rival = self.stage.place(name, slots="10")
        claim = self.stage.api.claim(NAMESPACE, f"{name}-gpu")
        (own,) = claim["status"]["allocation"]["devices"]["results"]
        status = {"allocation": {"devices": {"results": [{**own, "device": result["device"]}]}}}
        self.stage.api.set_claim_status(NAMESPACE, f"{name}-gpu", status)
        return rival

    async def holds(self, pod):
        """All that must be true of a claim that is prepared."""
        first = self.answer(pod)
        assert first[2].env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
        entries = self.stage.entries()
        assert [entry["done"] for entry in entries.values()] == [True]
        for entry in entries.values():
            path = self.stage.directories[-1] / f"hami-claim_{DRIVER}_{entry['uid']}.json"
            assert path.read_text() == entry["spec"]
        await self.kubelet.restart()
        await self.node.until(lambda: self.kubelet.registered(DRIVER), "the kubelet's return", GUARD_S)
        await self.kubelet.prepare(pod)
        assert self.answer(pod) == first
        rival = self.rival(f"{pod.name}-rival", pod)
        with pytest.raises(PrepareError, match=f"still has|{pod.name}-gpu"):
            await self.kubelet.prepare(rival)
        await self.kubelet.unprepare(rival)
        self.stage.end(rival)

    async def clean(self):
        """Nothing is left."""
        assert self.stage.leaks() == []


def pool(one):
    """The names of the devices that a scheduler would give out."""
    specs = pool_slices(one.stage.api, DRIVER, one.node.node)
    return {device["name"] for spec in specs for device in spec.get("devices", ())}


async def asks_again(one, pod, spot):
    await one.start()
    if spot in dying.PREPARE:
        await one.kubelet.prepare(pod)
        await one.holds(pod)
    await one.kubelet.unprepare(pod)
    one.stage.end(pod)


async def kubelet_restarted(one, pod, spot):
    await one.kubelet.restart()
    await asks_again(one, pod, spot)


async def booted(one, pod, spot):
    await one.boot()
    await asks_again(one, pod, spot)


async def wiped(one, pod, spot):
    one.wipe()
    await asks_again(one, pod, spot)


async def pod_gone(one, pod, _spot):
    """By force: its claim is gone as well when the kubelet comes to release it."""
    one.stage.end(pod)
    await one.start()
    await one.kubelet.unprepare(pod)


async def forgotten(one, pod, _spot):
    """Nobody will ever release it."""
    one.stage.end(pod)
    one.kubelet._claims.clear()
    one.file.with_suffix(".lost").touch()
    await one.start()
    await one.node.until(lambda: not one.stage.entries(), "the end of what nobody has", GUARD_S)
    await one.node.until(lambda: not one.stage.claim_files(), "the end of its spec", GUARD_S)


COMPANY = {
    "the kubelet asks again": asks_again,
    "the kubelet was restarted": kubelet_restarted,
    "the host was booted anew": booted,
    "the directory of specs was emptied": wiped,
    "the pod was deleted by force": pod_gone,
    "the kubelet has lost its state": forgotten,
}
POINTS = [*dying.PREPARE, *dying.UNPREPARE]


@pytest.fixture
async def killed(set_up, tmp_path):
    async with staged(set_up, spec_directories(tmp_path)) as stage:
        one = Killed(stage)
        await one.start()
        yield one


@pytest.mark.scenario("A5")
@pytest.mark.parametrize("company", spread(COMPANY, part=6))
async def test_a_daemon_that_dies_at_any_point_of_prepare_and_unprepare_leaks_nothing_when(company, killed):
    at = list(COMPANY).index(company)
    points = POINTS if len(spread(POINTS)) == len(POINTS) else POINTS[at::9]
    for number, spot in enumerate(points):
        pod = await killed.dies(f"p{number}", spot)
        try:
            await COMPANY[company](killed, pod, spot)
            await killed.clean()
        except Exception as error:
            raise AssertionError(f"killed when {spot}: {error}") from error
    assert len(pool(killed)) == 4
    pods = [killed.stage.place(f"whole-{number}", slots="10") for number in range(4)]
    for pod in pods:
        await killed.kubelet.prepare(pod)


def of_another_life(stage):
    """A slice of this driver that no driver publishes any more."""
    (one,) = stage.api.slices()
    spec = {**one["spec"], "pool": {**one["spec"]["pool"], "generation": 0}}
    old = {"metadata": {"name": f"{DRIVER}-old"}, "spec": spec}
    stage.api.store.create(RESOURCES["resourceslices"], "", old)


def card_fails(stage):
    stage.node.hardware.simulator.inject("lost", stage.node.hardware.machine.devices[-1].index)


CAUSES = {"created": lambda stage: stage.kubelet.wipe(), "updated": card_fails, "deleted": of_another_life}


@pytest.mark.full
@pytest.mark.scenario("A5")
@pytest.mark.parametrize("spot", spread(dying.PUBLISH, part=3))
async def test_a_daemon_that_dies_when(spot, killed):
    stage, cards = killed.stage, killed.node.hardware.machine.devices
    killed.file.write_text(spot)
    CAUSES[spot.split()[-1]](stage)
    await killed.dead()

    stage.node.hardware.simulator.inject("back", cards[-1].index)
    await killed.start()

    names = {device_name(card.uuid) for card in cards}

    def whole():
        return pool(killed) == names and len(stage.api.slices()) == 1

    pod = stage.place("after", memory="3000Mi")
    await killed.kubelet.prepare(pod)
    await killed.holds(pod)
    await killed.kubelet.unprepare(pod)
    stage.end(pod)
    await killed.node.until(whole, "the whole pool, and nothing else", GUARD_S)
    await killed.clean()


@pytest.mark.full
async def test_what_a_container_counted_goes_with_its_boot_and_not_with_the_daemon(killed):
    stage = killed.stage
    pod = stage.place("small", memory="3000Mi")
    await killed.kubelet.prepare(pod)
    (folder,) = (killed.node.directory / "hook/vgpu/containers").iterdir()
    usage = folder / "small.cache"
    usage.touch()

    await killed.node.stop_daemon(kill=True)
    await killed.start()
    await killed.kubelet.restart()
    await killed.node.until(lambda: killed.kubelet.registered(DRIVER), "the kubelet's return", GUARD_S)
    await killed.kubelet.prepare(pod)
    assert usage.exists()

    await killed.node.stop_daemon(kill=True)
    await killed.boot()
    await killed.start()
    assert not usage.exists()
    usage.touch()
    await killed.kubelet.prepare(pod)
    assert usage.exists()  # a second claim's pod may have begun
