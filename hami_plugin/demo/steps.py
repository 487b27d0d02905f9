"""The steps of the demonstration. A step raises when something is wrong, and reports what a family does not support."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdi.spec import ContainerEdits
from hami_plugin.allocation.allocator import question_of
from hami_plugin.demo.node import SimulatedNode
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Link, Links, Snapshot
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.node_status.registration import Style, wanted_annotations
from hami_plugin.protocol import keys
from hami_plugin.protocol.nodes import Refuses, decode_scores, without_refusals
from hami_plugin.protocol.pods import DecidedShare, decided_shares, decode_devices
from hami_plugin.scheduler.engine.devices import Admitted, Reason
from hami_plugin.scheduler.engine.fit import PodFit, fit_pod
from hami_plugin.scheduler.engine.node_info import read_node, scheduling_policies
from hami_plugin.sdk import Family, Injection, Partition, PartitionSide, Reservation, Resources
from hami_plugin.simulation.scheduler import POLICY, TOPOLOGY_AWARE, DoesNotFitError


def container(
    name: str, resources: Resources | None = None, *, count: int = 1, memory: int = 0, cores: int = 0
) -> dict[str, Any]:
    """A container that requests ``count`` devices, each with ``memory`` units and ``cores``; no devices without
    ``resources``.
    """
    if resources is None:
        return {"name": name, "image": "example"}
    return _asking(name, {resources.count: count, resources.memory: memory, resources.cores: cores})


def pod(name: str, containers: Sequence[Mapping[str, Any]], *, topology: bool = False) -> dict[str, Any]:
    """A pod in the namespace ``demo``."""
    annotations = {POLICY: TOPOLOGY_AWARE} if topology else {}
    return {
        "metadata": {"name": name, "namespace": "demo", "annotations": annotations},
        "spec": {"containers": [dict(item) for item in containers], "schedulerName": "hami-scheduler"},
    }


def part(family: Family, node: NodeView, name: str, *, memory: int, cores: int) -> dict[str, Any] | None:
    """A container with a share of a device: ``memory`` MiB and ``cores`` percent, or the closest supported request.

    None if the family has no shares. What is a share depends on what its rules grant on an idle ``node``.
    """
    ways = _ways(family, memory, cores)
    return next((_asking(name, asked) for asked in ways if _grants_part(family, node, asked)), None)


def _ways(family: Family, memory: int, cores: int) -> Iterator[dict[str, int]]:
    """Possible requests, the most specific first."""
    names = family.resources
    units = -(-memory // family.resources.memory_factor)
    power = 1 << (units - 1).bit_length()  # some families share in fixed sizes only
    wishes = (
        {names.count: 1, names.memory: units, names.cores: cores},
        {names.count: 1, names.memory: units},
        {names.count: 1, names.memory: power},
        {names.count: 1, names.memory_percent: cores},
        {names.count: 1, names.cores: cores},
        {names.cores: 1},
    )
    return (wish for wish in wishes if "" not in wish)


def _grants_part(family: Family, node: NodeView, asked: Mapping[str, int]) -> bool:
    limits = {resource: str(amount) for resource, amount in asked.items()}
    view = ContainerView(name="main", limits=limits, requests=limits)
    verdict = family.rules.admit(view, PodView(uid="", namespace="demo", name="part"))
    if not isinstance(verdict, Admitted):
        return False
    view = ContainerView(name="main", limits={**limits, **verdict.limits}, requests={**limits, **verdict.requests})
    asking = PodView(uid="", namespace="demo", name="part", containers=(view,))
    placed = fit_pod(asking, scheduling_policies([family]), read_node(node, [family], ()).node_info)
    if not isinstance(placed, PodFit):
        return False
    devices = {info.id: info for info in family.rules.node_devices(node)}
    grants = placed.given.get(family.resources.device_type, ((),))[0]
    return any(
        0 < grant.memory < devices[grant.uuid].devmem or 0 < grant.cores < devices[grant.uuid].devcore
        for grant in grants
    )


def _asking(name: str, amounts: Mapping[str, int]) -> dict[str, Any]:
    limits = {resource: str(amount) for resource, amount in amounts.items() if resource and amount}
    return {"name": name, "image": "example", "resources": {"limits": limits}}


Facts = dict[str, Any]
Step = Callable[[SimulatedNode], Awaitable[Facts]]

UNSHOWN = "not shown"
"""The key for why the node cannot show the step."""
NOTE = "note"
"""The key for the short result that the board shows beside the step."""
MATRIX = "text"
"""The key for a table."""
MEMORY_MIB = 3000
CORES = 30
TOPOLOGY_COUNT = 4
COUNTED = "these devices have no register annotation: HAMi's scheduler reads the node's capacity"
NO_PARTS = "these devices cannot be requested in parts"
LOOSE = "nothing on this node limits the container to its share: it receives the same as one with the whole device"
UNLINKED = "these devices have no score annotation: HAMi's scheduler applies the vendor's own rules"
SCORE_WIDTH = 6
SERVED_WHOLE = (str(Refuses(what="parts", why="")), Reason.ONE_PARTITION)
"""Reasons of a scheduler that come from the node's own annotations."""
_NUMBER = re.compile(r"_\d+$")
HAMIS_OWN = {keys.ASSIGNED_NODE, keys.ASSIGNED_TIME, keys.BIND_PHASE, keys.BIND_TIME}


async def register(sim: SimulatedNode) -> Facts:
    """The daemon starts, discovers the devices, and registers them with the kubelet and in the node's annotations."""
    machine, family = sim.hardware.machine, sim.family
    if sim.daemon is None:  # it may already serve another machine of this node
        await sim.start_daemon()
    uuids = {device.uuid for device in sim.devices}
    found = len(sim.devices) + len(sim.ailing)
    require(found == len(machine.devices), f"the driver finds {found} of {len(machine.devices)} devices")
    await sim.until(lambda: _offered(sim) == sim.counted(*sim.devices), "the kubelet's lists")
    offered = time.monotonic() - sim.started
    await sim.until(lambda: _healthy(sim) == uuids, "the registration of all devices")
    annotated = time.monotonic() - sim.started
    snapshot = Snapshot(devices=(*sim.devices, *sim.ailing), ready=True)
    wanted = wanted_annotations(family, snapshot, Style(scores=False))
    own = [key for key, text in wanted.items() if text and key.startswith(keys.OWN)]
    await sim.until(lambda: all(map(sim.annotation, own)), "the node's annotations of what it serves")
    facts = {
        "machine": machine.title,
        "devices": len(uuids),
        "shares": sim.counted(*sim.devices)[sim.resource],
        "offered after": f"{offered:.2f} s",
        "annotated after": f"{annotated:.2f} s" if family.rules.annotations.register else f"never: {COUNTED}",
    }
    facts[NOTE] = f"{len(uuids)} devices, {facts['shares']} shares, after {offered:.2f} s"
    sim.show("offered")
    facts |= {f"not offered: {device.uuid}": f"{device.reason}: {device.message}" for device in sim.ailing}
    return facts | ({MATRIX: matrix(sim)} if family.rules.annotations.score else {"links": UNLINKED})


async def shared_pod(sim: SimulatedNode) -> Facts:
    """One container with a share of a device: 3000 MiB and 30 % of the cores, or the closest that is supported."""
    node = sim.scheduler.node()
    everything = replace(node, annotations=without_refusals(node.annotations))
    asked = part(sim.family, everything, "main", memory=MEMORY_MIB, cores=CORES)
    sim.refused = NO_PARTS if asked is None else whole_only(sim, [asked])
    placed = await sim.run_pod(pod("shared", [share(sim, "main", memory=MEMORY_MIB, cores=CORES)]))
    facts = {NOTE: _holding(sim, placed)} | await received(sim, placed)
    if parts := await _parts(sim, placed):
        facts |= {"partition": parts, NOTE: f"{facts[NOTE]}, held to {parts}"}
    elif limits := _limits(sim, placed):
        facts |= {"held to its share by": limits}
    sim.loose = not sim.refused and unlimited(sim, placed)
    await sim.end_pod(placed)
    if sim.refused:
        return {UNSHOWN: f"no share is limited here, and the pod below has a whole device: {sim.refused}"} | facts
    return ({UNSHOWN: LOOSE} if sim.loose else {}) | facts


async def topology_pod(sim: SimulatedNode) -> Facts:
    """Up to four whole devices with the best links, by the daemon's scores or the vendor's own rules."""
    count = min(TOPOLOGY_COUNT, len(sim.devices))
    demand = container("train", sim.family.resources, count=count)
    if why := whole_only(sim, [demand]):
        return {UNSHOWN: why}
    placed = await sim.run_pod(pod("topology", [demand], topology=True))
    facts = await received(sim, placed)
    (piece,) = [piece for piece in decode_devices(placed.annotations[sim.family.rules.annotations.allocated]) if piece]
    uuids = [grant.uuid for grant in piece]
    require(len(set(uuids)) == count, f"the pod does not have {count} different devices")
    await sim.end_pod(placed)
    facts[NOTE] = _holding(sim, placed)
    if not sim.family.rules.annotations.score:
        return facts | {"links": UNLINKED}
    score = total(sim, uuids)
    return facts | {"link score": score, NOTE: f"{facts[NOTE]}, link score {score}"}


async def two_containers(sim: SimulatedNode) -> Facts:
    """Two containers with their own shares or devices, and one before them that requests none."""
    containers = [
        container("sidecar"),
        share(sim, "small", memory=1000, cores=10),
        share(sim, "large", memory=2000, cores=20),
    ]
    if why := whole_only(sim, containers):
        return {UNSHOWN: why}
    placed = await sim.run_pod(pod("pair", containers))
    facts = {NOTE: _holding(sim, placed)} | await received(sim, placed)
    await sim.end_pod(placed)
    return facts


async def lose_and_heal(sim: SimulatedNode) -> Facts:
    """A device falls off the bus: all of its shares become unhealthy. It returns, and they recover."""
    victim, registered = sim.devices[-1], bool(sim.family.rules.annotations.register)
    left = sim.counted(*sim.devices[:-1])
    others = {device.uuid for device in sim.devices} - {victim.uuid}
    start = time.monotonic()
    with suppress(ValueError):  # not every vendor's driver reports it
        sim.hardware.simulator.inject("xid", victim.index, 79)
    sim.hardware.simulator.inject("lost", victim.index)
    await sim.until(lambda: _offered(sim) == left, "the loss at the kubelet")
    kubelet = time.monotonic() - start
    if registered:
        await sim.until(lambda: victim.uuid not in _healthy(sim), "the loss in the node annotation")
        require(_healthy(sim) == others, "other devices were withdrawn too")
    sim.show("lost")
    annotation = f"{time.monotonic() - start:.2f} s" if registered else f"never: {COUNTED}"
    # After XID 79 alone a card stays out of service: the daemon must find it broken before it comes back.
    await sim.until(lambda: sim.found_broken(victim.uuid), "a look that finds the device broken")
    start = time.monotonic()
    sim.hardware.simulator.inject("back", victim.index)
    await sim.until(lambda: _offered(sim) == sim.counted(*sim.devices), "the recovery")
    await sim.until(lambda: _healthy(sim) == others | {victim.uuid}, "the recovery as the scheduler sees it")
    healed = time.monotonic() - start
    sim.show("healed")
    return {
        NOTE: f"{sim.name(victim.uuid)} withdrawn in {kubelet:.2f} s, healed in {healed:.2f} s",
        "device": victim.uuid,
        "shares withdrawn": sim.family.node.replicas(victim),
        "kubelet saw it after": f"{kubelet:.2f} s",
        "annotation after": annotation,
        "healed after": f"{healed:.2f} s",
    }


async def kubelet_restart(sim: SimulatedNode) -> Facts:
    """The kubelet restarts, and removes every socket. Running pods keep their devices; a new pod starts as before."""
    running = await sim.run_pod(pod("earlier", [share(sim, "main", memory=MEMORY_MIB, cores=CORES)]))
    await recorded(sim, running)
    held = {slot: allotment.ids for slot, allotment in sim.kubelet.ledger.allotments.items()}
    await sim.kubelet.restart()
    start = time.monotonic()
    await sim.until(lambda: sim.kubelet.registered(sim.resource), "the new registration")
    back = time.monotonic() - start
    await sim.until(lambda: _offered(sim) == sim.counted(*sim.devices), "the lists after the restart")
    after = {slot: allotment.ids for slot, allotment in sim.kubelet.ledger.allotments.items()}
    require(after == held, "running pods lost devices")
    await sim.end_pod(running)
    later = await sim.run_pod(pod("later", [share(sim, "main", memory=MEMORY_MIB, cores=CORES)]))
    await recorded(sim, later)
    await sim.end_pod(later)
    return {
        NOTE: f"registered again after {back:.2f} s; no pod lost a device",
        "registered again after": f"{back:.2f} s",
        "a pod after it": "runs",
    }


async def quiet(sim: SimulatedNode) -> Facts:
    """Nothing changes, and nothing is written."""
    await sim.until(lambda: not sim.api.count("PATCH|POST", since=time.monotonic() - 1.0), "silence")
    ready = await sim.readiness()
    lock = sim.family.rules.lock
    held = sim.annotation(lock.annotation) if lock else ""
    require(not held, f"the node lock is still {held}")
    return {
        NOTE: "no writes in a second",
        "writes in a second": 0,
        "ready": ready.get("ready"),
        "node lock": "free" if lock else "none: this vendor's scheduler takes no lock",
    }


async def differences(sim: SimulatedNode) -> dict[str, Any]:
    """What differs between this vendor and others."""
    return {
        NOTE: "see -v",
        "resources": _listed(_resources(sim)),
        "devices are known by": _register(sim),
        "handshake": _handshake(sim),
        "other node annotations": _listed(_others(sim)) or "none",
        "pod annotations by the scheduler": _listed(sorted(sim.written - HAMIS_OWN)),
        "a container receives": _received(sim),
        "sharing": _sharing(sim),
        "lock": _lock(sim.family),
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


def _offered(sim: SimulatedNode) -> dict[str, int]:
    return {resource: sim.kubelet.allocatable(resource) for resource in sim.counted()}


def _healthy(sim: SimulatedNode) -> set[str]:
    return {info.id for info in sim.registered() if info.health}


def _holding(sim: SimulatedNode, placed: PodView) -> str:
    """Which devices each container of the pod has, by name."""
    pieces = decode_devices(placed.annotations[sim.family.rules.annotations.allocated])
    held = {
        container.name: " ".join(sorted({sim.name(grant.uuid) for grant in piece}))
        for container, piece in zip(placed.containers, pieces, strict=False)
        if piece
    }
    return ", ".join(f"{name} on {devices}" for name, devices in held.items())


def share(sim: SimulatedNode, name: str, *, memory: int, cores: int) -> Mapping[str, Any]:
    """A container with a share of a device, or with a whole one if the family serves no shares."""
    node = sim.scheduler.node()
    asked = None if sim.refused else part(sim.family, node, name, memory=memory, cores=cores)
    return asked or container(name, sim.family.resources)


def whole_only(sim: SimulatedNode, containers: Sequence[Mapping[str, Any]]) -> str:
    """The scheduler's reason why the node serves no such shares; empty if it does. ``HamiError`` otherwise."""
    try:
        placed = sim.scheduler.place(pod("part", containers), lock=False)
    except DoesNotFitError as error:
        sim.api.delete_pod(error.pod.namespace, error.pod.name)
        require(any(reason in error.why for reason in SERVED_WHOLE), str(error))
        return error.why
    sim.api.delete_pod(placed.namespace, placed.name)
    return ""


async def received(sim: SimulatedNode, placed: PodView) -> Facts:
    """Wait until the pod is settled; then check and return what each container received."""
    await recorded(sim, placed)
    containers = sim.received[placed.key]
    problems = mixed_up(sim, placed, containers)
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


async def recorded(sim: SimulatedNode, placed: PodView) -> None:
    """Wait until the pod's annotations are settled, and the lock is free."""

    def done() -> bool:
        annotations = sim.api.pod(placed.namespace, placed.name)["metadata"]["annotations"]
        left = decode_devices(annotations.get(sim.family.rules.annotations.to_allocate, ""))
        return annotations[keys.BIND_PHASE] == keys.PHASE_SUCCESS and not any(left)

    await sim.until(done, f"the settlement of pod {placed.key}")
    await unlocked(sim)


async def unlocked(sim: SimulatedNode) -> None:
    """Wait until the daemon has released the node lock, if the family has one."""
    if lock := sim.family.rules.lock:
        await sim.until(lambda: not sim.annotation(lock.annotation), "the release of the node lock")


def require(fact: bool, problem: str) -> None:
    """``HamiError`` with the problem, unless ``fact``."""
    if not fact:
        raise HamiError(problem)


def total(sim: SimulatedNode, uuids: Sequence[str]) -> int:
    """The sum of the scores of all pairs."""
    return _links(sim).total(uuids)


def matrix(sim: SimulatedNode) -> str:
    """A table of all pairs."""
    names = {info.id: f"GPU{info.index}" for info in sim.registered()}
    links = _links(sim)
    lines = ["".join(name.rjust(SCORE_WIDTH) for name in ("", *names.values()))]
    for a, name in names.items():
        cells = ("X" if a == b else str(links.score(a, b)) for b in names)
        lines.append(name.rjust(SCORE_WIDTH) + "".join(cell.rjust(SCORE_WIDTH) for cell in cells))
    return "\n".join(lines)


def _links(sim: SimulatedNode) -> Links:
    text = sim.annotation(sim.family.rules.annotations.score)
    scores = decode_scores(text) if text else {}
    pairs = {(a, b): Link(score=s, label="") for a, peers in scores.items() for b, s in peers.items() if a < b}
    return Links(pairs=pairs)


def _resources(sim: SimulatedNode) -> Iterable[str]:
    family, names, device = sim.family, sim.family.resources, sim.devices[0]
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


def _register(sim: SimulatedNode) -> str:
    key = sim.family.rules.annotations.register
    if not key:
        return f"the node's capacity of {sim.resource}, without a register annotation"
    text = sim.annotation(key)
    forms = {"[": "a JSON list", "{": "a JSON object of the vendor's"}
    form = forms.get(text[:1], "fields separated by commas, as in HAMi 2.7")
    return f"{key}, {form}, {len(text)} characters"


def _handshake(sim: SimulatedNode) -> str:
    key = sim.family.rules.annotations.handshake
    if not key:
        return "none"
    value = sim.annotation(key)
    return f"{key}: {value}" if value else f"{key} is left to the scheduler, which reads the register without it"


def _others(sim: SimulatedNode) -> Iterable[str]:
    """Annotations of the node beside the register and the handshake."""
    own, snapshot = sim.family.rules.annotations, Snapshot(devices=sim.devices, ready=True)
    wanted = wanted_annotations(sim.family, snapshot, Style()).keys() - {own.register, own.handshake}
    there = (key for key in sorted(wanted) if sim.annotation(key))
    return (f"{key} (scores of links)" if key == own.score else key for key in there)


def _received(sim: SimulatedNode) -> str:
    received = [edits for containers in sim.received.values() for edits in containers.values()]
    env = sorted({_NUMBER.sub("_<n>", name) for edits in received for name in edits.env})
    nodes = {node.path for edits in received for node in edits.device_nodes}
    mounts = {mount.container_path for edits in received for mount in edits.mounts}
    parts = (("variables", env), ("device nodes as", sorted(nodes)[:2]), ("mounts as", sorted(mounts)[:2]))
    return "; ".join(f"{what} {_listed(names)}" for what, names in parts if names)


async def _parts(sim: SimulatedNode, placed: PodView) -> str:
    """The partitions that the pod's containers are held to; empty where there are none."""
    _status, text = await sim.get("/debug/partitions")
    owned = [one for one in json.loads(text)["partitions"] if one["owner"].startswith(f"{placed.key}/")]
    return _listed(f"{one['profile']} {one['uuid']}" for one in owned)


def _sharing(sim: SimulatedNode) -> str:
    if sim.refused:
        return f"whole devices only: {sim.refused}"
    return "shares of devices are served" + (" and nothing limits containers to them" if sim.loose else "")


def _lock(family: Family) -> str:
    rule = family.rules.lock
    if rule is None:
        return "none: several pods may be bound at once"
    whose = "names the pod" if rule.named else "names no owner"
    return f"{rule.annotation}, {whose}, expires after {rule.expires_s:g} s"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def unlimited(sim: SimulatedNode, pod: PodView) -> bool:
    """Whether the pod's containers received nothing that limits them to their shares.

    Then a container with the whole device would receive the same.
    """
    own = decided(sim, pod)
    try:
        every = _given(sim, [_of_all(sim, claim) for claim in own])
    except HamiError:
        return False  # the whole device could not be allocated
    return _given(sim, own) == every


def _limits(sim: SimulatedNode, pod: PodView) -> str:
    """Variables and mounts that a container with the whole device would not receive so; empty for none."""
    own = decided(sim, pod)
    try:
        every = _given(sim, [_of_all(sim, claim) for claim in own])
    except HamiError:
        return ""
    found: list[str] = []
    for name, (env, mounts, _files) in _given(sim, own).items():
        whole_env, whole_mounts, _whole_files = every[name]
        found += [f"{key}={value}" for key, value in sorted(env.items()) if whole_env.get(key) != value]
        found += sorted(mounts - whole_mounts)
    return _listed(found)


def _of_all(sim: SimulatedNode, claim: DecidedShare) -> DecidedShare:
    """The claim if its grants were all of their devices."""
    devices = {device.uuid: device for device in sim.devices}
    every = [(grant, devices[grant.uuid]) for grant in claim.grants]
    family = sim.family
    grants = tuple(
        replace(grant, memory=family.node.register(device, False).devmem, cores=family.node.every_core(device))
        for grant, device in every
    )
    return replace(claim, grants=grants)


def mixed_up(sim: SimulatedNode, pod: PodView, received: Mapping[str, ContainerEdits]) -> list[str]:
    """The containers that received another environment than their own; empty if all is right."""
    own = _environment(sim, decided(sim, pod))
    expected = {container.name: own.get(container.name, {}) for container in pod.containers}
    problems = []
    for name, env in expected.items():
        got = received[name].env
        if not env.items() <= got.items() or (got and not env):
            problems.append(f"container {name} has {dict(got)}, and should have {env}")
    return problems


def decided(sim: SimulatedNode, pod: PodView) -> tuple[DecidedShare, ...]:
    """The claims of the pod's decision, by any of the family's resources."""
    questions = [
        question_of(sim.family),
        *(question_of(sim.family, units) for units in sim.family.resources.units),
    ]
    found = {claim.container.name: claim for question in reversed(questions) for claim in decided_shares(pod, question)}
    return tuple(found[container.name] for container in pod.containers if container.name in found)


def _environment(sim: SimulatedNode, claims_: Sequence[DecidedShare]) -> dict[str, Mapping[str, str]]:
    """The environment of each container, without values that differ each time."""
    return {name: env for name, (env, _mounts, _files) in _given(sim, claims_).items()}


Given = tuple[Mapping[str, str], frozenset[str], int]
"""Variables, mount points with the partitions' profiles, and the number of files written for the container."""


def _stand_in(part: Reservation, name: str) -> Partition:
    """For one whose real name only the hardware tells."""
    return Partition(card=part.card, profile=part.profile, placement=part.placement, uuid=name)


def _cut(
    side: PartitionSide, assignment: Assignment, parts: Sequence[Reservation], host: HostFiles
) -> tuple[Injection, Injection]:
    """What a container receives of two partitions that are alike, or twice of one that the vendor must look up."""
    try:
        one, other = (side.inject(assignment, [_stand_in(part, name) for part in parts], host) for name in "ab")
    except HamiError:
        there = [each for each in side.open(host).partitions() if each.uuid]
        made = [next((each for each in there if _is(each, part)), _stand_in(part, "none")) for part in parts]
        one = other = side.inject(assignment, made, host)
    return one, other


def _is(one: Partition, part: Reservation) -> bool:
    return (one.card, one.profile, one.placement) == (part.card, part.profile, part.placement)


def _given(sim: SimulatedNode, claims_: Sequence[DecidedShare]) -> dict[str, Given]:
    """What each container receives if no other pod has any of the devices."""
    hook = Path(sim.options["--hook-path"])
    host = HostFiles(paths=HostPaths(hook=hook, hook_view=hook, node=sim.node))
    devices = {device.uuid: device for device in sim.devices}
    placed: list[Grant] = []
    given: dict[str, Given] = {}
    for claim in claims_:
        shares = []
        for grant in claim.grants:
            others = [other for other in placed if other.uuid == grant.uuid]
            own = sim.family.node.place(grant, devices[grant.uuid], others)
            shares.append(Share(grant=own, device=devices[grant.uuid]))
        placed += [share.grant for share in shares]
        shares.sort(key=lambda share: share.device.index)
        assignment = Assignment(pod=claim.pod, container=claim.container, shares=tuple(shares))
        side = sim.family.node.partitions
        parts = side.wanted(assignment) if side else ()
        if side and parts:
            one, other = _cut(side, assignment, parts, host)
        else:
            one, other = (sim.family.node.inject(assignment, host) for _ in range(2))
        env = {key: value for key, value in one.edits.env.items() if other.edits.env.get(key) == value}
        limits = frozenset([*(m.container_path for m in one.edits.mounts), *(part.profile for part in parts)])
        given[claim.container.name] = env, limits, len(one.files)
    return given
