"""What the demonstration shows, one function a step. A step raises when something did not hold.

What a family has no part in is said: a step that has nothing to look at tells so.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hami_plugin.demo.expected import mixed_up, unlimited
from hami_plugin.demo.pods import container, part, pod
from hami_plugin.demo.stage import Stage
from hami_plugin.errors import HamiError
from hami_plugin.model.device import Snapshot
from hami_plugin.model.links import Link, Links
from hami_plugin.model.views import PodView
from hami_plugin.node_status.annotations import Style, wanted_annotations
from hami_plugin.protocol import keys
from hami_plugin.protocol.decisions import decode_devices, pending
from hami_plugin.protocol.register import Refuses, all_served
from hami_plugin.protocol.scores import decode_scores
from hami_plugin.scheduler.engine.reasons import Reason
from hami_plugin.sdk import Family
from hami_plugin.simulation.scheduler import DoesNotFitError

Facts = dict[str, Any]
Step = Callable[[Stage], Awaitable[Facts]]

UNSHOWN = "not shown"
"""The fact of a step that the node cannot show: why."""
NOTE = "note"
"""The fact that the board shows beside the step: what came of it, in a few words."""
MATRIX = "text"
"""The fact that is a table of its own."""
MEMORY_MIB = 3000
CORES = 30
TOPOLOGY_COUNT = 4
COUNTED = "this family writes no annotation of its devices: HAMi's scheduler counts the node's capacity"
NO_PARTS = "nobody can ask for a part of this family's devices"
LOOSE = "nothing on this node holds the container to its part: it is given what one with the whole device would be"
UNLINKED = "this family writes no scores of links: HAMi's scheduler chooses by the family's own rules"
SCORE_WIDTH = 6
SERVED_WHOLE = (str(Refuses(what="parts", why="")), Reason.ONE_PARTITION)
"""For what a scheduler refuses a pod because of what the node itself says that it serves."""
_NUMBER = re.compile(r"_\d+$")
HAMIS_OWN = {keys.ASSIGNED_NODE, keys.ASSIGNED_TIME, keys.BIND_PHASE, keys.BIND_TIME}


async def register(stage: Stage) -> Facts:
    """The daemon starts, finds the devices, and tells the kubelet, and the node where the family has words for it."""
    machine, family = stage.hardware.machine, stage.family
    if stage.daemon is None:  # it may serve another machine of this node already
        await stage.start_daemon()
    uuids = {device.uuid for device in stage.devices}
    found = len(stage.devices) + len(stage.ailing)
    require(found == len(machine.devices), f"the driver finds {found} of {len(machine.devices)} devices")
    await stage.until(lambda: _offered(stage) == stage.counted(*stage.devices), "the kubelet's lists")
    offered = time.monotonic() - stage.started
    await stage.until(lambda: _healthy(stage) == uuids, "the registration of all devices")
    annotated = time.monotonic() - stage.started
    snapshot = Snapshot(devices=(*stage.devices, *stage.ailing), ready=True)
    wanted = wanted_annotations(family, snapshot, Style(scores=False))
    own = [key for key, text in wanted.items() if text and key.startswith(keys.OWN)]
    await stage.until(lambda: all(map(stage.annotation, own)), "what the node says of what it serves")
    facts = {
        "machine": machine.title,
        "devices": len(uuids),
        "shares": stage.counted(*stage.devices)[stage.resource],
        "offered after": f"{offered:.2f} s",
        "annotated after": f"{annotated:.2f} s" if family.annotations.register else f"never: {COUNTED}",
    }
    facts[NOTE] = f"{len(uuids)} devices, {facts['shares']} shares, after {offered:.2f} s"
    stage.show("offered")
    facts |= {f"not offered: {device.uuid}": f"{device.reason}: {device.message}" for device in stage.ailing}
    return facts | ({MATRIX: matrix(stage)} if family.annotations.score else {"links": UNLINKED})


async def shared_pod(stage: Stage) -> Facts:
    """One container with a part of one device: 3000 MiB and 30 % of the cores, or what comes nearest to it."""
    node = stage.scheduler.node()
    everything = replace(node, annotations=all_served(node.annotations))
    asked = part(stage.family, everything, "main", memory=MEMORY_MIB, cores=CORES)
    stage.refused = NO_PARTS if asked is None else whole_only(stage, [asked])
    placed = await stage.run_pod(pod("shared", [share(stage, "main", memory=MEMORY_MIB, cores=CORES)]))
    facts = {NOTE: _holding(stage, placed)} | await received(stage, placed)
    stage.loose = not stage.refused and unlimited(stage, placed)
    await stage.end_pod(placed)
    if stage.refused:
        return {UNSHOWN: f"no part is limited here, and the pod below has a whole device: {stage.refused}"} | facts
    return ({UNSHOWN: LOOSE} if stage.loose else {}) | facts


async def topology_pod(stage: Stage) -> Facts:
    """Up to four whole devices that belong together, by the daemon's scores or by the family's own rules."""
    count = min(TOPOLOGY_COUNT, len(stage.devices))
    demand = container("train", stage.family.resources, count=count)
    if why := whole_only(stage, [demand]):
        return {UNSHOWN: why}
    placed = await stage.run_pod(pod("topology", [demand], topology=True))
    facts = await received(stage, placed)
    (piece,) = [piece for piece in decode_devices(placed.annotations[stage.family.annotations.allocated]) if piece]
    uuids = [grant.uuid for grant in piece]
    require(len(set(uuids)) == count, f"{count} different devices were wanted")
    await stage.end_pod(placed)
    facts[NOTE] = _holding(stage, placed)
    if not stage.family.annotations.score:
        return facts | {"links": UNLINKED}
    score = total(stage, uuids)
    return facts | {"link score": score, NOTE: f"{facts[NOTE]}, link score {score}"}


async def two_containers(stage: Stage) -> Facts:
    """Two containers with shares of their own, or whole devices, and one before them that asks for nothing."""
    containers = [
        container("sidecar"),
        share(stage, "small", memory=1000, cores=10),
        share(stage, "large", memory=2000, cores=20),
    ]
    if why := whole_only(stage, containers):
        return {UNSHOWN: why}
    placed = await stage.run_pod(pod("pair", containers))
    facts = {NOTE: _holding(stage, placed)} | await received(stage, placed)
    await stage.end_pod(placed)
    return facts


async def lose_and_heal(stage: Stage) -> Facts:
    """A device falls off the bus: all its shares turn unhealthy; it comes back, and they heal."""
    victim, told = stage.devices[-1], bool(stage.family.annotations.register)
    left = stage.counted(*stage.devices[:-1])
    others = {device.uuid for device in stage.devices} - {victim.uuid}
    start = time.monotonic()
    with suppress(ValueError):  # not every vendor's driver announces it
        stage.hardware.simulator.inject("xid", victim.index, 79)
    stage.hardware.simulator.inject("lost", victim.index)
    await stage.until(lambda: _offered(stage) == left, "the loss at the kubelet")
    kubelet = time.monotonic() - start
    if told:
        await stage.until(lambda: victim.uuid not in _healthy(stage), "the loss in the node annotation")
        require(_healthy(stage) == others, "other devices were withdrawn too")
    stage.show("lost")
    annotation = f"{time.monotonic() - start:.2f} s" if told else f"never: {COUNTED}"
    # After XID 79 alone a card stays out of service: the daemon must find it broken before it comes back.
    await stage.until(lambda: stage.found_broken(victim.uuid), "a look that finds the device broken")
    start = time.monotonic()
    stage.hardware.simulator.inject("back", victim.index)
    await stage.until(lambda: _offered(stage) == stage.counted(*stage.devices), "the recovery")
    await stage.until(lambda: _healthy(stage) == others | {victim.uuid}, "the recovery as the scheduler sees it")
    healed = time.monotonic() - start
    stage.show("healed")
    return {
        NOTE: f"{stage.name(victim.uuid)} withdrawn in {kubelet:.2f} s, healed in {healed:.2f} s",
        "device": victim.uuid,
        "shares withdrawn": stage.family.node.replicas(victim),
        "kubelet saw it after": f"{kubelet:.2f} s",
        "annotation after": annotation,
        "healed after": f"{healed:.2f} s",
    }


async def kubelet_restart(stage: Stage) -> Facts:
    """The kubelet restarts, and removes every socket. Running pods keep what they have; a new pod starts as before."""
    running = await stage.run_pod(pod("earlier", [share(stage, "main", memory=MEMORY_MIB, cores=CORES)]))
    await recorded(stage, running)
    held = {slot: allotment.ids for slot, allotment in stage.kubelet.ledger.allotments.items()}
    await stage.kubelet.restart()
    start = time.monotonic()
    await stage.until(lambda: stage.kubelet.registered(stage.resource), "the new registration")
    back = time.monotonic() - start
    await stage.until(lambda: _offered(stage) == stage.counted(*stage.devices), "the lists after the restart")
    after = {slot: allotment.ids for slot, allotment in stage.kubelet.ledger.allotments.items()}
    require(after == held, "running pods lost devices")
    await stage.end_pod(running)
    later = await stage.run_pod(pod("later", [share(stage, "main", memory=MEMORY_MIB, cores=CORES)]))
    await recorded(stage, later)
    await stage.end_pod(later)
    return {
        NOTE: f"registered again after {back:.2f} s; no pod lost a device",
        "registered again after": f"{back:.2f} s",
        "a pod after it": "runs",
    }


async def quiet(stage: Stage) -> Facts:
    """Nothing changes, and nothing is written."""
    await stage.until(lambda: not stage.api.count("PATCH|POST", since=time.monotonic() - 1.0), "silence")
    ready = await stage.readiness()
    lock = stage.family.rules.lock
    held = stage.annotation(lock.annotation) if lock else ""
    require(not held, f"the node lock is still {held}")
    return {
        NOTE: "no writes in a second",
        "writes in a second": 0,
        "ready": ready.get("ready"),
        "node lock": "free" if lock else "none: this family's scheduler side takes no lock",
    }


async def differences(stage: Stage) -> dict[str, Any]:
    """What is this family's own, where others do it in another way."""
    return {
        NOTE: "-v shows it",
        "resources": _listed(_resources(stage)),
        "devices are known by": _register(stage),
        "handshake": _handshake(stage),
        "other words at the node": _listed(_others(stage)) or "none",
        "the scheduler writes at the pod": _listed(sorted(stage.written - HAMIS_OWN)),
        "a container is told by": _told(stage),
        "sharing": _sharing(stage),
        "lock": _lock(stage.family),
    }


STEPS: Mapping[str, Step] = {
    "Register": register,
    "A shared pod": shared_pod,
    "A topology pod": topology_pod,
    "A pod with several containers": two_containers,
    "Lose a device, and heal": lose_and_heal,
    "Restart the kubelet": kubelet_restart,
    "Be quiet": quiet,
    "What differs here": differences,
}


def _offered(stage: Stage) -> dict[str, int]:
    return {resource: stage.kubelet.allocatable(resource) for resource in stage.counted()}


def _healthy(stage: Stage) -> set[str]:
    return {info.id for info in stage.registered() if info.health}


def _holding(stage: Stage, placed: PodView) -> str:
    """Which devices each container of the pod has, by name."""
    pieces = decode_devices(placed.annotations[stage.family.annotations.allocated])
    held = {
        container.name: " ".join(sorted({stage.name(grant.uuid) for grant in piece}))
        for container, piece in zip(placed.containers, pieces, strict=False)
        if piece
    }
    return ", ".join(f"{name} on {devices}" for name, devices in held.items())


def share(stage: Stage, name: str, *, memory: int, cores: int) -> Mapping[str, Any]:
    """A container with a part of a device, or with a whole one where the family serves no parts."""
    node = stage.scheduler.node()
    asked = None if stage.refused else part(stage.family, node, name, memory=memory, cores=cores)
    return asked or container(name, stage.family.resources)


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


def total(stage: Stage, uuids: Sequence[str]) -> int:
    """The sum over all pairs of these devices."""
    return _links(stage).total(uuids)


def matrix(stage: Stage) -> str:
    """A table of all pairs."""
    names = {info.id: f"GPU{info.index}" for info in stage.registered()}
    links = _links(stage)
    lines = ["".join(name.rjust(SCORE_WIDTH) for name in ("", *names.values()))]
    for a, name in names.items():
        cells = ("X" if a == b else str(links.score(a, b)) for b in names)
        lines.append(name.rjust(SCORE_WIDTH) + "".join(cell.rjust(SCORE_WIDTH) for cell in cells))
    return "\n".join(lines)


def _links(stage: Stage) -> Links:
    text = stage.annotation(stage.family.annotations.score)
    scores = decode_scores(text) if text else {}
    pairs = {(a, b): Link(score=s, label="") for a, peers in scores.items() for b, s in peers.items() if a < b}
    return Links(pairs=pairs)


def _resources(stage: Stage) -> Iterable[str]:
    family, names, device = stage.family, stage.family.resources, stage.devices[0]
    yield f"{names.count} ({family.node.replicas(device)} for each device)"
    if names.memory:
        unit = "MiB" if names.memory_factor == 1 else f"units of {names.memory_factor} MiB"
        yield f"{names.memory} (in {unit})"
    if names.memory_percent:
        yield f"{names.memory_percent} (in percent)"
    if names.cores:
        counted = names.cores_are_bits or family.resources.cores_are_counted
        yield f"{names.cores} ({'by number' if counted else 'in percent'})"
    for units in family.resources.units:
        yield f"the kubelet also counts {units.resource} ({units.of_device(device)} for each device)"


def _register(stage: Stage) -> str:
    key = stage.family.annotations.register
    if not key:
        return f"the node's capacity of {stage.resource}: there is no annotation of devices"
    text = stage.annotation(key)
    forms = {"[": "a JSON list", "{": "a JSON object of the vendor's"}
    form = forms.get(text[:1], "fields separated by commas, as in HAMi 2.7")
    return f"{key}, {form}, {len(text)} characters"


def _handshake(stage: Stage) -> str:
    key = stage.family.annotations.handshake
    if not key:
        return "none"
    value = stage.annotation(key)
    return f"{key}: {value}" if value else f"{key} is left to the scheduler: it looks at the register without it"


def _others(stage: Stage) -> Iterable[str]:
    """Annotations of the node beside the register and the handshake."""
    own, snapshot = stage.family.annotations, Snapshot(devices=stage.devices, ready=True)
    wanted = wanted_annotations(stage.family, snapshot, Style()).keys() - {own.register, own.handshake}
    there = (key for key in sorted(wanted) if stage.annotation(key))
    return (f"{key} (scores of links)" if key == own.score else key for key in there)


def _told(stage: Stage) -> str:
    received = [edits for containers in stage.received.values() for edits in containers.values()]
    env = sorted({_NUMBER.sub("_<n>", name) for edits in received for name in edits.env})
    nodes = {node.path for edits in received for node in edits.device_nodes}
    mounts = {mount.container_path for edits in received for mount in edits.mounts}
    parts = (("variables", env), ("device nodes as", sorted(nodes)[:2]), ("mounts as", sorted(mounts)[:2]))
    return "; ".join(f"{what} {_listed(names)}" for what, names in parts if names)


def _sharing(stage: Stage) -> str:
    if stage.refused:
        return f"whole devices only: {stage.refused}"
    return "parts of devices are served" + (" and nothing limits containers to them" if stage.loose else "")


def _lock(family: Family) -> str:
    rule = family.rules.lock
    if rule is None:
        return "none: several pods may be bound at once"
    whose = "names the pod" if rule.named else "names nobody"
    return f"{rule.annotation}, {whose}, expires after {rule.expires_s:g} s"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)
