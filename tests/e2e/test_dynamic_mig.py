"""Cards that are cut into MIG instances as pods come: our scheduler, the daemon's process, and the driver's library."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.demo.node import CONFIGURATION, SimulatedNode, simulated_node
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.protocol.nodes import decode_json
from hami_plugin.sdk import Partition, Placement
from tests.e2e.steps import WITHIN_S, connection
from tests.e2e.test_usage import ran
from tests.support.live import Live, RefusedError, all_offered, live
from vendors.nvidia.partitions import MigPartitions
from vendors.nvidia.rules import ALLOCATIONS, ANNOTATIONS, BOTH_KINDS, decode_mig
from vendors.nvidia.settings import NvidiaSettings

PROFILE = "hgx-a100-4gpu"
VENDORS = {"nvidia": {"operatingMode": "mig"}}


def driver(stage: SimulatedNode) -> MigPartitions:
    settings = NvidiaSettings.model_validate(stage.hardware.settings)
    return MigPartitions(settings, HostFiles(paths=HostPaths().rooted(settings)))


def cut(stage: SimulatedNode) -> None:
    """All cards are in MIG mode, and whole."""
    for device in stage.hardware.machine.devices:
        driver(stage).switch(device.uuid, on=True)


def there(one: Live) -> tuple[Partition, ...]:
    return driver(one.stage).partitions()


def manifest(name: str, memory: int, count: int = 1) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(count), "nvidia.com/gpumem": str(memory)}
    container = {"name": "main", "image": "i", "resources": {"limits": limits}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], "schedulerName": "hami-scheduler"}}


def places(one: Live, card: str, profile: str) -> list[int]:
    """Where the register says that a card has room; nowhere before there is one."""
    register = one.written(ANNOTATIONS.register)
    profiles = [each for info in decode_json(register or "[]") if info.id == card for each in info.mig_profiles]
    return sorted(start for each in profiles if each.name == profile for start, _size in each.placements)


def instance_specs(directory: Path) -> list[Path]:
    return list(directory.glob("hami-partition_*.json"))


async def restarted(one: Live, before: object) -> None:
    """Start the daemon, and wait until the kubelet has its devices, and not those of the connection ``before``."""
    stage = one.stage
    await stage.start_daemon()

    def back() -> bool:
        return connection(stage) not in (None, before) and stage.kubelet.allocatable(stage.resource) > 0

    await stage.until(back, "the offer after the restart", WITHIN_S)


async def told(one: Live, name: str) -> list[dict[str, Any]]:
    """The pod's annotation, once it has the driver's names."""
    await one.stage.until(lambda: "migUUID" in one.noted(name).get(ALLOCATIONS, ""), "the names")
    return list(json.loads(one.noted(name)[ALLOCATIONS]))


async def test_a_pods_instance_is_made_told_and_destroyed_with_it() -> None:
    async with live(PROFILE, prepare=cut, vendors=VENDORS) as one:
        await one.run(manifest("a", 4000))
        (made,) = there(one)
        (entry,) = await told(one, "a")
        answer = one.answers["a"]

        assert entry == {
            "containerIndex": 0,
            "deviceIndex": 0,
            "gpuUUID": made.card,
            "profile": "1g.5gb",
            "placement": {"start": made.placement.start, "size": 1},
            "migUUID": made.uuid,
            "gpuInstanceID": made.ids["gi"],
            "computeInstanceID": made.ids["ci"],
        }
        assert answer.edits.env["NVIDIA_VISIBLE_DEVICES"] == made.uuid
        assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in answer.edits.env
        assert "libvgpu" not in str(answer.edits.mounts)

        one.end("a")
        await one.stage.until(lambda: there(one) == (), "the end of the instance")


@pytest.mark.full
async def test_seven_instances_of_a_card_and_two_of_one_container() -> None:
    async with live(PROFILE, prepare=cut, vendors=VENDORS) as one:
        await one.run(manifest("two", 9000, count=2))
        for number in range(7):
            await one.run(manifest(f"pod-{number}", 4000))
        await told(one, "two")

        found = there(one)
        held = one.answers["two"].edits.env["NVIDIA_VISIBLE_DEVICES"].split(",")
        assert len(found) == 9
        assert held == [each.instance.uuid for each in decode_mig(one.noted("two")[ALLOCATIONS]) if each.instance]
        assert set(held) < {each.uuid for each in found}
        for card in {each.card for each in found}:
            mine = sorted(each.placement for each in found if each.card == card)
            assert all(not a.overlaps(b) for at, a in enumerate(mine) for b in mine[at + 1 :])


@pytest.mark.full
async def test_who_has_which_instance_outlives_the_daemon_and_the_end_that_it_missed_is_made_up_for() -> None:
    async with live(PROFILE, prepare=cut, vendors=VENDORS) as one:
        for name in ("kept", "gone"):
            await one.run(manifest(name, 4000))
            await told(one, name)
        (kept,) = [each for each in there(one) if each.uuid in one.noted("kept")[ALLOCATIONS]]
        before = connection(one.stage)
        await one.stage.stop_daemon(kill=True)
        one.end("gone")
        await restarted(one, before)

        await one.stage.until(lambda: there(one) == (kept,), "the end of the instance")
        await one.run(manifest("next", 4000))
        assert kept in there(one)


@pytest.mark.full
@pytest.mark.parametrize("call", ["nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"])
async def test_a_daemon_that_dies_while_it_makes_an_instance_leaves_none(call: str) -> None:
    async with live(PROFILE, prepare=cut, vendors=VENDORS) as one:
        one.stage.hardware.simulator.inject("die", value=call)
        pod = await one.created(manifest("a", 4000))
        await one.bound(pod)
        with pytest.raises(RefusedError, match="kubelet"):
            await one.served(pod)
        before = connection(one.stage)
        assert one.stage.daemon
        await one.stage.daemon.wait()
        await restarted(one, before)

        await one.stage.until(lambda: there(one) == (), "the end of what was left")
        one.api.delete_pod("default", "a")
        await one.run(manifest("b", 4000))
        assert len(there(one)) == 1


@pytest.mark.full
async def test_what_others_have_made_is_left_out_of_the_register_and_never_touched() -> None:
    def with_foreign(stage: SimulatedNode) -> None:
        cut(stage)
        for device in stage.hardware.machine.devices:
            driver(stage).create(device.uuid, "3g.20gb", Placement(4, 4), lambda _ids: None)

    async with live(PROFILE, prepare=with_foreign, vendors=VENDORS) as one:
        foreign = there(one)
        await one.stage.until(lambda: places(one, foreign[0].card, "1g.5gb") == [0, 1, 2, 3], "the register")
        assert places(one, foreign[0].card, "3g.20gb") == [0]
        for number in range(3):
            await one.run(manifest(f"pod-{number}", 15000))
            one.end(f"pod-{number}")
        await one.stage.until(lambda: there(one) == foreign, "the end of the pods' instances")


@pytest.mark.full
async def test_the_command_lists_instances_with_their_owners() -> None:
    async with live(PROFILE, prepare=cut, vendors=VENDORS) as one:
        await one.run(manifest("a", 4000))
        (made,) = there(one)
        status, out, err = await ran(one.stage, command="partitions")
        assert (status, err) == (0, "")
        assert [line for line in out.splitlines() if made.uuid in line and "default/a/main[0]" in line]
        _status, metrics = await one.stage.get("/metrics")
        assert 'hami_plugin_partitions{resource="nvidia.com/gpu",state="assigned"} 1.0' in metrics


@pytest.mark.full
async def test_by_cdi_a_container_gets_its_instance_and_the_spec_goes_with_it(tmp_path: Path) -> None:
    vendors = {"nvidia": {"operatingMode": "mig", "deviceListStrategy": ["cdi-annotations"]}}
    async with live(PROFILE, prepare=cut, vendors=vendors, cdiDirs=[str(tmp_path)]) as one:
        await one.run(manifest("a", 4000))
        (made,) = there(one)
        (file,) = instance_specs(tmp_path)
        spec = json.loads(file.read_text())
        (device,) = spec["devices"]
        (name,) = [text for key, text in one.answers["a"].annotations.items() if key.startswith("cdi.k8s.io/")]

        assert name == f"{spec['kind']}={made.uuid}"
        assert device["name"] == made.uuid
        paths = [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        assert paths[0] == "/dev/nvidia0"
        assert [path.startswith("/dev/nvidia-caps/nvidia-cap") for path in paths[1:]] == [True, True]

        file.unlink()
        await one.stage.kubelet.start_container(one.api.pod("default", "a")["metadata"]["uid"], "main")
        assert file.exists()
        one.end("a")
        await one.stage.until(lambda: not file.exists(), "the end of the spec")


@pytest.mark.full
async def test_a_successor_knows_the_instances_of_its_predecessor_and_ends_them() -> None:
    async with live(PROFILE, prepare=cut, vendors=VENDORS) as one:
        for name in ("kept", "gone"):
            await one.run(manifest(name, 4000))
        (kept,) = [each for each in there(one) if each.uuid == one.answers["kept"].edits.env["NVIDIA_VISIBLE_DEVICES"]]
        second = one.stage.twin("second")
        await second.start_daemon()
        try:
            await one.stage.until(lambda: any("relieved" in line for line in one.stage.log_lines()), "the takeover", 60)
            await one.stage.stop_daemon()
            one.end("gone")
            await one.stage.until(lambda: there(one) == (kept,), "the end of the instance")
            await one.run(manifest("next", 4000))
            assert kept in there(one)
        finally:
            await second.stop_daemon()


@pytest.mark.full
async def test_a_pod_that_wrote_itself_a_larger_instance_than_it_asks_for_is_refused() -> None:
    async with live(PROFILE, prepare=cut, vendors=VENDORS) as one:
        pod = await one.created(manifest("a", 4000))
        await one.bound(pod)
        (entry,) = json.loads(one.noted("a")[ALLOCATIONS])
        forged = [{**entry, "profile": "7g.40gb", "placement": {"start": 0, "size": 8}}]
        one.api.annotate_pod("default", "a", {ALLOCATIONS: json.dumps(forged)})
        with pytest.raises(RefusedError, match=r"7g.40gb of .* where 1g.5gb is enough"):
            await one.served(pod)
        assert there(one) == ()


@pytest.mark.full
async def test_the_next_pod_of_the_same_place_takes_over_what_an_ended_one_has_left() -> None:
    async with live(PROFILE, prepare=cut, vendors=VENDORS) as one:
        await one.run(manifest("a", 4000))
        (made,) = there(one)
        pinned = {"nvidia.com/use-gpuuuid": made.card}
        assert one.stage.daemon
        one.stage.daemon.send_signal(signal.SIGSTOP)  # it hears of the end and of the next pod at once
        one.end("a")
        pod = await one.created(manifest("b", 4000), **pinned)
        async with asyncio.timeout(30):  # until the scheduler knows that the place is free
            await one.chosen(pod)
            while decode_mig(one.noted("b")[ALLOCATIONS])[0].start != made.placement.start:
                await one.chosen(pod)
        await one.bound(pod)
        one.stage.daemon.send_signal(signal.SIGCONT)
        await one.served(pod)

        assert there(one) == (made,)
        assert one.answers["b"].edits.env["NVIDIA_VISIBLE_DEVICES"] == made.uuid
        one.end("b")
        await one.stage.until(lambda: there(one) == (), "the end of the instance")


SWITCHED = {"nvidia": {"operatingMode": "mig", "migMode": "enabled"}}
BACK = {"nvidia": {"operatingMode": "hami-core", "migMode": "disabled"}}


def modes(stage: SimulatedNode) -> list[bool]:
    return [driver(stage).mode(device.uuid).current for device in stage.hardware.machine.devices]


@pytest.mark.full
async def test_idle_cards_are_switched_into_mig_mode_and_back_when_asked_once_their_pods_have_ended() -> None:
    async with live(PROFILE, vendors=SWITCHED) as one:
        stage = one.stage
        assert modes(stage) == [True] * 4
        await one.run(manifest("a", 4000))
        await told(one, "a")
        (made,) = there(one)

        await stage.stop_daemon()
        (stage.directory / "config.yaml").write_text(json.dumps({**CONFIGURATION, "vendors": BACK}))
        await stage.start_daemon()
        await stage.until(lambda: modes(stage).count(True) == 1, "the cards that nobody has")
        await stage.until(lambda: one.written(ANNOTATIONS.register).count('"health":true') == 3, "the register")
        status, out, _err = await ran(stage, "--plan", command="partitions")
        assert (status, there(one)) == (0, (made,))
        assert [line.split()[:3] for line in out.splitlines() if "pods have the card: default/a" in line] == [
            ["switch", "off", made.card]
        ]

        one.end("a")
        await stage.until(lambda: not any(modes(stage)), "the card whose pod has ended", WITHIN_S)
        await stage.until(lambda: all_offered(stage), "the register")
        one.count()
        await one.run(manifest("b", 4000))
        assert one.answers["b"].edits.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4000m"


@pytest.mark.full
async def test_a_card_that_a_process_has_is_not_switched_until_it_ends() -> None:
    def busy(stage: SimulatedNode) -> None:
        for card in (1, 2, 3):
            stage.hardware.simulator.inject("process", card, "42:10")

    async with simulated_node(PROFILE, configuration={**CONFIGURATION, "vendors": SWITCHED}) as stage:
        busy(stage)
        await stage.start_daemon()
        await stage.until(lambda: modes(stage) == [True, False, False, False], "the idle card")
        stage.hardware.simulator.inject("process", 1, "42:0")
        await stage.until(lambda: modes(stage) == [True, True, False, False], "the card whose process ended", WITHIN_S)
        stage.hardware.simulator.inject("passed-through", 2, 1)
        stage.hardware.simulator.inject("process", 2, "42:0")
        await stage.until(lambda: driver(stage).mode(stage.hardware.machine.devices[2].uuid).pending, "a try", WITHIN_S)
        _status, out, _err = await ran(stage, command="partitions")
        assert out.count("waits for a reset") + out.count("at the card's next reset") == 1


@pytest.mark.full
async def test_cards_that_are_cut_for_pods_stand_beside_shared_ones_and_instances_that_exist(tmp_path: Path) -> None:
    vendor = {
        "operatingMode": "mig",
        "cutDevices": {"index": [0]},
        "migMode": "enabled",
        "migStrategy": "mixed",
        "deviceListStrategy": ["cdi-annotations"],
    }
    static = "nvidia.com/mig-2g.10gb"

    def with_an_instance(stage: SimulatedNode) -> None:
        card = stage.hardware.machine.devices[3].uuid
        driver(stage).switch(card, on=True)
        driver(stage).create(card, "2g.10gb", Placement(0, 2), lambda _ids: None)

    def mode(name: str, way: str) -> dict[str, Any]:
        return {**manifest(name, 4000), "metadata": {"name": name, "annotations": {"nvidia.com/vgpu-mode": way}}}

    async with live(PROFILE, prepare=with_an_instance, vendors={"nvidia": vendor}, cdiDirs=[str(tmp_path)]) as one:
        stage = one.stage
        cards = [device.uuid for device in stage.hardware.machine.devices]
        assert modes(stage) == [True, False, False, True]
        await stage.until(lambda: stage.kubelet.allocatable(static) == 1, "the instance that exists", WITHIN_S)
        registered = {info.id: info.mode for info in decode_json(one.written(ANNOTATIONS.register))}
        assert registered == {cards[0]: "mig", cards[1]: "hami-core", cards[2]: "hami-core"}

        assert one.written(BOTH_KINDS) == "true"
        (foreign,) = there(one)
        await one.run(mode("cut", "mig"))
        await one.run(mode("shared", "hami-core"))
        (made,) = [each for each in there(one) if each != foreign]
        assert made.card == cards[0]
        (name,) = [value for key, value in one.answers["cut"].annotations.items() if key.startswith("cdi.k8s.io/")]
        assert name.endswith(f"={made.uuid}")
        assert one.answers["shared"].edits.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4000m"
        assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in one.answers["cut"].edits.env
        await one.run(manifest("three", 4000, count=3))  # of two shared cards and one that is cut: three instances
        assert [each.card for each in there(one) if each != foreign] == [cards[0]] * 4
        _status, out, _err = await ran(stage, command="partitions")
        assert made.uuid in out
        assert foreign.uuid not in out

        for name in ("cut", "three"):
            one.end(name)
        await stage.until(lambda: there(one) == (foreign,), "the end of the instances")
