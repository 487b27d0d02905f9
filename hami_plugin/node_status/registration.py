"""Keeps the node's annotations and labels equal to what it has: compared with the live node, written when they differ.

Each family says what it wants its annotations to be, and one family's failure keeps no other from writing its own. What
is left on a node that nobody serves is known too.

Labels describe the node's devices, for node selectors and affinities. Which of them are ours stands in an annotation:
only these are ever changed or removed. A label that somebody else has set, as a vendor's feature discovery, stays.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from hami_plugin.errors import ClusterError, HamiError, VendorError, WireError
from hami_plugin.model.device import Device, Links, Snapshot, label_value, node_labels
from hami_plugin.model.ports import NodeApi
from hami_plugin.model.views import NodeView, is_silent, node_view, revision
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.process.concurrency import Backoff, Watched
from hami_plugin.process.log import logger
from hami_plugin.protocol.grammar import bounded, shown
from hami_plugin.protocol.keys import BIND_LOCK, LABELS, NODE_LOCK, OWN
from hami_plugin.protocol.nodes import (
    ANSWER_TIMEOUT,
    DeviceInfo,
    HandshakeState,
    Refuses,
    joined_json,
    joined_legacy,
    json_entry,
    legacy_entry,
    parse_handshake,
    parse_lock,
    refuses_key,
    render_answer,
    score_annotation,
    unhealthy_key,
)
from hami_plugin.sdk import Cuttable, Family, NodeSide
from hami_plugin.vendor_boundary.guard import VendorErrors

log = logger(__name__)

MAX_ANNOTATION_BYTES = 256 * 1024

Wanted = dict[str, str | None]

_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class Rendered:
    """The parts of one family's annotations, each made anew only when its device, or the links, have changed."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[tuple[Device, Cuttable], DeviceInfo, str]] = {}
        self._scored: tuple[Links, Sequence[str]] | None = None
        self._scores: str | None = None

    def register(
        self, node: NodeSide, devices: Sequence[Device], *, legacy: bool, cuttable: Mapping[str, Cuttable] | None = None
    ) -> str:
        """The register annotation. A fault changes one device's entry in it, as does what it may be cut into."""
        known, self._entries = self._entries, {}
        for device in devices:
            entry = known.get(device.uuid)
            seen = (device, (cuttable or {}).get(device.uuid, Cuttable()))
            if entry is None or entry[0] != seen:
                info = _info(node, device, seen[1], legacy=legacy)
                text = "" if node.encode else legacy_entry(info) if legacy else json_entry(info)
                entry = (seen, info, text)
            self._entries[device.uuid] = entry
        entries = [self._entries[device.uuid][1:] for device in devices]
        if node.encode:
            return node.encode([info for info, _text in entries])
        return joined_legacy(entries) if legacy else joined_json(entries)

    def scores(self, links: Links, uuids: Sequence[str]) -> str | None:
        """The score annotation. A fault changes nothing in it."""
        if self._scored != (links, uuids):
            self._scored, self._scores = (links, uuids), score_annotation(links, uuids)
        return self._scores


def _info(node: NodeSide, device: Device, cuttable: Cuttable, *, legacy: bool) -> DeviceInfo:
    info = node.register(device, legacy)
    if node.partitions is None:
        return info
    return node.partitions.without(node.partitions.registered(info, cuttable.profiles), cuttable.blocked)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySource:
    """A family of a vendor, and the snapshot that its annotations are drawn from.

    ``cuttable`` is what its cards may be cut into; its value is None until that is known.
    """

    family: Family
    snapshot: Watched[Snapshot]
    vendor: str = ""
    cuttable: Watched[Mapping[str, Cuttable] | None] | None = None
    errors: VendorErrors = field(default_factory=lambda: VendorErrors(""))
    rendered: Rendered = field(default_factory=Rendered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """``legacy`` is HAMi 2.7's text. A handshake is written every ``heartbeat`` seconds where one is needed."""

    legacy: bool = False
    scores: bool = True
    heartbeat: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """What one family wants, or why it wants nothing: ``retry`` when it may succeed soon.

    ``pending`` is what it still waits for, which is no mistake: it ends by itself.
    """

    source: FamilySource
    wanted: Mapping[str, str | None] = field(default_factory=dict)
    problem: str = ""
    pending: str = ""
    retry: bool = False

    @property
    def size(self) -> int:
        """Bytes of its annotations."""
        return _bytes(self.wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What is to be written. ``total`` bytes were too many, unless it is 0; ``dropped`` families change nothing."""

    wanted: Wanted
    total: int = 0
    dropped: tuple[str, ...] = ()

    @property
    def problem(self) -> str:
        """What was left out; empty when nothing was."""
        more = f", and what {', '.join(self.dropped)} would say" if self.dropped else ""
        return f"{self.total} bytes of annotations; the scores are left out{more}" if self.total else ""


def wanted_annotations(
    family: Family,
    snapshot: Snapshot,
    style: Style,
    taken: AbstractSet[str] = frozenset(),
    rendered: Rendered | None = None,
    *,
    cuttable: Mapping[str, Cuttable] | None = None,
) -> Wanted:
    """What a family wants the node to say, None for what it should say no more. ``taken`` are devices in use.

    Nothing before its devices are known: a former value stays until then, and goes when there are none.
    """
    where, keys, node = refuses_key(family.resources.device_type), family.rules.annotations, family.node
    rendered = rendered or Rendered()
    if not snapshot.devices:
        ours = (keys.register, keys.score, keys.handshake)
        none: Wanted = {where: Refuses(what="all", why=node.absent).text if node.absent else None}
        none |= {unhealthy_key(family.resources.device_type): None, **{key: None for key in ours if key}}
        return {**none, **_announced(node, snapshot, taken, {})} if snapshot.ready else {}
    wanted: Wanted = {where: Refuses(what="parts", why=node.whole_only).text if node.whole_only else None}
    wanted |= {**node.notes, **_announced(node, snapshot, taken, cuttable or {})}
    sick = [str(one.index) for one in snapshot.devices if not one.health.offered and not keys.register]
    wanted[unhealthy_key(family.resources.device_type)] = ",".join(sick) or None
    if keys.register:
        wanted[keys.register] = rendered.register(node, snapshot.devices, legacy=style.legacy, cuttable=cuttable)
    if style.scores and keys.score:
        uuids = [device.uuid for device in snapshot.devices]
        wanted[keys.score] = rendered.scores(snapshot.links, uuids)
    return wanted


def _announced(
    node: NodeSide, snapshot: Snapshot, taken: AbstractSet[str], cuttable: Mapping[str, Cuttable]
) -> Mapping[str, str | None]:
    announced = node.announce(snapshot, taken)
    return {**announced, **node.partitions.announce(snapshot, cuttable)} if node.partitions else announced


def desired_annotations(sources: Sequence[FamilySource], style: Style, taken: AbstractSet[str]) -> Iterator[Desired]:
    """Each family's desired annotations. Where they cannot be written, the family's old ones stay."""
    written: dict[str, tuple[str, str | None]] = {}
    for source in sources:
        cuttable = source.cuttable.value if source.cuttable else None
        if source.cuttable and cuttable is None:
            yield Desired(
                source=source, pending=f"{source.family.resources.device_type}: its partitions are not known yet"
            )
            continue
        try:
            wanted = wanted_annotations(
                source.family, source.snapshot.value, style, taken, source.rendered, cuttable=cuttable
            )
            _require_own(source, wanted, sources, written)
        except HamiError as error:
            retry = isinstance(error, VendorError)
            yield Desired(source=source, problem=f"{source.family.resources.device_type}: {error}", retry=retry)
        except Exception as error:  # noqa: BLE001  # what the vendor reported does not fit what is made of it
            reported = source.errors.record("register", error)
            yield Desired(source=source, problem=f"{source.family.resources.device_type}: {reported}", retry=True)
        else:
            written |= {key: (source.vendor, value) for key, value in wanted.items()}
            yield Desired(source=source, wanted=wanted)


def fit_to_node(desired: Sequence[Desired], live: Mapping[str, str]) -> Fitted:
    """What of it fits on the node, whose annotations are ``live``.

    Scores go first, then whole families, the largest first: the API server would refuse the changes of all.
    """
    wanted = _merged(desired)
    total = _bytes({**live, **wanted})
    if total <= MAX_ANNOTATION_BYTES:
        return Fitted(wanted=wanted)
    scores = {one.source.family.rules.annotations.score for one in desired}
    kept = sorted(desired, key=lambda one: one.size)
    dropped: list[str] = []
    while True:
        wanted = {key: None if key in scores else value for key, value in _merged(kept).items()}
        if not kept or _bytes({**live, **wanted}) <= MAX_ANNOTATION_BYTES:
            return Fitted(wanted=wanted, total=total, dropped=tuple(dropped))
        dropped.append(kept.pop().source.family.resources.device_type)


def _merged(desired: Sequence[Desired]) -> Wanted:
    return {key: value for one in desired for key, value in one.wanted.items()}


def _bytes(annotations: Mapping[str, str | None]) -> int:
    return sum(len(key.encode()) + len((value or "").encode()) for key, value in annotations.items())


def _require_own(
    source: FamilySource,
    wanted: Mapping[str, str | None],
    sources: Sequence[FamilySource],
    written: Mapping[str, tuple[str, str | None]],
) -> None:
    """``WireError`` for what is no annotation, and for keys that another family or the scheduler uses."""
    own = source.family.rules.annotations.of_nodes
    others = {key for one in sources if one.vendor != source.vendor for key in one.family.rules.annotations.of_nodes}
    for key, value in wanted.items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise WireError(f"{shown(key)} cannot be the key of an annotation")
        vendor, before = written.get(key, (source.vendor, value))
        if vendor != source.vendor and before != value:
            raise WireError(f"{key} already has another value from vendor {vendor}")
        if key == NODE_LOCK or key in others - own:
            raise WireError(f"{key} is not this family's to write")
        if value is not None:
            _require_text(key, value)
        if not key.startswith(OWN) and key not in own:
            raise WireError(f"{key} is not among the annotations that the family declares")


def _require_text(key: str, value: object) -> None:
    if not isinstance(value, str):
        raise WireError(f"{key}: {shown(value)} is no text")
    try:
        bounded(value, key).encode()
    except UnicodeEncodeError as error:
        raise WireError(f"{key}: {error.reason} at {error.start}") from error


def live_node_view(node: Mapping[str, Any]) -> NodeView:
    """Read a v1 Node. One whose kubelet is silent, as after the node was named anew, offers nothing."""
    view = node_view(node)
    return replace(view, allocatable={}) if is_silent(node) else view


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """All that may be left on nodes: ``annotations`` by name, and those that begin with ``hami-plugin.io/``.

    ``locks`` are the ones among them that a scheduler holds while it binds, with their time. ``resources`` are those
    that a living daemon offers. Which labels are ours, one of the annotations says; taints are never.
    """

    annotations: frozenset[str]
    locks: Mapping[str, timedelta]
    handshakes: frozenset[str]
    resources: frozenset[str]

    @classmethod
    def of(cls, families: Iterable[Family]) -> Traces:
        known = tuple(families)
        rules = [family.rules.lock for family in known if family.rules.lock]
        locks = {rule.annotation: timedelta(seconds=rule.expires_s) for rule in rules}
        locks = {NODE_LOCK: timedelta(minutes=5), BIND_LOCK: timedelta(minutes=1), **locks}
        return cls(
            annotations=frozenset(key for family in known for key in family.rules.annotations.of_nodes) | locks.keys(),
            locks=locks,
            handshakes=frozenset(family.rules.annotations.handshake for family in known) - {""},
            resources=frozenset(family.resources.count for family in known),
        )

    def on(self, node: NodeView) -> tuple[str, ...]:
        """The annotations of the node that are left of us."""
        return tuple(sorted(key for key in node.annotations if key in self.annotations or key.startswith(OWN)))

    def needed(self, node: NodeView, *, now: datetime) -> Sequence[str]:
        """Why they may still be needed; empty where nothing lives on the node."""
        return (*self._offered(node), *self._held(node, now), *self._reported(node, now))

    def _offered(self, node: NodeView) -> Iterator[str]:
        for resource in sorted(self.resources):
            if node.allocatable.get(resource, "0") != "0":  # the kubelet writes counts of devices so
                yield f"a device plugin offers {node.allocatable[resource]} {resource} there"

    def _held(self, node: NodeView, now: datetime) -> Iterator[str]:
        for key, expires in self.locks.items():
            try:
                lock = parse_lock(node.annotations[key]) if key in node.annotations else None
            except WireError:
                continue
            if lock and now - lock.time < expires:
                whose = f"pod {lock.namespace}/{lock.pod}" if lock.pod else "a pod"
                yield f"a scheduler binds {whose} ({key})"

    def _reported(self, node: NodeView, now: datetime) -> Iterator[str]:
        """The time of a handshake is local to who wrote it; one of another time zone counts for nothing."""
        for key in sorted(self.handshakes & node.annotations.keys()):
            handshake = parse_handshake(node.annotations[key])
            written = handshake.time
            if handshake.state is HandshakeState.REPORTED and written:
                age = now.replace(tzinfo=None) - written
                if timedelta(0) <= age < ANSWER_TIMEOUT:
                    yield f"a daemon has answered {int(age.total_seconds())} s ago ({key})"


MAX_LABELS = 256
"""Of one node."""
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_KUBERNETES = re.compile(r"([^/]*\.)?(kubernetes|k8s)\.io/.*|[^/]*")
"""Keys that are never ours, whatever an annotation says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelling:
    """What to write to a node: ``labels`` and ``annotations``, None for what goes. ``foreign`` are keys of others."""

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()


def wanted_labels(sources: Iterable[FamilySource]) -> tuple[Mapping[str, str], bool]:
    """What the devices say, of each family in our words and in the vendor's; and whether all of them are known."""
    wanted: dict[str, str] = {}
    complete = True
    for source in sources:
        snapshot: Snapshot = source.snapshot.value
        if not snapshot.ready:
            complete = False
            continue
        wanted |= node_labels(f"{OWN}{label_value(source.family.resources.device_type)}", snapshot.devices)
        try:
            wanted |= source.family.node.labels(snapshot)
        except HamiError:  # logged and counted where it arose
            complete = False
    sound = {key: text for key, text in wanted.items() if _LABEL_KEY.fullmatch(key) and label_value(text) == text}
    return dict(sorted(sound.items())[:MAX_LABELS]), complete


def own_labels(node: NodeView) -> frozenset[str]:
    """The keys of labels that the daemon has written to the node."""
    keys = node.annotations.get(LABELS, "").split(",")[:MAX_LABELS]
    return frozenset(key for key in keys if _LABEL_KEY.fullmatch(key) and not _KUBERNETES.fullmatch(key))


def labelling(node: NodeView, wanted: Mapping[str, str], *, complete: bool) -> Labelling:
    """The changes after which the node has what is ``wanted``. Unless that is ``complete``, nothing is removed."""
    ours = own_labels(node)
    foreign = {key for key in wanted if key in node.labels and key not in ours}
    mine = {key: text for key, text in wanted.items() if key not in foreign}
    gone = ours - mine.keys() if complete else frozenset[str]()
    noted = ",".join(sorted((ours - gone) | mine.keys())) or None
    changes: dict[str, str | None] = {key: text for key, text in mine.items() if node.labels.get(key) != text}
    return Labelling(
        labels=changes | {key: None for key in gone if key in node.labels},
        annotations={LABELS: noted} if node.annotations.get(LABELS) != noted else {},
        foreign=tuple(sorted(key for key in foreign if node.labels[key] != wanted[key])),
    )


class LiveNode(Watched[NodeView | None]):
    """The newest known view of the node; None before the first answer, and while the node does not exist."""

    def __init__(self) -> None:
        super().__init__(None)

    def deliver(self, node: NodeView | None) -> None:
        """Take a view from the watch, or the answer to a patch of ours. An older one of the same node is dropped."""
        known = self.value
        if (
            node
            and known
            and node.uid == known.uid
            and revision(node.resource_version) < revision(known.resource_version)
        ):
            return
        self.set(node)


T = TypeVar("T")


class Registration:
    """Publishes all families' annotations of this node in one patch."""

    def __init__(
        self,
        cluster: NodeApi,
        sources: Sequence[FamilySource],
        *,
        node: LiveNode,
        events: EventRecorder,
        style: Style,
        now: Callable[[], datetime],
        taken: Callable[[], AbstractSet[str]] = frozenset,
        labelled: Callable[[], Iterable[FamilySource]] | None = None,
        backoff: Backoff | None = None,
        together: float = 0.1,
    ) -> None:
        self.problem = "not written yet"
        self.settled = False
        """Whether the node has all that was known when it was looked last, and nothing has changed since."""
        self._cluster = cluster
        self._sources = sources
        self._node = node
        self._events = events
        self._style = style
        self._now = now
        self._taken = taken
        self._labelled = labelled
        self._unlabelled: ClusterError | None = None
        self._foreign: tuple[str, ...] = ()
        self._backoff = backoff or Backoff(first=0.5, cap=30.0)
        self._together = together
        self._wake = asyncio.Event()
        self._beat = float("-inf")
        self._retry = False
        self._needs_taken = any(source.family.node.tells_taken for source in sources)

    async def run(self) -> None:
        """Compare and write for ever, woken by every change of a snapshot or of the node."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(
                    self._wake_by(source.snapshot), name=f"registration of {source.family.resources.device_type}"
                )
                if source.cuttable:
                    name = f"registration of {source.family.resources.device_type}'s places"
                    group.create_task(self._wake_by(source.cuttable), name=name)
            group.create_task(self._wake_by(self._node), name="registration of the node")
            group.create_task(self._publish(), name="registration")

    async def _wake_by(self, watched: Watched[T]) -> None:
        async for _value in watched.follow():
            self.settled = False
            self._wake.set()

    async def _publish(self) -> None:
        delays, retries = self._backoff.delays(), self._backoff.delays()
        again = self._needs_taken or any(self._reports(one.family) for one in self._sources)
        while True:
            self._wake.clear()
            pause = self._together  # changes that come together are written together
            try:
                await self._converge()
                self.settled = not (self.problem or self._wake.is_set())
                delays = self._backoff.delays()
            except ClusterError as error:
                self.problem = error.message
                log.warning("node annotations not written", problem=error.message, status=error.status)
                pause = max(next(delays), error.retry_after or 0.0)
                self._wake.set()
            await asyncio.sleep(pause)
            waits = [self._until_beat()] if again or self._labelled else []
            if self._retry:  # nothing need change for a vendor's code to succeed another time
                waits.append(next(retries))
            else:
                retries = self._backoff.delays()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(waits, default=None)):
                    await self._wake.wait()

    async def _converge(self) -> None:
        """One comparison. What the server confirms comes back as the live node; nothing else is remembered."""
        node = self._node.value
        if node is None:
            self.problem = "the node is not known from the API server yet"
            return
        wanted, problem = self._wanted(node.annotations)
        changes = {key: value for key, value in wanted.items() if node.annotations.get(key) != value}
        beat = self._heartbeat(written=bool(changes))
        changes |= beat
        if changes:
            self._node.deliver(await self._cluster.patch_node(changes))
            log.info("node annotations written", keys=sorted(changes))
        if beat:
            self._beat = time.monotonic()
        await self._label()
        known = wanted or any(source.snapshot.value.ready for source in self._sources)
        self.problem = problem or ("" if known else "no devices are known yet")

    async def _label(self) -> None:
        """Bring the node's labels up to date. Nothing depends on them: what fails is tried again."""
        node = self._node.value
        if node is None:
            return
        wanted, complete = wanted_labels(self._labelled()) if self._labelled else ({}, True)
        found = labelling(node, wanted, complete=complete)
        if found.foreign and found.foreign != self._foreign:
            others = ", ".join(found.foreign[:5])
            self._events.node("LabelsOfOthers", f"not written, as somebody else has set them: {others}")
        self._foreign = found.foreign
        if not (found.labels or found.annotations):
            self._unlabelled = None
            return
        try:
            self._node.deliver(await self._cluster.patch_node(found.annotations, labels=found.labels))
        except ClusterError as error:
            self._retry = True
            if self._unlabelled is None or self._unlabelled.message != error.message:
                log.warning("node labels not written", problem=error.message, status=error.status)
            self._unlabelled = error
        else:
            self._unlabelled = None
            log.info("node labels written", keys=sorted(found.labels))

    def _wanted(self, live: Mapping[str, str]) -> tuple[Wanted, str]:
        """What all families want, and why some are not written down, whose former annotations stay."""
        taken = self._taken() if self._needs_taken else frozenset()
        desired = list(desired_annotations(self._sources, self._style, taken))
        problems = [one.problem for one in desired if one.problem]
        for problem in problems:
            self._events.node("NotRegistered", problem)
        self._retry = any(one.retry for one in desired)
        patch = fit_to_node([one for one in desired if one.wanted], live)
        if patch.problem:
            self._events.node("AnnotationsTooLarge", patch.problem)
        if patch.dropped:
            problems.append(patch.problem)
        problems += [one.pending for one in desired if one.pending]
        return patch.wanted, "; ".join(problems)

    def _heartbeat(self, *, written: bool) -> dict[str, str | None]:
        """HAMi 2.7's scheduler forgets a node that does not report itself; later ones do so with some families only."""
        asked = [source for source in self._sources if self._reports(source.family)]
        if not asked or (not written and time.monotonic() - self._beat < self._style.heartbeat):
            return {}
        present = [s.family for s in asked if s.snapshot.value.ready and s.snapshot.value.devices]
        return {family.rules.annotations.handshake: render_answer(self._now()) for family in present}

    def _until_beat(self) -> float:
        """Seconds to the next heartbeat, counted from the last one: what changes meanwhile does not put it off."""
        left = self._beat + self._style.heartbeat - time.monotonic()
        return left if left > 0 else self._style.heartbeat

    def _reports(self, family: Family) -> bool:
        return bool(family.rules.annotations.handshake) and (self._style.legacy or family.node.reports)
