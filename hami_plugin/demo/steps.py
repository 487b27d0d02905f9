"""What the demonstration shows, one function a step. A step raises when something did not hold."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from cdi.edits import ContainerEdits
from hami_plugin.demo.pods import admitted, container, pod
from hami_plugin.demo.stage import NODE, Stage
from hami_plugin.errors import HamiError
from hami_plugin.model.links import Link, Links
from hami_plugin.model.views import PodView
from hami_plugin.wire import keys
from hami_plugin.wire.nodes import decode_scores
from hami_plugin.wire.pods import decode_devices, pending

Facts = dict[str, Any]
Step = Callable[[Stage], Awaitable[Facts]]

MEMORY_MIB = 3000
CORES = 30
TOPOLOGY_COUNT = 4


async def register(stage: Stage) -> Facts:
    """The daemon starts, finds the devices, and tells the kubelet and the node's annotations."""
    machine = stage.hardware.machine
    await stage.start_daemon()
    expected = len(machine.devices)
    await stage.until(lambda: len(stage.registered()) == expected, "the registration of all devices", 20)
    annotated = time.monotonic() - stage.started
    shares = sum(info.count for info in stage.registered())
    await stage.until(lambda: stage.kubelet.allocatable(stage.resource) == shares, "the kubelet's list")
    ready = time.monotonic() - stage.started
    _require({info.id for info in stage.registered()} == {d.uuid for d in machine.devices}, "other UUIDs registered")
    matrix = _matrix(stage)
    return {
        "machine": machine.title,
        "devices": expected,
        "shares": shares,
        "annotated after": f"{annotated:.2f} s",
        "offered after": f"{ready:.2f} s",
    } | ({"text": matrix} if matrix else {})


async def shared_pod(stage: Stage) -> Facts:
    """One container with a part of one device: 3000 MiB and 30 % of the cores."""
    demand = admitted(stage.family, "main", memory=MEMORY_MIB, cores=CORES)
    placed = await stage.run_pod(pod("shared", [demand]))
    facts = await _received(stage, placed)
    _require(_limits(stage.received[placed.key]["main"]) in ([], [f"{MEMORY_MIB}m"]), "the container has another limit")
    return facts


async def topology_pod(stage: Stage) -> Facts:
    """Four devices that are linked best, chosen from the scores that the daemon wrote."""
    count = min(TOPOLOGY_COUNT, len(stage.hardware.machine.devices))
    demand = admitted(stage.family, "train", count=count, memory=MEMORY_MIB, cores=CORES)
    placed = await stage.run_pod(pod("topology", [demand], topology=True))
    facts = await _received(stage, placed)
    (piece,) = [piece for piece in decode_devices(placed.annotations[stage.family.annotations.allocated]) if piece]
    uuids = [grant.uuid for grant in piece]
    _require(len(set(uuids)) == count, f"{count} different devices were wanted")
    return facts | {"link score": _links(stage).total(uuids)}


async def two_containers(stage: Stage) -> Facts:
    """Two containers with different shares, and one before them that asks for nothing."""
    containers = [
        container("sidecar"),
        admitted(stage.family, "small", memory=1000, cores=10),
        admitted(stage.family, "large", memory=2000, cores=20),
    ]
    placed = await stage.run_pod(pod("pair", containers))
    facts = await _received(stage, placed)
    got = {name: _limits(edits) for name, edits in stage.received[placed.key].items()}
    limited = {"sidecar": [], "small": ["1000m"], "large": ["2000m"]}
    # Some families limit otherwise than by a variable with the memory in it.
    _require(got in (limited, {name: [] for name in limited}), f"the limits are mixed up: {got}")
    return facts


async def lose_and_heal(stage: Stage) -> Facts:
    """A device falls off the bus: all its shares turn unhealthy; it comes back, and they heal."""
    victim = stage.hardware.machine.devices[-1]
    before = stage.kubelet.allocatable(stage.resource)
    shares = next(info.count for info in stage.registered() if info.id == victim.uuid)
    start = time.monotonic()
    with suppress(ValueError):  # not every vendor's driver announces it
        stage.hardware.simulator.inject("xid", victim.index, 79)
    stage.hardware.simulator.inject("lost", victim.index)
    await stage.until(lambda: stage.kubelet.allocatable(stage.resource) == before - shares, "the loss at the kubelet")
    kubelet = time.monotonic() - start
    await stage.until(lambda: not _healthy(stage)[victim.uuid], "the loss in the node annotation")
    annotation = time.monotonic() - start
    _require(Counter(_healthy(stage).values())[False] == 1, "other devices were withdrawn too")
    start = time.monotonic()
    stage.hardware.simulator.inject("back", victim.index)
    await stage.until(lambda: stage.kubelet.allocatable(stage.resource) == before, "the recovery", 15)
    await stage.until(lambda: all(_healthy(stage).values()), "the recovery in the node annotation")
    return {
        "device": victim.uuid,
        "shares withdrawn": shares,
        "kubelet saw it after": f"{kubelet:.2f} s",
        "annotation after": f"{annotation:.2f} s",
        "healed after": f"{time.monotonic() - start:.2f} s",
    }


async def kubelet_restart(stage: Stage) -> Facts:
    """The kubelet restarts, and removes every socket. Running pods keep what they have; a new pod starts as before."""
    before = stage.kubelet.allocatable(stage.resource)
    held = {slot: allotment.ids for slot, allotment in stage.kubelet.ledger.allotments.items()}
    await stage.kubelet.restart()
    start = time.monotonic()
    await stage.until(lambda: stage.kubelet.registered(stage.resource), "the new registration")
    back = time.monotonic() - start
    await stage.until(lambda: stage.kubelet.allocatable(stage.resource) == before, "the list after the restart")
    after = {slot: allotment.ids for slot, allotment in stage.kubelet.ledger.allotments.items()}
    _require(after == held, "running pods lost devices")
    demand = admitted(stage.family, "main", memory=MEMORY_MIB, cores=CORES)
    placed = await stage.run_pod(pod("later", [demand]))
    await _recorded(stage, placed)
    return {"registered again after": f"{back:.2f} s", "a pod after it": "runs"}


async def quiet(stage: Stage) -> Facts:
    """Nothing changes, and nothing is written."""
    await stage.until(lambda: _annotation(stage, keys.NODE_LOCK) == "", "the release of the node lock")
    await stage.until(lambda: not stage.api.count("PATCH|POST", since=time.monotonic() - 1.0), "silence", 15)
    ready = await stage.readiness()
    return {"writes in a second": 0, "ready": ready.get("ready"), "node lock": "free"}


STEPS: Mapping[str, Step] = {
    "Register": register,
    "A shared pod": shared_pod,
    "A topology pod": topology_pod,
    "A pod with several containers": two_containers,
    "Lose a device, and heal": lose_and_heal,
    "Restart the kubelet": kubelet_restart,
    "Be quiet": quiet,
}


async def _received(stage: Stage, placed: PodView) -> Facts:
    """Wait until the pod's consumption is recorded; then say what each container received."""
    await _recorded(stage, placed)
    return {
        "containers": {
            name: {
                "env": dict(sorted(edits.env.items())),
                "mounts": [f"{mount.container_path} <- {mount.host_path}" for mount in edits.mounts],
                "devices": [node.path for node in edits.device_nodes],
            }
            for name, edits in stage.received[placed.key].items()
            if edits.env
        }
    }


async def _recorded(stage: Stage, placed: PodView) -> None:
    def recorded() -> bool:
        annotations = stage.api.pod(placed.namespace, placed.name)["metadata"]["annotations"]
        left = decode_devices(annotations[stage.family.annotations.to_allocate])
        return annotations[keys.BIND_PHASE] == keys.PHASE_SUCCESS and not pending(left)

    await stage.until(recorded, f"the record at pod {placed.key}")
    await stage.until(lambda: _annotation(stage, keys.NODE_LOCK) == "", "the release of the node lock")


def _limits(edits: ContainerEdits) -> list[str]:
    return [value for key, value in sorted(edits.env.items()) if "MEMORY_LIMIT" in key]


def _healthy(stage: Stage) -> dict[str, bool]:
    return {info.id: info.health for info in stage.registered()}


def _annotation(stage: Stage, key: str) -> str:
    return str(stage.api.node(NODE)["metadata"].get("annotations", {}).get(key, ""))


def _links(stage: Stage) -> Links:
    text = _annotation(stage, stage.family.annotations.score)
    scores = decode_scores(text) if text else {}
    pairs = {(a, b): Link(score=s, label="") for a, peers in scores.items() for b, s in peers.items() if a < b}
    return Links(pairs=pairs)


def _matrix(stage: Stage) -> str:
    """The scores as the node's annotation has them; nothing for a family that has no such annotation."""
    if not stage.family.annotations.score:
        return ""
    names = {info.id: f"GPU{info.index}" for info in stage.registered()}
    links = _links(stage)
    width = 6
    lines = ["".join(name.rjust(width) for name in ("", *names.values()))]
    for a, name in names.items():
        cells = ("X" if a == b else str(links.score(a, b)) for b in names)
        lines.append(name.rjust(width) + "".join(cell.rjust(width) for cell in cells))
    return "\n".join(lines)


def _require(fact: bool, problem: str) -> None:
    if not fact:
        raise HamiError(problem)
