"""The kubelet, its directory and our socket go and come back; and a second daemon appears."""

import asyncio
import shutil
import time

import pytest

from tests.e2e.manifests import small
from tests.e2e.steps import bring_up, offered


def own_socket(stage):
    (socket,) = [path for path in stage.kubelet.directory.glob("*.sock") if path != stage.kubelet.socket]
    return socket


async def back(stage, registrations):
    """Seconds until the kubelet has a newer registration and all devices."""
    began = time.monotonic()
    await stage.until(lambda: len(stage.kubelet.registrations) > registrations, "a new registration")
    await offered(stage)
    return time.monotonic() - began


@pytest.mark.scenario("K1")
async def test_a_restarted_kubelet_has_all_devices_again_at_once(running, tell):
    stage = await running()
    kept = await bring_up(stage, small("kept", stage.family.resources))
    held = dict(stage.kubelet.ledger.allotments)
    before = len(stage.kubelet.registrations)

    await stage.kubelet.restart()
    seconds = await back(stage, before)

    tell(f"back after a restart of the kubelet: {seconds:.3f} s")
    assert stage.kubelet.ledger.allotments == held
    await bring_up(stage, small("later", stage.family.resources))
    assert (await stage.kubelet.start_container(kept.uid, "main")).edits.env


@pytest.mark.scenario("K3")
async def test_a_deleted_socket_of_our_own_is_served_and_registered_again(running, tell):
    stage = await running()
    before = len(stage.kubelet.registrations)

    own_socket(stage).unlink()
    seconds = await back(stage, before)

    tell(f"back after the loss of its own socket: {seconds:.3f} s")
    await bring_up(stage, small("later", stage.family.resources))


@pytest.mark.full
@pytest.mark.scenario("K4")
async def test_a_replaced_device_plugins_directory_is_found_again(running, tell):
    stage = await running()
    before = len(stage.kubelet.registrations)

    await stage.kubelet.stop(killed=True)
    shutil.rmtree(stage.kubelet.directory)
    stage.kubelet.ledger.forget_lists()
    await stage.kubelet.start()
    seconds = await back(stage, before)

    tell(f"back after the directory was replaced: {seconds:.3f} s")
    await bring_up(stage, small("later", stage.family.resources))


@pytest.mark.full
@pytest.mark.scenario("K2")
async def test_a_killed_kubelet_leaves_a_live_daemon_that_says_what_it_waits_for(running, tell):
    stage = await running()

    await stage.kubelet.stop(killed=True)
    assert stage.kubelet.socket.exists()
    component = f"kubelet {stage.resource}"
    problem = ""
    async with asyncio.timeout(10):
        while not problem:
            problem = (await stage.readiness())["components"][component]
    status, _body = await stage.get("/healthz")
    before = len(stage.kubelet.registrations)
    await stage.kubelet.start()
    seconds = await back(stage, before)

    tell(f"back after the kubelet was killed: {seconds:.3f} s; meanwhile: {problem}")
    assert status == 200
    await bring_up(stage, small("later", stage.family.resources))


@pytest.mark.scenario("K11")
async def test_a_second_daemon_waits_and_takes_over_when_the_first_is_killed(running, tell):
    stage = await running()
    pod = await bring_up(stage, small("kept", stage.family.resources))
    second = stage.twin("second")
    await second.start_daemon()
    try:
        await second.until(lambda: any("another daemon" in line for line in second.log_lines()), "the second to wait")
        assert "another daemon" in str(await second.readiness())
        assert len(stage.kubelet.registrations) == 1

        began = time.monotonic()
        await stage.stop_daemon(kill=True)
        await second.until(lambda: len(stage.kubelet.registrations) == 2, "the take-over")
        await offered(second)
        tell(f"taken over after {time.monotonic() - began:.3f} s")

        assert (await stage.kubelet.start_container(pod.uid, "main")).edits.env
        await bring_up(second, small("later", stage.family.resources))
    finally:
        await second.stop_daemon()


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
        assert (await stage.readiness())["ready"]
        assert len(stage.kubelet.registrations) == 1
        await bring_up(stage, small("first", stage.family.resources))

        await stage.stop_daemon()
        await offered(second)

        assert len(stage.kubelet.registrations) == 2
        await bring_up(second, small("later", stage.family.resources))
    finally:
        await second.stop_daemon()
