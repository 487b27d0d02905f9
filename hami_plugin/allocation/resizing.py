"""How much of its devices a container may use, changed while it runs: all of it, or nothing.

A resize is four steps: the journal has the intent, the vendor writes the container's limits, the pod's annotation says
the new amounts, and the journal has them. Until then the larger of old and new counts for everybody else. If a step
fails, the ledger has what was before again, and the limits and the annotation follow it. They do that also later: what
the ledger has of a share that was ``resized`` is written to the container after each of its starts, and to the pod
whenever it says otherwise. A daemon that was killed in between leaves the intent; the next one goes by the annotation.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from hami_plugin.allocation.capacity import Capacity, DeviceFacts, DeviceTable, NodeState
from hami_plugin.allocation.identity import HeldShare, Resize
from hami_plugin.errors import ClusterError, HamiError, WireError
from hami_plugin.model.placement import Grant
from hami_plugin.model.ports import NodeApi
from hami_plugin.model.views import PodView
from hami_plugin.node_status.registration import FamilySource
from hami_plugin.process.log import logger
from hami_plugin.protocol.pods import (
    ALL_CORES,
    MAX_MEMORY,
    RESIZE,
    RESIZE_GRANTED,
    RESIZE_REFUSED,
    Amounts,
    Question,
    larger,
    parse_resize,
    with_grants,
)

log = logger(__name__)

DEADLINE_S = 10.0
"""For each write of the journal or of the pod."""
MAX_NAMED = 5
PAUSE_S = 0.05
"""Between looks at the pods, which may change often."""

Write = Callable[[HeldShare, Sequence[Grant]], Awaitable[None]]
"""Holds a container that runs to these amounts. ``HamiError`` where that cannot be; then it is held to what it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRequest(Amounts):
    """Whose container is to have them."""

    namespace: str
    pod: str


def parse_resize_request(document: Mapping[str, Any]) -> ResizeRequest:
    """A wish as JSON has it. ``HamiError`` says what is wrong with it."""
    names = {key: document.get(key, "") for key in ("namespace", "pod", "container")}
    amounts = {"memory": MAX_MEMORY, "cores": ALL_CORES}
    unknown = sorted(set(document) - {*names, *amounts})
    if unknown:
        raise HamiError(f"nobody knows {', '.join(unknown)[:80]} here", hint="say memory and cores")
    for key, name in names.items():
        if not isinstance(name, str) or len(name) > 253 or (key != "container" and not name):
            raise HamiError(f"{key} {name!r:.80} is no name")
    for key, most in amounts.items():
        value = document.get(key)
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            raise HamiError(f"{key} {value!r:.40} is not from 1 to {most}")
    if document.get("memory") is None and document.get("cores") is None:
        raise HamiError("nothing is to change", hint="say how much memory or how many cores it is to have")
    return ResizeRequest(**names, memory=document.get("memory"), cores=document.get("cores"))


class Resizer:
    """Changes one share after the other. ``counts`` are the outcomes so far."""

    def __init__(self, node: NodeState, sources: Sequence[FamilySource], cluster: NodeApi, write: Write) -> None:
        self.questions: Sequence[Question] = ()
        self.counts: Counter[str] = Counter({"done": 0, "refused": 0, "undone": 0})
        self.closed = ""
        """Why nothing can be resized now; empty while it can."""
        self._node = node
        self._sources = {source.family.resources.count: source for source in sources}
        self._cluster = cluster
        self._write = write
        self._turn = asyncio.Lock()
        self._waiting = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._waiting

    async def run(self) -> None:
        """Do what this project's scheduler has granted to pods, for ever. What cannot be done is told to the pod."""
        pods = self._node.pods
        while True:
            seen = pods.changes.version
            for pod in [one for one in pods.pods if RESIZE_GRANTED in one.annotations and one.phase == "Running"]:
                if not (self.closed or self._node.outdated()):
                    await self._granted(pod)
            await pods.changes.changed(seen)
            await asyncio.sleep(PAUSE_S)

    async def _granted(self, pod: PodView) -> None:
        """Both annotations go with the new amounts, or with the reason why there are none."""
        text = pod.annotations[RESIZE_GRANTED]
        answered: dict[str, str | None] = {RESIZE_GRANTED: None, RESIZE_REFUSED: None}
        if pod.annotations.get(RESIZE) == text:  # else its user wants something else by now
            answered[RESIZE] = None
        try:
            amounts = parse_resize(text)
            wish = ResizeRequest(
                namespace=pod.namespace,
                pod=pod.name,
                container=amounts.container,
                memory=amounts.memory,
                cores=amounts.cores,
            )
            await self.resize(wish, answered)
        except HamiError as error:
            self._node.events.pod(pod, "ResizeRefused", str(error), warning=True)
            refused = {RESIZE_GRANTED: None, RESIZE_REFUSED: str(error), **self._annotations(pod)}
            with suppress(ClusterError):  # its next version is looked at again
                await self._tell(pod, refused)

    async def resize(self, wish: ResizeRequest, beside: Mapping[str, str | None] | None = None) -> Mapping[str, Any]:
        """Do it, and answer what was before and after. ``HamiError``: nothing has changed, and what to change.

        ``beside`` is what the pod's annotations say with it.
        """
        self._waiting += 1
        try:
            async with self._turn:
                return await self._resize(wish, beside or {})
        finally:
            self._waiting -= 1

    async def _resize(self, wish: ResizeRequest, beside: Mapping[str, str | None]) -> Mapping[str, Any]:
        try:
            held, pod, question = self._found(wish)
            after = tuple(map(wish.of, held.grants))
            text = self._checked(held, pod, question, after)
        except HamiError:
            self.counts["refused"] += 1
            raise
        changes = {question.allocated: text, **beside}
        if after != held.grants:
            task = asyncio.ensure_future(self._carried_out(held, pod, after, changes))
            await asyncio.shield(task)  # who asked may go away; what was begun is ended
        elif beside:
            await self._tell(pod, changes)
        self.counts["done"] += 1
        return _document(held, after)

    async def _carried_out(
        self, held: HeldShare, pod: PodView, after: tuple[Grant, ...], changes: Mapping[str, str | None]
    ) -> None:
        """Step by step. Whatever fails, the ledger has what was before, and the rest follows."""
        ledger, reached = self._node.ledger, False
        change = Resize(before=held.grants, after=after)
        try:
            ledger.change(replace(held, grants=tuple(map(larger, held.grants, after)), resize=change))
            await self._on_file()
            reached = True
            await self._write(held, after)
            await self._tell(pod, changes)
            self._settle(held, after)
            await self._on_file()
        except HamiError as error:
            self.counts["undone"] += 1
            await self._undo(held, reached=reached)
            log.warning("resize undone", pod=pod.key, container=held.container, why=str(error))
            raise
        message = f"container {held.container} has {_words(after)}, and had {_words(held.grants)}"
        log.info("resized", pod=pod.key, container=held.container, now=_words(after), before=_words(held.grants))
        self._node.events.pod(pod, "Resized", message, warning=False)

    async def _undo(self, held: HeldShare, *, reached: bool) -> None:
        """``reached``: the container or the pod may have the new amounts."""
        if not reached:
            now = self._node.ledger.held.get(held.key, held)
            self._node.ledger.change(replace(now, grants=held.grants, resize=None))
            return
        self._settle(held, held.grants)
        try:
            await self._write(held, held.grants)
        except HamiError as error:  # who reads its usage tries again
            log.warning("limits are written back later", container=held.container, why=str(error))

    def _settle(self, held: HeldShare, grants: tuple[Grant, ...]) -> None:
        """From now on it is so. The pod is told if it says otherwise."""
        now = self._node.ledger.held.get(held.key, held)
        self._node.ledger.change(replace(now, grants=grants, resized=True, resize=None))
        self._node.settlement.note(held.uid)

    async def _on_file(self) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                await self._node.ledger.written()
        except (OSError, TimeoutError) as error:
            why = str(error) or f"no answer within {DEADLINE_S:g} s"
            raise HamiError(f"the journal cannot be written: {why}", hint="make room in stateDir") from error

    async def _tell(self, pod: PodView, changes: Mapping[str, str | None]) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                self._node.pods.patched(await self._cluster.patch_pod(pod, changes))
        except TimeoutError as error:
            raise ClusterError(f"the API server did not take it within {DEADLINE_S:g} s", hint="ask again") from error

    def recover(self) -> None:
        """End what a killed daemon has begun, once the node's pods are known: as far as its pod says so, it is done."""
        for held in [one for one in self._node.ledger.held.values() if one.resize]:
            change, pod, question = held.resize, self._node.pods.get(held.uid), self._question(held.resource)
            assert change
            done = pod is not None and question is not None and _says(pod, question, held, change.after)
            log.warning(
                "resize of a former life", pod=f"{held.namespace}/{held.pod}", ended="done" if done else "undone"
            )
            self._settle(held, change.after if done else change.before)

    def annotations(self, pod: PodView) -> Mapping[str, str]:
        """What a pod's annotations are to say of its shares that were resized."""
        if RESIZE_GRANTED in pod.annotations:
            return {}  # the scheduler counts the larger amounts until it is done
        return self._annotations(pod, resized=True)

    def _annotations(self, pod: PodView, *, resized: bool = False) -> Mapping[str, str]:
        """The pod's decision as the ledger has it. ``resized``: only of what was."""
        changes: dict[str, str] = {}
        for held in self._node.ledger.held.of_pod(pod.uid):
            question = self._question(held.resource)
            if (resized and not held.resized) or held.resize or held.undecided or question is None:
                continue
            seen = replace(pod, annotations={**pod.annotations, **changes})
            try:
                changes[question.allocated] = with_grants(seen, question, held.container, held.grants)
            except WireError as error:
                log.warning("what a pod has is not written to it", pod=pod.key, why=error.message)
        return changes

    def _question(self, resource: str) -> Question | None:
        return next((one for one in self.questions if one.resource == resource), None)

    def _found(self, wish: ResizeRequest) -> tuple[HeldShare, PodView, Question]:
        """The share that is meant, of a pod that runs."""
        if self.closed:
            raise HamiError(self.closed, hint="ask again")
        if why := self._node.outdated():
            raise HamiError(f"what the node's pods have is not known: {why}", hint="ask again when it answers")
        name = f"{wish.namespace}/{wish.pod}"
        pod = self._node.pods.named(wish.namespace, wish.pod)
        if pod is None:
            raise HamiError(f"no pod {name} is on this node", hint="ask the daemon of the pod's own node")
        if pod.phase != "Running" or pod.deleted:
            state = "ends" if pod.deleted else f"is {pod.phase}"
            raise HamiError(f"pod {name} {state}, and does not run", hint="wait until it runs")
        held = self._meant(pod, wish)
        question = self._question(held.resource)
        if question is None or held.undecided or question.allocated not in pod.annotations:
            raise HamiError(f"no scheduler has decided what {name} has", hint="have HAMi's scheduler place it")
        return held, pod, question

    def _meant(self, pod: PodView, wish: ResizeRequest) -> HeldShare:
        shares = self._node.ledger.held.of_pod(pod.uid)
        found = [one for one in shares if one.container == (wish.container or one.container) and not one.init]
        names = ", ".join(sorted({one.container for one in shares if not one.init})[:MAX_NAMED])
        if not found:
            which = f"container {wish.container} of " if wish.container else ""
            raise HamiError(
                f"{which}pod {pod.key} has no devices of this daemon",
                hint=f"those that have some: {names}"
                if names
                else "devices of ResourceClaims stay as they were claimed",
            )
        if len({one.container for one in found}) > 1:
            raise HamiError(f"several containers of pod {pod.key} have devices", hint=f"say which: {names}")
        able = [one for one in found if one.resource in self._sources and self._sources[one.resource].family.node.limit]
        if not able:
            raise HamiError(
                f"the limits of {found[0].resource} are fixed when a container starts", hint="make a new pod"
            )
        if any(one.resize for one in able):
            raise HamiError(f"pod {pod.key} is being resized", hint="ask again")
        return able[0]

    def _checked(self, held: HeldShare, pod: PodView, question: Question, after: Sequence[Grant]) -> str:
        """The annotation with the new amounts, if the devices have them."""
        source = self._sources[held.resource]
        devices = DeviceTable(source.family, None, source.snapshot).now()
        for problem in _too_much(held, after, devices):
            raise HamiError(problem, hint="ask for less")
        if why := Capacity(source.family, question, self._node).beyond(held, pod, after, devices):
            raise HamiError(why, hint="ask for less, or end one of them")
        return with_grants(pod, question, held.container, after)


def _too_much(held: HeldShare, after: Sequence[Grant], devices: Mapping[str, DeviceFacts]) -> Iterator[str]:
    """What cannot be, whoever else has something."""
    for before, grant in zip(held.grants, after, strict=True):
        facts = devices.get(grant.uuid)
        if facts is None:
            yield f"{grant.uuid} is not on this node any more"
        elif grant.memory > facts.info.devmem:
            yield f"{grant.uuid} has {facts.info.devmem} MiB, and container {held.container} is to have {grant.memory}"
        elif not facts.device.health.offered and (grant.memory > before.memory or grant.cores > before.cores):
            yield f"{grant.uuid} is {facts.device.health.value}, and no more of it is handed out"


def _says(pod: PodView, question: Question, held: HeldShare, grants: Sequence[Grant]) -> bool:
    try:
        return with_grants(pod, question, held.container, grants) == pod.annotations.get(question.allocated)
    except WireError:
        return False


def _words(grants: Sequence[Grant]) -> str:
    parts = [f"{one.memory or 'all'} MiB and {one.cores or 100} % of {one.uuid}" for one in grants[:MAX_NAMED]]
    return ", ".join(parts) + (f" and {more} more" if (more := len(grants) - MAX_NAMED) > 0 else "")


def _document(held: HeldShare, after: Sequence[Grant]) -> Mapping[str, Any]:
    return {
        "resized": True,
        "why": "",
        "namespace": held.namespace,
        "pod": held.pod,
        "container": held.container,
        "devices": [
            {
                "uuid": new.uuid,
                "memory": {"before": old.memory, "after": new.memory},
                "cores": {"before": old.cores, "after": new.cores},
            }
            for old, new in zip(held.grants, after, strict=True)
        ],
    }
