"""A condition of the node for each kind of device, such as ``GPUDegraded``, by which others drain or repair nodes.

It is True while a device is out of service. Opt-in: it needs the right to patch the node's status.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn, Protocol

from hami_plugin.errors import ClusterError
from hami_plugin.model.device import Device
from hami_plugin.model.views import DEGRADED, NodeCondition, NodeView
from hami_plugin.node_status.annotations import FamilySource
from hami_plugin.node_status.faults import listed
from hami_plugin.node_status.registration import LiveNode
from hami_plugin.process.log import logger

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
