"""What the demonstration shows, one function a step. A step raises when something did not hold.

What a family has no part in is said: a step that has nothing to look at tells so.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from hami_plugin.demo.contrast import differences
from hami_plugin.demo.expected import unlimited
from hami_plugin.demo.links import matrix, total
from hami_plugin.demo.pods import container, part, pod
from hami_plugin.demo.stage import Stage
from hami_plugin.demo.ways import UNSHOWN, Facts, received, recorded, require, share, whole_only
from hami_plugin.model.device import Snapshot
from hami_plugin.node.annotating import Style, wanted_annotations
from hami_plugin.wire.keys import OWN
from hami_plugin.wire.pods import decode_devices
from hami_plugin.wire.refuses import all_served

Step = Callable[[Stage], Awaitable[Facts]]

MEMORY_MIB = 3000
CORES = 30
TOPOLOGY_COUNT = 4
COUNTED = "this family writes no annotation of its devices: HAMi's scheduler counts the node's capacity"
NO_PARTS = "nobody can ask for a part of this family's devices"
LOOSE = "nothing on this node holds the container to its part: it is given what one with the whole device would be"
UNLINKED = "this family writes no scores of links: HAMi's scheduler chooses by the family's own rules"


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
    own = [key for key, text in wanted.items() if text and key.startswith(OWN)]
    await stage.until(lambda: all(map(stage.annotation, own)), "what the node says of what it serves")
    facts = {
        "machine": machine.title,
        "devices": len(uuids),
        "shares": stage.counted(*stage.devices)[stage.resource],
        "offered after": f"{offered:.2f} s",
        "annotated after": f"{annotated:.2f} s" if family.annotations.register else f"never: {COUNTED}",
    }
    facts |= {f"not offered: {device.uuid}": f"{device.reason}: {device.message}" for device in stage.ailing}
    return facts | ({"text": matrix(stage)} if family.annotations.score else {"links": UNLINKED})


async def shared_pod(stage: Stage) -> Facts:
    """One container with a part of one device: 3000 MiB and 30 % of the cores, or what comes nearest to it."""
    node = stage.scheduler.node()
    everything = replace(node, annotations=all_served(node.annotations))
    asked = part(stage.family, everything, "main", memory=MEMORY_MIB, cores=CORES)
    stage.refused = NO_PARTS if asked is None else whole_only(stage, [asked])
    placed = await stage.run_pod(pod("shared", [share(stage, "main", memory=MEMORY_MIB, cores=CORES)]))
    facts = await received(stage, placed)
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
    return facts | ({"link score": total(stage, uuids)} if stage.family.annotations.score else {"links": UNLINKED})


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
    facts = await received(stage, placed)
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
    annotation = f"{time.monotonic() - start:.2f} s" if told else f"never: {COUNTED}"
    start = time.monotonic()
    stage.hardware.simulator.inject("back", victim.index)
    await stage.until(lambda: _offered(stage) == stage.counted(*stage.devices), "the recovery")
    await stage.until(lambda: _healthy(stage) == others | {victim.uuid}, "the recovery as the scheduler sees it")
    return {
        "device": victim.uuid,
        "shares withdrawn": stage.family.node.replicas(victim),
        "kubelet saw it after": f"{kubelet:.2f} s",
        "annotation after": annotation,
        "healed after": f"{time.monotonic() - start:.2f} s",
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
    return {"registered again after": f"{back:.2f} s", "a pod after it": "runs"}


async def quiet(stage: Stage) -> Facts:
    """Nothing changes, and nothing is written."""
    await stage.until(lambda: not stage.api.count("PATCH|POST", since=time.monotonic() - 1.0), "silence")
    ready = await stage.readiness()
    lock = stage.family.rules.lock
    held = stage.annotation(lock.annotation) if lock else ""
    require(not held, f"the node lock is still {held}")
    return {
        "writes in a second": 0,
        "ready": ready.get("ready"),
        "node lock": "free" if lock else "none: this family's scheduler side takes no lock",
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
