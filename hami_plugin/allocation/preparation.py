"""What a container receives for its grants, with the host made ready for it before the answer is given."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cdi.spec import ContainerEdits
from hami_plugin.allocation.capacity import DeviceFacts, NodeState
from hami_plugin.allocation.identity import HeldShare
from hami_plugin.allocation.settlement import Refusals
from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.host.paths import HostFiles, make_shared_directory, remove_files, write_shared
from hami_plugin.model.delivery import ANSWERED_FOR, Answer, Delivery, Way, container_key
from hami_plugin.model.device import Snapshot
from hami_plugin.model.placement import Assignment, Share
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.process.concurrency import StuckError, Watched, WorkThread
from hami_plugin.process.log import logger
from hami_plugin.sdk import Family, Leftovers, Partition
from hami_plugin.vendor_boundary.guard import Guard, VendorErrors

if TYPE_CHECKING:  # loaded where cards are cut
    from hami_plugin.partitions.manager import Partitions


def build_answer(
    delivery: Delivery,
    assignment: Assignment,
    own: ContainerEdits,
    described: ContainerEdits,
    devices: Sequence[str] | None = None,
) -> Answer:
    """``own`` travels in any case; ``described`` is what the devices add where the answer must carry it itself.

    ``devices`` are those that CDI specs describe, if these are not the assignment's.
    """
    uuids = [share.device.uuid for share in assignment.shares] if devices is None else devices
    to = container_key(assignment.pod.uid, assignment.container.name)
    answer = deliver_answer(delivery, uuids, own, described, to=to)
    return replace(answer, annotations={ANSWERED_FOR: to, **answer.annotations})


def deliver_answer(
    delivery: Delivery, devices: Sequence[str], own: ContainerEdits, described: ContainerEdits, *, to: str
) -> Answer:
    """The same, whoever it is for. ``to`` tells answers apart that the kubelet puts together for one container."""
    names = tuple(map(delivery.name, devices)) if delivery.cdi else ()
    annotations = {_key(delivery, to): ",".join(names)} if names and Way.CDI_ANNOTATIONS in delivery.ways else {}
    return Answer(
        edits=described.merged(own) if Way.DEVICE_SPECS in delivery.ways else own,
        annotations=annotations,
        cdi_devices=names if Way.CDI_CRI in delivery.ways else (),
    )


def _key(delivery: Delivery, to: str) -> str:
    """The same for the same container, so that an Allocate that is repeated gives the same answer; other families'
    differ, since the kubelet puts the annotations of all of them together.
    """
    return f"{delivery.annotation_prefix}hami-plugin_{uuid.uuid5(uuid.NAMESPACE_OID, f'{delivery.kind}/{to}')}"


def needs_host(family: Family, snapshot: Snapshot) -> bool:
    """Whether containers may have a device here whose limits depend on the host's files."""
    return not snapshot.devices or any(family.node.limited(device) for device in snapshot.devices)


log = logger(__name__)

REMOVAL_S = 5.0
LOOK_S = 2.0


class HostCheck:
    """Looks again and again for what one family's containers would miss on this host, and says what is new.

    ``problem`` is empty while they would miss nothing. The family is asked on a thread, so it need not be guarded.
    """

    def __init__(
        self,
        family: Family,
        *,
        snapshot: Watched[Snapshot],
        host: HostFiles,
        events: EventRecorder,
        errors: VendorErrors,
        period: float = 5.0,
    ) -> None:
        self.resource = family.resources.count
        self.snapshot = snapshot
        self.problem = ""
        self._family = family
        self._host = host
        self._events = events
        self._errors = errors
        self._period = period
        self._thread = WorkThread(f"host of {self.resource}")
        self._asked: asyncio.Future[str] | None = None

    async def run(self) -> None:
        """Until the snapshot is closed. What becomes of devices changes nothing of the host."""
        while not self.snapshot.closed:
            self._report(await self._look())
            due = time.monotonic() + self._period
            while not self.snapshot.closed and (left := due - time.monotonic()) > 0:
                await self.snapshot.changed(self.snapshot.version, timeout=left)
        self._thread.close()

    async def _look(self) -> str:
        """One look, if anything here needs it. The next one begins when the one before has come back."""
        if not needs_host(self._family, self.snapshot.value):
            return ""
        asked = self._asked or self._thread.start(lambda: self._family.node.host_problem(self._host))
        done, _waiting = await asyncio.wait([asked], timeout=LOOK_S)
        self._asked = None if done else asked
        if not done:
            return self._wrong(StuckError(f"no answer within {LOOK_S:g} s"))
        try:
            problem = asked.result()
        except Exception as error:  # noqa: BLE001  # the line between one vendor and all others
            return str(error) if isinstance(error, HamiError) else self._wrong(error)
        return problem if isinstance(problem, str) else self._wrong(TypeError(f"{problem!r:.64} is no text"))

    def _wrong(self, error: Exception) -> str:
        return str(self._errors.record("host problem", error))

    def _report(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("host not prepared", resource=self.resource, problem=problem)
            self._events.node("HostNotPrepared", problem)
        if self.problem and not problem:
            log.info("host is prepared again", resource=self.resource)
        self.problem = problem


class Preparation:
    """One family's. ``RefusedError`` with the reason where the grants cannot be carried out on this host.

    ``partitions`` cuts cards for the containers, if the family's are cut.
    """

    def __init__(
        self,
        family: Family,
        resource: str,
        node: NodeState,
        guard: Guard,
        partitions: Partitions | None = None,
        *,
        snapshot: Watched[Snapshot],
    ) -> None:
        self._family = family
        self._partitions = partitions
        self._resource = resource
        self._snapshot = snapshot
        self._host = node.host
        self._observer = node.observer
        self._guard = guard
        self._refusals = Refusals(node.settlement, node.events)
        self._thread = WorkThread(f"starts of {resource}")

    async def require(self) -> None:
        """``RefusedError`` while the host lacks what containers need; the kubelet will ask again.

        A runtime need not miss a mount's source: containerd makes an empty directory of it, and the container would run
        without limits.
        """
        if not needs_host(self._family, self._snapshot.value):
            return
        problem = await self._guard.ask("host problem", partial(self._family.node.host_problem, self._host))
        if problem:
            log.warning("container start refused", resource=self._resource, why=problem)
            self._observer.container_start(self._resource, RefusalReason.NOT_PREPARED)
            raise RefusedError(
                RefusalReason.NOT_PREPARED, problem, code="UNAVAILABLE", hint="the kubelet tries again by itself"
            )

    async def clean(self, starting: Iterable[tuple[str, str]]) -> None:
        """Remove what former starts have left of these containers, each by its pod's UID and its name.

        None of them runs: the kubelet asks before it starts one, and one of several is an init container that has
        ended, or the one that it left its devices to. All of it happens on one thread, so that a removal that came
        late is done before the next start of its container is allowed.
        """
        starting = list(starting)
        await self._require_partitions(starting)
        left = [self._family.node.leftovers(uid, container, self._host.paths) for uid, container in starting]
        for each in left:
            if each.directory is None:
                continue
            try:
                await self._thread.call(partial(_remove, each, self._host.seen(each.directory)), REMOVAL_S)
            except (OSError, StuckError) as error:
                message = f"what a former start left in {each.directory} cannot be removed: {error}"
                raise RefusedError(
                    RefusalReason.NOT_PREPARED, message, code="UNAVAILABLE", hint="the kubelet tries again by itself"
                ) from error

    async def _require_partitions(self, starting: Iterable[tuple[str, str]]) -> None:
        """``RefusedError`` for a container whose partition is gone, as after a reset of its card, or not described."""
        for uid, container in starting if self._partitions else ():
            assert self._partitions
            gone = self._partitions.lost(uid, container)
            try:
                await self._partitions.described(uid, container)
            except HamiError as error:
                raise RefusedError(RefusalReason.NOT_PREPARED, str(error), code="UNAVAILABLE") from error
            if gone:
                self._observer.container_start(self._resource, RefusalReason.NOT_PREPARED)
                raise RefusedError(RefusalReason.NOT_PREPARED, gone, hint="delete the pod, so that it gets another one")

    def assigned(
        self, held: HeldShare, pod: PodView, container: ContainerView, devices: Mapping[str, DeviceFacts]
    ) -> Assignment:
        """Each grant beside its device, in device order: the order in which the container will number them."""
        shares: list[Share] = []
        for grant in held.grants:
            if grant.uuid not in devices:
                message = f"the decision for pod {pod.key} names {grant.uuid}, which is not on this node"
                raise self._refusals.failed(RefusalReason.UNKNOWN_DEVICE, message, pod)
            device = devices[grant.uuid].device
            if not device.health.offered:
                message = (
                    f"{grant.uuid} for pod {pod.key} is {device.health}: {device.reason} {device.message}".rstrip()
                )
                raise self._refusals.failed(RefusalReason.UNHEALTHY_DEVICE, message, pod)
            shares.append(Share(grant=grant, device=device))
        shares.sort(key=lambda share: share.device.order)
        return Assignment(pod=pod, container=container, shares=tuple(shares))

    async def answer(self, assignment: Assignment) -> Answer:
        """What the container receives. Its directories and files are there when this returns.

        The partitions that it needs are written down as its own before the kubelet hears of them.
        """
        cut = self._partitions
        try:
            made = await cut.prepared(assignment) if cut else ()
            answer = await self._guard.ask("inject", partial(self._prepared, assignment, made))
            if cut and made:
                await cut.handed_out(assignment)
        except RefusedError as refusal:
            failed = self._refusals.failed(
                refusal.reason, refusal.message, assignment.pod, code=refusal.code, hint=refusal.hint
            )
            raise failed from refusal
        except (OSError, HamiError) as error:  # also a device that cannot be described, as its node has gone
            raise self.unprepared(assignment.pod, assignment.container, error) from error
        return answer

    def unprepared(self, pod: PodView, container: ContainerView, error: OSError | HamiError) -> RefusedError:
        """The refusal for what this host could not do for a container."""
        message = f"the host could not be prepared for container {container.name} of pod {pod.key}: {error}"
        return self._refusals.failed(RefusalReason.NOT_PREPARED, message, pod)

    def _prepared(self, assignment: Assignment, made: Sequence[Partition]) -> Answer:
        """On the vendor's thread: all that touches the host for one container."""
        node, host = self._family.node, self._host
        described, uuids = ContainerEdits(), None
        if made and node.partitions:
            injection, uuids = node.partitions.inject(assignment, made, host), [one.uuid for one in made]
        else:
            injection = node.inject(assignment, host)
            if Way.DEVICE_SPECS in node.delivery.ways:  # the answer carries what a runtime would find in CDI specs
                devices = (node.device_edits(share.device, host) for share in assignment.shares)
                described = node.shared_edits(host).merged(*devices)
        answer = build_answer(node.delivery, assignment, injection.edits, described, uuids)
        for directory in injection.directories:
            make_shared_directory(host.seen(directory))
        for path, text in injection.files.items():
            write_shared(host.seen(path), text)
        return answer


def _remove(left: Leftovers, directory: Path) -> None:
    """A directory that is missing is made: a runtime would make one that no other user may write to."""
    make_shared_directory(directory)
    remove_files(directory, left.names, left.suffix)
