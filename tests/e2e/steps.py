"""What most scenarios do: start the daemon, bring a pod up, take it away."""

import asyncio
import shutil
import tempfile
from pathlib import Path

from hami_plugin.demo.node import GUARD_S, SimulatedNode
from hami_plugin.errors import HamiError
from hami_plugin.model.views import PodView, pod_view
from hami_plugin.protocol import keys
from hami_plugin.simulation.kubelet import AdmissionError
from tests.e2e.truth import annotation, difference, problems, recorded

WITHIN_S = GUARD_S


async def start(stage: SimulatedNode, *launcher: str) -> None:
    """Start the daemon, and wait until the kubelet talks to it, and everything is offered and registered.

    The kubelet may not have noticed yet that a former daemon is gone: what that one offered does not count.
    """
    before = connection(stage)
    await stage.start_daemon(*launcher)
    await stage.until(lambda: connection(stage) not in (None, before), "the registration", WITHIN_S)
    await offered(stage)


def connection(stage: SimulatedNode) -> object | None:
    """The kubelet's connection to the plugin, if there is one."""
    try:
        return stage.kubelet.plugin(stage.resource)
    except HamiError:
        return None


async def offered(stage: SimulatedNode, within: float = WITHIN_S) -> float:
    """Wait until the kubelet and the node's annotation have every device, healthy; answers the seconds."""
    count = len(stage.hardware.machine.devices)

    def whole() -> bool:
        registered = stage.registered()
        shares = sum(info.count for info in registered)
        healthy = [info for info in registered if info.health]
        return len(healthy) == count and stage.kubelet.allocatable(stage.resource) == shares

    return await stage.until(whole, "the offer of all devices", within)


async def probed(stage: SimulatedNode, status: int) -> str:
    """Wait until the readiness probe answers ``status``: its body."""
    async with asyncio.timeout(WITHIN_S):
        while (answer := await stage.get("/readyz"))[0] != status:
            pass
    return answer[1]


def said(stage: SimulatedNode, *words: str) -> bool:
    """Whether one line of the daemon's log has all these words."""
    return any(all(word in line for word in words) for line in stage.log_lines())


async def logged(stage: SimulatedNode, *words: str) -> None:
    """Wait until the daemon's log says so: its lines are written by a thread of their own."""
    await stage.until(lambda: said(stage, *words), f"a line with {' and '.join(words)}", WITHIN_S)


async def reported(stage: SimulatedNode, reason: str, words: str = "") -> str:
    """Wait for an Event of this reason with these words, which is written beside everything else: its message."""

    def found() -> list[str]:
        told = [event["message"] for event in stage.api.events() if event["reason"] == reason]
        return [message for message in told if words in message]

    await stage.until(lambda: bool(found()), f"the Event {reason}", WITHIN_S)
    return found()[0]


async def bring_up(stage: SimulatedNode, manifest) -> PodView:
    """Schedule, admit and start a pod. Each container must have received its own share, and the pod be recorded."""
    await stage.until(lambda: not annotation(stage, keys.NODE_LOCK), "the node lock's release", WITHIN_S)
    pod = stage.scheduler.place(manifest)
    await stage.kubelet.admit(pod)
    await confirm(stage, pod)
    return pod


async def confirm(stage: SimulatedNode, pod: PodView) -> None:
    """Start the containers of an admitted pod, check what each received, and wait until the pod is recorded."""
    for container in pod.containers:
        response = await stage.kubelet.start_container(pod.uid, container.name)
        wrong = difference(stage, pod, container, response.edits)
        assert not wrong, wrong
    stage.api.set_phase(pod.namespace, pod.name, "Running")
    await stage.until(lambda: recorded(stage, pod), f"the record of {pod.key}", WITHIN_S)


async def refusal(stage: SimulatedNode, pod: PodView) -> str:
    """Admit a pod that must be refused: the words. The kubelet then sets it Failed."""
    try:
        await stage.kubelet.admit(pod)
    except AdmissionError as error:
        fail(stage, pod)
        return str(error)
    raise AssertionError(f"{pod.key} was admitted")


def fail(stage: SimulatedNode, pod: PodView) -> None:
    """The kubelet does not admit the pod."""
    stage.kubelet.remove(pod.uid)
    stage.api.set_phase(pod.namespace, pod.name, "Failed")


def take_down(stage: SimulatedNode, pod: PodView) -> None:
    """The pod ends, and is deleted."""
    stage.kubelet.remove(pod.uid)
    stage.api.delete_pod(pod.namespace, pod.name)


async def sound(stage: SimulatedNode, within: float = WITHIN_S) -> None:
    """Wait until everything is as it must be when all is quiet; the failure names what is not."""
    try:
        await stage.until(lambda: not problems(stage), "a sound state", within)
    except Exception as error:
        raise AssertionError(f"{error}: {problems(stage)}") from error


def fresh(stage: SimulatedNode, pod: PodView) -> PodView:
    """The pod as the API server has it now."""
    return pod_view(stage.api.pod(pod.namespace, pod.name))


def removed(directory: Path) -> None:
    """Take a directory away in one step: a daemon that writes into it meanwhile keeps ``rmtree`` from ending."""
    away = directory.rename(tempfile.mkdtemp(prefix=f"{directory.name}-", dir=directory.parent))
    shutil.rmtree(away, ignore_errors=True)
