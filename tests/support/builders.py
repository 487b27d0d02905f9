"""Small builders of devices, pods and decisions, for a family of an invented vendor."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cdi.spec import ContainerEdits, Mount
from hami_plugin.allocation.identity import HeldShare
from hami_plugin.host.paths import HostFiles
from hami_plugin.model.delivery import Answer
from hami_plugin.model.device import Device, Health, Snapshot
from hami_plugin.model.placement import Assignment, Grant
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.keys import ASSIGNED_NODE, BIND_PHASE, PHASE_ALLOCATING
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.protocol.pods import Question, encode_devices
from hami_plugin.sdk import AnnotationKeys, Family, Injection, NodeSide, Resources, SchedulingRules

NODE = "n1"
COUNT, MEMORY, PERCENT, CORES = "toy.io/card", "toy.io/mem", "toy.io/mem-percentage", "toy.io/cores"
TO_ALLOCATE, ALLOCATED = "toy.io/to-allocate", "toy.io/allocated"
REGISTER, HANDSHAKE, SCORE = "toy.io/register", "toy.io/handshake", "toy.io/score"
SPLIT = 4
CARD_MIB = 80_000

QUESTION = Question(
    resource=COUNT, to_allocate=TO_ALLOCATE, allocated=ALLOCATED, memory=MEMORY, memory_percent=PERCENT, cores=CORES
)


def uuid(number: int) -> str:
    return f"TOY-{number:08x}-0000-4000-8000-{number:012x}"


def ids(*shares: tuple[int, int]) -> list[str]:
    """Replica ids of (device, share) pairs."""
    return [f"{uuid(device)}-{share}" for device, share in shares]


def device(number: int, **changes) -> Device:
    fields = {"uuid": uuid(number), "family": "TOY", "index": number, "model": "Toy", "memory": CARD_MIB, "numa": 0}
    return Device(**{**fields, **changes})


def snapshot(count: int = 4, *, links=None, **health: Health) -> Snapshot:
    """``count`` devices; ``d2=Health.UNHEALTHY`` sets one's health."""
    states = {int(name[1:]): state for name, state in health.items()}
    devices = tuple(device(n, health=states.get(n, Health.HEALTHY)) for n in range(count))
    extra = {"links": links} if links else {}
    return Snapshot(devices=devices, ready=True, reason="", **extra)


def grant(number: int, memory: int = 1000, cores: int = 10) -> Grant:
    return Grant(uuid=uuid(number), device_type="TOY", memory=memory, cores=cores)


def container(
    name: str = "main",
    count: int = 0,
    *,
    init: bool = False,
    sidecar: bool = False,
    memory: int = 0,
    percent: int = 0,
    cores: int = 0,
) -> ContainerView:
    asked = {COUNT: count, MEMORY: memory, PERCENT: percent, CORES: cores}
    limits = {resource: str(amount) for resource, amount in asked.items() if amount}
    return ContainerView(name=name, init=init or sidecar, restartable=sidecar, limits=limits)


def decision(pieces: Sequence[Sequence[Grant]]) -> dict[str, str]:
    """A scheduler's annotations for containers in order; an empty piece is a container without devices."""
    text = encode_devices([tuple(piece) for piece in pieces])
    return {TO_ALLOCATE: text, ALLOCATED: text, ASSIGNED_NODE: NODE, BIND_PHASE: PHASE_ALLOCATING}


def pod(name: str = "a", containers: Sequence[ContainerView] = (), pieces=None, **changes) -> PodView:
    """A starting pod. ``pieces``: the decision, None for a pod that no scheduler decided about.

    Without ``containers``, one that asks for what the only piece grants.
    """
    if pieces is not None and not containers:
        containers = [container(count=len(pieces[0]))]
    annotations = changes.pop("annotations", {})
    fields = {
        "uid": f"{name}-uid",
        "namespace": "default",
        "name": name,
        "node": NODE,
        "created": "2026-01-01T00:00:00Z",
        "annotations": {**(decision(pieces) if pieces is not None else {}), **annotations},
        "containers": tuple(containers),
    }
    return PodView(**{**fields, **changes})


def held_by(owner: PodView, name: str = "main", replicas: Sequence[str] = (), grants=(), **changes) -> HeldShare:
    fields = {
        "uid": owner.uid,
        "namespace": owner.namespace,
        "pod": owner.name,
        "container": name,
        "resource": COUNT,
        "ids": frozenset(replicas),
        "grants": tuple(grants),
    }
    return HeldShare(**{**fields, **changes})


def register(item: Device, legacy: bool) -> DeviceInfo:
    return DeviceInfo(
        id=item.uuid,
        index=item.index,
        count=SPLIT,
        devmem=item.memory,
        devcore=100,
        type=f"TOY-{item.model}" if legacy else item.model,
        mode=item.mode,
        health=item.health.offered,
    )


def inject(assignment: Assignment, host: HostFiles) -> Injection:
    """One value for each thing that a test may ask about, and one directory for each container."""
    folder = host.paths.hook / "containers" / f"{assignment.pod.uid}_{assignment.container.name}"
    env = {"POD": assignment.pod.uid, "CONTAINER": assignment.container.name}
    env["DEVICES"] = ",".join(share.device.uuid for share in assignment.shares)
    env |= {f"LIMIT_{i}": f"{s.grant.memory}m,{s.grant.cores}" for i, s in enumerate(assignment.shares)}
    mounts = (Mount(host_path=str(folder), container_path="/toy", read_only=False),)
    return Injection(edits=ContainerEdits(env=env, mounts=mounts), directories=(Path(folder),))


FAMILY = Family(
    resources=Resources(device_type="TOY", count=COUNT, memory=MEMORY, memory_percent=PERCENT, cores=CORES),
    rules=SchedulingRules(
        annotations=AnnotationKeys(
            register=REGISTER, handshake=HANDSHAKE, to_allocate=TO_ALLOCATE, allocated=ALLOCATED, score=SCORE
        )
    ),
    node=NodeSide(replicas=lambda _device: SPLIT, register=register, inject=inject),
)


def changed(family: Family, **changes) -> Family:
    """The family with these fields of its own, of its resources, its rules or its node side."""
    own = {name: changes.pop(name) for name in Family.__slots__ if name in changes}
    for part in ("resources", "rules", "node"):
        value = own.get(part, getattr(family, part))
        own[part] = replace(value, **{name: changes.pop(name) for name in value.__slots__ if name in changes})
    assert not changes, f"no field of a family: {', '.join(changes)}"
    return replace(family, **own)


def received(answer: Answer) -> tuple[str, str, dict[str, str]]:
    """Pod UID, container, and limits by device, out of what ``inject`` has made."""
    edits = answer.edits
    cards = edits.env["DEVICES"].split(",")
    return edits.env["POD"], edits.env["CONTAINER"], {card: edits.env[f"LIMIT_{i}"] for i, card in enumerate(cards)}
