"""The kubelet, its directory and our socket go and come back; and a second daemon appears."""

import asyncio
import time

import pytest

from hami_plugin.protocol import keys
from hami_plugin.simulation.kubelet import AdmissionError, Manners
from tests.e2e.manifests import small
from tests.e2e.steps import WITHIN_S, bring_up, confirm, connection, fail, offered, probed, removed, start
from tests.e2e.truth import annotation, journal


def own_socket(stage):
    (socket,) = [path for path in stage.kubelet.directory.glob("*.sock") if path != stage.kubelet.socket]
    return socket


async def back(stage, before):
    """Seconds until the kubelet has a newer connection than the one ``before``, and all devices."""
    began = time.monotonic()
    await stage.until(lambda: connection(stage) not in (None, before), "a new registration", WITHIN_S)
    await offered(stage)
    return time.monotonic() - began


@pytest.mark.scenario("K1")
async def test_a_restarted_kubelet_has_all_devices_again_at_once(running, tell):
    stage = await running()
    kept = await bring_up(stage, small("kept", stage.family.resources))
    held = dict(stage.kubelet.ledger.allotments)
    before = connection(stage)

    await stage.kubelet.restart()
    seconds = await back(stage, before)

    tell(f"back after a restart of the kubelet: {seconds:.3f} s")
    assert stage.kubelet.ledger.allotments == held
    await bring_up(stage, small("later", stage.family.resources))
    assert (await stage.kubelet.start_container(kept.uid, "main")).edits.env


@pytest.mark.scenario("K3")
async def test_a_deleted_socket_of_our_own_is_served_and_registered_again(running, tell):
    stage = await running()
    before = connection(stage)

    own_socket(stage).unlink()
    seconds = await back(stage, before)

    tell(f"back after the loss of its own socket: {seconds:.3f} s")
    await bring_up(stage, small("later", stage.family.resources))


@pytest.mark.full
@pytest.mark.scenario("K4")
async def test_a_replaced_device_plugins_directory_is_found_again(running, tell):
    stage = await running()
    before = connection(stage)

    await stage.kubelet.stop(killed=True)
    removed(stage.kubelet.directory)
    stage.kubelet.ledger.forget_lists()
    await stage.kubelet.start()
    seconds = await back(stage, before)

    tell(f"back after the directory was replaced: {seconds:.3f} s")
    await bring_up(stage, small("later", stage.family.resources))


@pytest.mark.full
@pytest.mark.scenario("K2")
async def test_a_killed_kubelet_leaves_a_live_daemon_that_says_what_it_waits_for(running, tell):
    stage = await running()

    before = connection(stage)
    await stage.kubelet.stop(killed=True)
    assert stage.kubelet.socket.exists()
    component = f"kubelet {stage.resource}"
    problem = ""
    async with asyncio.timeout(WITHIN_S):
        while not problem:
            problem = (await stage.readiness())["components"][component]
    status, _body = await stage.get("/healthz")
    await stage.kubelet.start()
    seconds = await back(stage, before)

    tell(f"back after the kubelet was killed: {seconds:.3f} s; meanwhile: {problem}")
    assert status == 200
    await bring_up(stage, small("later", stage.family.resources))


@pytest.mark.full
@pytest.mark.scenario("K10", "K11")
async def test_a_second_daemon_with_a_state_directory_of_its_own_leaves_the_resource_to_the_first(running, tell):
    stage = await running()
    second = stage.twin("second", state_dir=stage.directory / "other-state")
    await second.start_daemon()
    try:
        await second.until(lambda: any("another process serves" in line for line in second.log_lines()), "its refusal")
        said = (await second.readiness())["components"][f"kubelet {stage.resource}"]
        tell(f"the second says: {said}")
        await probed(stage, 200)
        assert len(stage.kubelet.registrations) == 1
        await bring_up(stage, small("first", stage.family.resources))

        await stage.stop_daemon()
        await offered(second)

        assert len(stage.kubelet.registrations) == 2
        await bring_up(second, small("later", stage.family.resources))
    finally:
        await second.stop_daemon()


@pytest.mark.full
async def test_a_pod_that_has_not_started_is_answered_the_same_after_the_checkpoint_was_removed(running):
    stage = await running()
    names = stage.family.resources
    pods = [await admitted(stage, small(name, names, memory=memory)) for name, memory in (("one", 1100), ("two", 2200))]
    before = {held.key: held.grants for held in journal(stage)}
    former = connection(stage)

    await stage.kubelet.restart(checkpoint_removed=True)
    await back(stage, former)
    for pod in pods:
        await stage.kubelet.admit(pod)
        await confirm(stage, pod)

    assert {held.key: held.grants for held in journal(stage)} == before


async def admitted(stage, manifest):
    """Scheduled and admitted; its containers wait, as for an image."""
    await stage.until(lambda: not annotation(stage, keys.NODE_LOCK), "the node lock's release")
    pod = stage.scheduler.place(manifest)
    await stage.kubelet.admit(pod)
    return pod


@pytest.mark.full
async def test_a_node_that_is_shut_down_with_pods_and_is_back_holds_nothing_of_them(running):
    """The kubelet ends pods before the daemon, admits nobody meanwhile, and leaves objects that have failed."""
    stage = await running()
    names = stage.family.resources
    ended = await bring_up(stage, small("ended", names))
    late = stage.scheduler.place(small("late", names))
    stage.kubelet.manners = Manners(shutting_down=True)

    fail(stage, ended)
    with pytest.raises(AdmissionError) as error:
        await stage.kubelet.admit(late)
    fail(stage, late)

    assert error.value.reason == "NodeShutdown"
    await stage.until(lambda: not annotation(stage, keys.NODE_LOCK), "the release of the lock")
    await stage.stop_daemon()
    await stage.kubelet.restart()
    stage.kubelet.manners = Manners()
    await start(stage)
    await stage.until(lambda: not journal(stage), "the end of both shares", WITHIN_S)
    assert {ended.name, late.name} <= {pod["metadata"]["name"] for pod in stage.api.pods()}
    await bring_up(stage, small("next", names))
