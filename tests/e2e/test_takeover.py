"""One daemon takes a node over from another while pods arrive, and either of them is killed at each step."""

import asyncio
import fcntl
import signal
from pathlib import Path

import pytest

from hami_plugin.kubelet.listener import accepts
from hami_plugin.process.concurrency import poll_condition
from hami_plugin.simulation.kubelet import Manners, Rivals
from tests.e2e import dying, lingering
from tests.e2e.arrivals import WITHIN_S, Arrivals
from tests.e2e.manifests import small
from tests.e2e.steps import bring_up, confirm, offered, probed, said, sound, start
from tests.e2e.truth import journal
from tests.support.scale import sized, spread

LAUNCHER = str(Path(dying.__file__))
VERSIONS = {Rivals.BY_SOCKET: "v1.37.2", Rivals.BY_RESOURCE: "v1.34.4", Rivals.NEWEST: "v1.25.16"}


def version(stage, rivals):
    """Let the node's kubelet be of a version that knows two plugins of one resource in this way, and say so."""
    stage.kubelet.manners = Manners(rivals=rivals)
    stage.api.set_kubelet(stage.node, VERSIONS[rivals])


async def settled(stage, arrivals):
    """Everything is as it must be, and each pod that was admitted has its own share."""
    for pod in arrivals.pods:
        await confirm(stage, pod)
    await sound(stage)
    held = {one.uid for one in journal(stage)}
    assert {pod.uid for pod in arrivals.pods} <= held


@pytest.mark.scenario("K11")
@pytest.mark.parametrize("rivals", spread([Rivals.BY_SOCKET, Rivals.NEWEST, Rivals.BY_RESOURCE], part=2))
async def test_a_successor_takes_over_while_pods_arrive_and_neither_pod_nor_device_is_missing(running, tell, rivals):
    stage = await running()
    version(stage, rivals)
    second = stage.twin("second")
    async with Arrivals(stage) as arrivals:
        await arrivals.more(sized(5, 15))
        await second.start_daemon()
        await stage.until(lambda: said(stage, "relieved"), "the end of the first one's streams", WITHIN_S)
        await arrivals.more(sized(5, 15))
        await probed(stage, 200)
        await probed(second, 200)
        await stage.stop_daemon()
        await arrivals.more(sized(5, 15))
    tell(f"{rivals}: {arrivals}")

    try:
        await settled(second, arrivals)
        assert (arrivals.failed, arrivals.fell) == (0, 0), str(arrivals)
        sockets = [path.name for path in (stage.directory / "device-plugins").glob("hami-*")]
        assert sockets == ["hami-nvidia-gpu.2.sock"]
    finally:
        await second.stop_daemon()


async def test_a_kubelet_that_has_chosen_the_first_daemon_and_calls_it_late_is_answered(running):
    """Had the first one ended as soon as the kubelet had the second one's devices, the pod would fail."""
    stage = await running()
    former = stage.kubelet.plugin(stage.resource)
    stage.kubelet.calling.clear()
    pod = stage.scheduler.place(small("late", stage.family.resources))
    admission = asyncio.create_task(stage.kubelet.admit(pod))
    second = stage.twin("second")
    await second.start_daemon(str(Path(lingering.__file__)))
    await offered_by_another(stage, former)
    await poll_condition(lambda: not former.socket.exists(), within=1.0)
    stage.kubelet.calling.set()

    try:
        await admission
        await confirm(second, pod)
        assert not said(stage, "relieved")
    finally:
        await second.stop_daemon(kill=True)


async def offered_by_another(stage, former):
    """The kubelet has all devices of another plugin than the former."""

    def chosen():
        plugin = stage.kubelet.plugin(stage.resource)
        return plugin is not former and plugin.lists

    await stage.until(chosen, "the successor's list", WITHIN_S)


@pytest.mark.full
async def test_a_daemon_that_is_stopped_before_the_next_one_starts_leaves_a_gap(running, tell):
    stage = await running()
    async with Arrivals(stage) as arrivals:
        await arrivals.more(10)
        await stage.stop_daemon()
        await start(stage)
        await arrivals.more(10)
    tell(f"one after the other: {arrivals}")

    await settled(stage, arrivals)
    assert arrivals.fell > 0


async def ended(stage):
    """The daemon has killed itself."""
    async with asyncio.timeout(WITHIN_S):
        assert await stage.daemon.wait() == -signal.SIGKILL
    stage.daemon = None


async def noticed(stage):
    """The kubelet asks a process that lives: it hears a moment later that one was killed."""
    async with asyncio.timeout(WITHIN_S):
        while not await accepts(stage.kubelet.plugin(stage.resource).socket):  # noqa: ASYNC110  # the kernel tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.full
@pytest.mark.parametrize("step", dying.AS_SUCCESSOR)
async def test_sigkill_of_the_successor_leaves_the_node_to_the_first(step, running, tell):
    stage = await running()
    version(stage, Rivals.BY_RESOURCE if "forgotten" in step else Rivals.BY_SOCKET)
    second = stage.twin("second")
    async with Arrivals(stage) as arrivals:
        await arrivals.more(3)
        await second.start_daemon(LAUNCHER, step, "unused")
        await ended(second)
        await noticed(stage)
        await arrivals.more(1)
        failed = arrivals.failed
        await arrivals.more(5)
        await offered(stage)
    tell(f"successor killed, {step}: {arrivals}")

    await settled(stage, arrivals)
    await probed(stage, 200)
    if step != "has relieved the incumbent":
        assert arrivals.fell == 0, str(arrivals)
        assert arrivals.failed == failed, str(arrivals)
        assert not failed or step in dying.ASKED, str(arrivals)  # what it was asked before it was known to be dead


@pytest.mark.full
@pytest.mark.parametrize("step", spread(dying.AS_INCUMBENT, part=6))
async def test_sigkill_of_the_incumbent_leaves_the_node_to_the_successor(step, set_up, tell):
    stage = await set_up()
    await start(stage, LAUNCHER, step, "unused")
    second = stage.twin("second")
    async with Arrivals(stage) as arrivals:
        await arrivals.more(3)
        await second.start_daemon()
        await ended(stage)
        await second.until(
            lambda: stage.kubelet.plugin(stage.resource).socket.name.endswith(".2.sock"), "the heir", WITHIN_S
        )
        await offered(second)
        await arrivals.more(5)
    tell(f"incumbent killed, {step}: {arrivals}")

    try:
        await settled(second, arrivals)
        await probed(second, 200)
    finally:
        await second.stop_daemon()


@pytest.mark.full
async def test_a_successor_of_a_daemon_that_cannot_hand_over_is_ready_and_serves_when_that_one_ends(set_up):
    """A rolling update ends the former version's daemon once the pod of the next one is ready."""
    stage = await set_up()
    state = stage.directory / "state"
    state.mkdir()
    with (state / "lock").open("w") as former:
        former.write("4711\n")
        former.flush()
        fcntl.flock(former, fcntl.LOCK_EX)
        await stage.start_daemon()
        await stage.until(lambda: said(stage, "another daemon (process 4711)"), "the wait")
        assert (await probed(stage, 200)) is not None
        assert not stage.kubelet.registrations

    await offered(stage)
    await bring_up(stage, small("served", stage.family.resources))


@pytest.mark.full
async def test_a_successor_that_lacks_what_is_served_is_refused_and_says_why(running):
    stage = await running()
    options = stage.directory / "broken.yaml"
    options.write_text('{"vendors": {"nvidia": {"nvmlLibrary": "/nowhere/libnvidia-ml.so.1"}}}')
    second = stage.twin("second", config=options)
    del second.options["--simulate"]
    await second.start_daemon()
    try:
        await second.until(lambda: said(second, "cannot serve what is served now"), "the refusal")
        answer = await second.readiness()
        assert not answer["ready"]
        assert "/nowhere" in answer["components"]["daemon"]
        await probed(stage, 200)
        await bring_up(stage, small("served", stage.family.resources))
    finally:
        await second.stop_daemon()


@pytest.mark.full
async def test_a_process_that_gets_the_node_back_opens_its_driver_after_it_has_closed_it(running, tell):
    """NVML is one for the whole process: who closes it ends what has been opened since."""
    stage = await running()
    stage.hardware.simulator.inject("slow", value=4)  # a look lasts longer than the wait for events that ends first
    second = stage.twin("second")
    async with Arrivals(stage) as arrivals:
        await second.start_daemon(LAUNCHER, "has asked", "unused")
        await ended(second)
        await stage.until(
            lambda: stage.kubelet.plugin(stage.resource).socket.name.endswith(".2.sock"), "the return", WITHIN_S
        )
        await arrivals.more(5)
    tell(f"successor killed, slow driver: {arrivals}")

    await settled(stage, arrivals)
    assert (arrivals.failed, arrivals.fell) == (0, 0), str(arrivals)
    assert not said(stage, "driver unavailable")
