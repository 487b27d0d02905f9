"""A pod's way in the demonstration: what it asks for, whether it is served, and what its containers received."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hami_plugin.demo.expected import mixed_up
from hami_plugin.demo.pods import container, part, pod
from hami_plugin.demo.stage import Stage
from hami_plugin.errors import HamiError
from hami_plugin.model.views import PodView
from hami_plugin.policy.reasons import Reason
from hami_plugin.simulation.scheduler import DoesNotFitError
from hami_plugin.wire import keys
from hami_plugin.wire.pods import decode_devices, pending
from hami_plugin.wire.refuses import Refuses

Facts = dict[str, Any]


def share(stage: Stage, name: str, *, memory: int, cores: int) -> Mapping[str, Any]:
    """A container with a part of a device, or with a whole one where the family serves no parts."""
    node = stage.scheduler.node()
    asked = None if stage.refused else part(stage.family, node, name, memory=memory, cores=cores)
    return asked or container(name, stage.family.resources)


UNSHOWN = "not shown"
"""The fact of a step that the node cannot show: why."""
SERVED_WHOLE = (str(Refuses(what="parts", why="")), Reason.ONE_PARTITION)
"""For what a scheduler refuses a pod because of what the node itself says that it serves."""


def whole_only(stage: Stage, containers: Sequence[Mapping[str, Any]]) -> str:
    """Why the node serves no such parts, in a scheduler's words; empty when it does. ``HamiError`` for all else."""
    try:
        placed = stage.scheduler.place(pod("part", containers), lock=False)
    except DoesNotFitError as error:
        stage.api.delete_pod(error.pod.namespace, error.pod.name)
        require(any(reason in error.why for reason in SERVED_WHOLE), str(error))
        return error.why
    stage.api.delete_pod(placed.namespace, placed.name)
    return ""


async def received(stage: Stage, placed: PodView) -> Facts:
    """Wait until the pod's consumption is recorded; then say what each container received, and that it is its own."""
    await recorded(stage, placed)
    containers = stage.received[placed.key]
    problems = mixed_up(stage, placed, containers)
    require(not problems, "; ".join(problems))
    return {
        "containers": {
            name: {
                "env": dict(sorted(edits.env.items())),
                "mounts": [f"{mount.container_path} <- {mount.host_path}" for mount in edits.mounts],
                "devices": [node.path for node in edits.device_nodes],
            }
            for name, edits in containers.items()
            if edits.env
        }
    }


async def recorded(stage: Stage, placed: PodView) -> None:
    """Wait until the pod says that it has all its devices, and the lock is free."""

    def done() -> bool:
        annotations = stage.api.pod(placed.namespace, placed.name)["metadata"]["annotations"]
        left = decode_devices(annotations.get(stage.family.annotations.to_allocate, ""))
        return annotations[keys.BIND_PHASE] == keys.PHASE_SUCCESS and not pending(left)

    await stage.until(done, f"the record at pod {placed.key}")
    await unlocked(stage)


async def unlocked(stage: Stage) -> None:
    """Wait until the daemon has released the lock of the family, if it has one."""
    if lock := stage.family.rules.lock:
        await stage.until(lambda: not stage.annotation(lock.annotation), "the release of the node lock")


def require(fact: bool, problem: str) -> None:
    """``HamiError`` with the problem, unless it is a fact."""
    if not fact:
        raise HamiError(problem)
