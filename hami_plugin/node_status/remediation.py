"""What is done about a device that is out of service: a condition, a cordon, and a reset once nobody has it.

A condition of the node for each kind of device, such as ``GPUDegraded``, is True while a device is out of service.
Others drain or repair nodes by it. Opt-in: it needs the right to patch the node's status.

Cordon and reset are off by default, and a dry run only says what would be done. The daemon resets nothing itself: that
needs rights on the host that it does not have. Whoever has them, a person or an agent, reads the Event or the node's
annotation.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, NoReturn, Protocol

from hami_plugin.allocation.identity import HeldShare
from hami_plugin.errors import ClusterError
from hami_plugin.model.device import Device, Health
from hami_plugin.model.ports import NodeApi
from hami_plugin.model.views import DEGRADED, NodeCondition, NodeView
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.faults import listed
from hami_plugin.node_status.registration import FamilySource, LiveNode
from hami_plugin.process.log import logger
from hami_plugin.protocol.keys import RESET_WANTED

log = logger(__name__)

EVERY_S = 2.0
AGAIN_S = 30.0
"""When a write that failed is tried again."""
MAX_MESSAGE = 1000
WELL, UNWELL, UNKNOWN = "AllDevicesInService", "DevicesOutOfService", "DriverAway"
REASONS = frozenset({WELL, UNWELL, UNKNOWN})


class ConditionWriter(Protocol):
    """The API server, limited to this node's conditions. ``ClusterError`` where it refuses."""

    async def patch_conditions(self, conditions: Sequence[Mapping[str, Any]]) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """Devices that users call by one noun, of one vendor or of several."""

    noun: str
    sources: tuple[FamilySource, ...]

    @property
    def condition(self) -> str:
        """The condition's type."""
        return f"{self.noun}{DEGRADED}"


def kinds_of(sources: Iterable[FamilySource], nouns: Mapping[str, str]) -> tuple[DeviceKind, ...]:
    """The node's devices by noun. ``nouns`` are the vendors'."""
    grouped: defaultdict[str, list[FamilySource]] = defaultdict(list)
    for source in sources:
        noun = nouns.get(source.vendor, "")
        grouped[noun if noun.isalnum() and noun != "DEV" else "Accelerator"].append(source)
    return tuple(DeviceKind(noun=noun, sources=tuple(some)) for noun, some in sorted(grouped.items()))


def condition_of(kind: DeviceKind) -> NodeCondition | None:
    """What the node should say of these devices; None where it has none."""
    devices = [
        device
        for source in kind.sources
        for device in {one.uuid: one for one in source.snapshot.value.devices}.values()
    ]
    away = [source for source in kind.sources if not source.snapshot.value.ready]
    if not devices:
        if not away or all(source.snapshot.value.reason == "NotLookedYet" for source in away):
            return None
        why = away[0].snapshot.value
        text = f"{kind.noun}s are not known: {why.reason} {why.message}".strip()
        return NodeCondition(type=kind.condition, status="Unknown", reason=UNKNOWN, message=text[:MAX_MESSAGE])
    unwell = [device for device in devices if not device.health.offered]
    if not unwell:
        text = f"all {len(devices)} {kind.noun}s are in service"
        return NodeCondition(type=kind.condition, status="False", reason=WELL, message=text)
    named = [f"{kind.noun}{device.number} ({_words(device)})" for device in unwell]
    text = f"{len(unwell)} of {len(devices)} {kind.noun}s are out of service: {listed(named)}"
    return NodeCondition(type=kind.condition, status="True", reason=UNWELL, message=text[:MAX_MESSAGE])


def _words(device: Device) -> str:
    """What is wrong with a device, in its vendor's words. Nothing that changes by itself, such as a time."""
    needs = "needs a reset or a reboot" if device.grave else ""
    return "; ".join(filter(None, (f"{device.reason} {device.message}".strip(), needs)))


def own_conditions(node: NodeView) -> Sequence[str]:
    """The types of the node's conditions that a daemon has written."""
    return sorted(one.type for one in node.conditions if one.type.endswith(DEGRADED) and one.reason in REASONS)


def remove_conditions(types: Iterable[str]) -> list[Mapping[str, Any]]:
    """The changes that take these conditions away."""
    return [{"$patch": "delete", "type": name} for name in types]


class NodeConditions:
    """Keeps the conditions of this node as its devices are. Not ``wanted``: those that are there are taken away."""

    def __init__(
        self,
        writer: ConditionWriter,
        node: LiveNode,
        kinds: Callable[[], Sequence[DeviceKind]],
        *,
        wanted: bool,
        now: Callable[[], datetime] = lambda: datetime.now(tz=UTC),
    ) -> None:
        self._writer = writer
        self._node = node
        self._kinds = kinds
        self._wanted = wanted
        self._now = now

    async def run(self) -> NoReturn:
        """Until it is cancelled. What is to be taken away shows in the node's view, so that alone is waited for."""
        while True:
            seen = self._node.version
            try:
                await self.look()
            except ClusterError as error:
                hint = "" if error.status != 403 else "; the chart grants it with config.nodeCondition: true"
                log.warning("node condition not written", problem=f"{error.message}{hint}")
                await asyncio.sleep(AGAIN_S)
                continue
            await (asyncio.sleep(EVERY_S) if self._wanted else self._node.changed(seen))

    async def look(self) -> None:
        """Compare once, and write what differs."""
        node = self._node.value
        if node is None:
            return
        changes = self._changes(node)
        if changes:
            await self._writer.patch_conditions(changes)
            log.info("node conditions written", types=[one["type"] for one in changes])

    def _changes(self, node: NodeView) -> list[Mapping[str, Any]]:
        if not self._wanted:
            return remove_conditions(own_conditions(node))
        live = {one.type: one for one in node.conditions}
        found = (condition_of(kind) for kind in self._kinds())
        return [self._written(one, live.get(one.type)) for one in found if one and one != live.get(one.type)]

    def _written(self, one: NodeCondition, before: NodeCondition | None) -> Mapping[str, Any]:
        at = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        turned = {} if before and before.status == one.status else {"lastTransitionTime": at}
        return {
            "type": one.type,
            "status": one.status,
            "reason": one.reason,
            "message": one.message,
            "lastHeartbeatTime": at,
            **turned,
        }


MAX_NAMED = 256
"""Devices in one annotation."""

Mode = Literal["off", "dry-run", "on"]


class RemedyStep(StrEnum):
    """What is done to a device; each is the reason of an Event."""

    CORDON = "DeviceCordoned"
    RESET = "DeviceResetWanted"
    WOULD_CORDON = "DeviceWouldBeCordoned"
    WOULD_RESET = "DeviceResetWouldBeWanted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """The devices to cordon by the key of the annotation that schedulers read, and those to be reset: UUIDs."""

    cordon: Mapping[str, tuple[str, ...]]
    reset: tuple[str, ...]


def remedy(sources: Iterable[FamilySource], held: Iterable[HeldShare]) -> Remedy:
    """What should be done now. Devices whose fault asks for a reset or a reboot, and that are out of service."""
    taken = {grant.uuid for one in held for grant in one.grants}
    cordon: dict[str, list[str]] = {}
    reset: list[str] = []
    for source in sources:
        for device in {one.uuid: one for one in source.snapshot.value.devices}.values():
            if not (device.grave and device.health is Health.UNHEALTHY):
                continue
            if source.family.rules.cordon:
                cordon.setdefault(source.family.rules.cordon, []).append(device.uuid)
            if device.uuid not in taken:
                reset.append(device.uuid)
    return Remedy(cordon={key: tuple(uuids) for key, uuids in cordon.items()}, reset=tuple(reset))


def cordoned(node: NodeView, key: str) -> tuple[str, ...]:
    """The UUIDs in a node's annotation of cordoned devices."""
    return tuple(filter(None, (uuid.strip() for uuid in node.annotations.get(key, "").split(","))))


def remediation_annotations(node: NodeView, wanted: Remedy) -> Mapping[str, str | None]:
    """The annotations to write. A cordon stays until an operator lifts it, as a device that failed once may again."""
    found: dict[str, str | None] = {}
    for key, uuids in wanted.cordon.items():
        there = cordoned(node, key)
        more = [uuid for uuid in uuids if uuid not in there]
        if more and len(there) < MAX_NAMED:
            found[key] = ",".join([*there, *more][:MAX_NAMED])
    asked = ",".join(wanted.reset[:MAX_NAMED]) or None
    if node.annotations.get(RESET_WANTED) != asked:
        found[RESET_WANTED] = asked
    return found


class Outcome(StrEnum):
    """What became of a step for one device."""

    DONE = "done"
    WOULD = "dry-run"
    FAILED = "failed"
    """The API server refused; it is tried again."""


def steps_in(node: NodeView, writing: Mapping[str, str | None]) -> Counter[str]:
    """How many devices these annotations cordon, and for how many they ask for a reset, that the node has not yet."""
    found: Counter[str] = Counter()
    for key, text in writing.items():
        new = set(filter(None, (text or "").split(","))) - set(cordoned(node, key))
        found["reset" if key == RESET_WANTED else "cordon"] += len(new)
    return found


class Remediation:
    """Watches the devices, and does or says what ``remedy`` finds.

    ``counts`` are devices by step (``cordon``, ``reset``) and outcome.
    """

    def __init__(
        self,
        cluster: NodeApi,
        node: LiveNode,
        events: EventRecorder,
        *,
        mode: Mode,
        sources: Callable[[], Sequence[FamilySource]],
        held: Callable[[], Iterable[HeldShare]],
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._events = events
        self._mode = mode
        self._sources = sources
        self._held = held
        self._announced: set[tuple[RemedyStep, str]] = set()
        outcomes = (Outcome.DONE, Outcome.FAILED) if mode == "on" else (Outcome.WOULD,)
        self.counts: Counter[tuple[str, str]] = Counter(
            {(step, outcome.value): 0 for step in ("cordon", "reset") for outcome in outcomes}
        )

    async def run(self) -> NoReturn:
        """Until it is cancelled."""
        while True:
            try:
                await self.look()
            except ClusterError as error:
                log.warning("remediation failed", problem=error.message, status=error.status)
                await asyncio.sleep(AGAIN_S)
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """Once."""
        node = self._node.value
        if node is None or any(not source.snapshot.value.ready for source in self._sources()):
            return  # while a driver is away, nobody knows which devices need what
        wanted = remedy(self._sources(), self._held())
        writing = remediation_annotations(node, wanted) if self._mode == "on" else {}
        if writing:
            await self._write(node, writing)
        self._announce(wanted)

    async def _write(self, node: NodeView, writing: Mapping[str, str | None]) -> None:
        steps = steps_in(node, writing)
        try:
            after = await self._cluster.patch_node(writing, resource_version=node.resource_version)
        except ClusterError:
            self._count(steps, Outcome.FAILED)
            raise
        self._node.deliver(after)
        self._count(steps, Outcome.DONE)
        log.info("remediation", written=sorted(writing))

    def _count(self, steps: Mapping[str, int], outcome: Outcome) -> None:
        for step, devices in steps.items():
            self.counts[step, outcome.value] += devices

    def _announce(self, wanted: Remedy) -> None:
        """An Event for each step that is new."""
        dry = self._mode != "on"
        cordon = RemedyStep.WOULD_CORDON if dry else RemedyStep.CORDON
        reset = RemedyStep.WOULD_RESET if dry else RemedyStep.RESET
        steps = {(cordon, uuid) for uuids in wanted.cordon.values() for uuid in uuids}
        steps |= {(reset, uuid) for uuid in wanted.reset}
        devices = {device.uuid: device for source in self._sources() for device in source.snapshot.value.devices}
        if dry:
            new = [step for step, _uuid in steps - self._announced]
            self._count({"cordon": new.count(cordon), "reset": new.count(reset)}, Outcome.WOULD)
        for step, uuid in sorted(steps - self._announced):
            self._events.node(step.value, f"{_named(devices[uuid])}: {WORDS[step]}", warning=True)
        self._announced = steps


WORDS: Mapping[RemedyStep, str] = {
    RemedyStep.CORDON: "schedulers place nothing on it any more, until you take it out of the node's annotation",
    RemedyStep.RESET: "nobody has it, so that it can be reset now",
    RemedyStep.WOULD_CORDON: "remediation: on would cordon it",
    RemedyStep.WOULD_RESET: "nobody has it, and remediation: on would ask for a reset now",
}


def _named(device: Device) -> str:
    return f"{device.family} device {device.number} ({device.uuid}), {device.reason} {device.message}".rstrip()
