"""The daemon is killed before and after each write and call of a claim's life, and nothing is lost or left behind."""

from __future__ import annotations

import pytest

from hami_plugin.demo.node import GUARD_S
from hami_plugin.dra.slices import device_name
from hami_plugin.simulation.dra import PrepareError, pool_slices
from hami_plugin.simulation.objects import RESOURCES
from tests.e2e import dying_claims as dying
from tests.e2e.claiming import DRIVER, NAMESPACE, spec_directories, staged
from tests.e2e.killed import COMPANY, Killed, dies_everywhere
from tests.support.scale import spread


class KilledSharer(Killed):
    """A stage of cards that are shared."""

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
        first = self.answer(pod)
        assert first[2].env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
        entries = self.stage.entries()
        assert [entry["done"] for entry in entries.values()] == [True]
        for entry in entries.values():
            path = self.stage.directories[-1] / f"hami-claim_{DRIVER}_{entry['uid']}.json"
            assert path.read_text() == entry["spec"]
        assert await self.asked_again(pod) == first
        rival = self.rival(f"{pod.name}-rival", pod)
        with pytest.raises(PrepareError, match=f"still has|{pod.name}-gpu"):
            await self.kubelet.prepare(rival)
        await self.kubelet.unprepare(rival)
        self.stage.end(rival)


def pool(one):
    """The names of the devices that a scheduler would give out."""
    specs = pool_slices(one.stage.api, DRIVER, one.node.node)
    return {device["name"] for spec in specs for device in spec.get("devices", ())}


@pytest.fixture
async def killed(set_up, tmp_path):
    async with staged(set_up, spec_directories(tmp_path)) as stage:
        one = KilledSharer(stage, memory="3000Mi", cores="30")
        await one.start()
        yield one


@pytest.mark.scenario("A5")
@pytest.mark.parametrize("company", spread(COMPANY, part=6))
async def test_a_daemon_that_dies_at_any_point_of_prepare_and_unprepare_leaks_nothing_when(company, killed):
    await dies_everywhere(killed, company, part=5)

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
