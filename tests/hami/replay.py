"""Why a whole decision differs from HAMi's: it is followed step by step, and each step is a question of its own.

On each node HAMi's own choices are booked one after the other. A step in which we would choose otherwise must be
explained by a difference about such a question. What follows from HAMi's choices (the node's score, the node that is
taken, what is written to the pod) we must then say as HAMi does, or otherwise by a difference about that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, islice

from hami_plugin.scheduler.engine.devices import DeviceState, Given, Invalid, NodeInfo
from hami_plugin.scheduler.engine.filter import NodeScore, node_order, node_score, rank_nodes
from hami_plugin.scheduler.engine.fit import (
    CycleState,
    Demands,
    Granted,
    PodFit,
    Refused,
    Step,
    fit,
    fit_pod,
    in_order,
    pod_demands,
    refusal,
)
from hami_plugin.scheduler.engine.node_info import patch
from hami_plugin.scheduler.engine.policy import Weights, score, weights
from tests.hami import values
from tests.hami.catalog import Catalog
from tests.hami.compare import compared, excused
from tests.hami.decisions import CIRCUMSTANCES, NODE_ORDER, Situation, requests, situation, timeless
from tests.hami.parity import Difference, Json


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """What a pod asks for in a recorded situation, and how its devices are to be weighed."""

    asked: Situation
    wanted: Demands
    weighing: Weights

    def walk(self, node_info: NodeInfo) -> CycleState:
        """The way over one node, before its first step."""
        pod, policies = self.asked.pod, self.asked.rules
        return CycleState(pod=pod, policies=policies, node_info=node_info, weights=self.weighing, options=CIRCUMSTANCES)

    def finish(self, walk: CycleState, other: Mapping[int, Granted] | None = None) -> str:
        """Walk on to the end, with other outcomes at some steps. The reason why it ends early, or nothing."""
        for container, asked in zip(self.asked.pod.containers, self.wanted, strict=True):
            for device_type, demand in asked.items():
                number = len(walk.steps)
                outcome = walk.fit(container, demand)
                outcome = (other or {}).get(number, outcome)
                if isinstance(outcome, Refused):
                    return refusal(outcome, walk.node_info.node)
                if conflict := walk.reserve(device_type, outcome.grants):
                    return conflict
            walk.close(container)
        return ""

    def question(self, step: Step, states: Sequence[DeviceState] | None = None) -> Json:
        """The step as a question about one container, in the recorder's words."""
        context = step.context
        known = self.asked.known[context.demand.device_type]
        given = {device_type: pieces for device_type, pieces in context.given.items() if any(pieces)}
        return {
            "fn": "fit",
            "vendor": context.demand.device_type,
            "devices": [values.device(state) for state in states or step.states],
            "request": known.parity.request(context.demand, known.parity.unset_percent),
            "pod": self.asked.question["pod"],
            "node": self.node(context.node.name),
            "pair_scores": values.scores(context.links),
            "allocated": {
                device_type: [[values.granted(grant) for grant in piece] for piece in pieces]
                for device_type, pieces in given.items()
            },
            "apply": True,
        }

    def node(self, name: str) -> Json:
        """A node as it was recorded."""
        found: Json = next(node for node in self.asked.question["nodes"] if node["name"] == name)
        return found

    def idle(self, key: str, text: str, placed: PodFit) -> bool:
        """Whether HAMi says here that the pod has nothing of a family: an empty entry for each container."""
        empty = {device_type: tuple(() for _ in self.asked.pod.containers) for device_type in self.asked.known}
        idle = [family for family in self.asked.families if not any(placed.given.get(family.resources.device_type, ()))]
        nothing = [timeless(family.rules.patch(family, self.asked.pod, empty)).get(key) for family in idle]
        return text in nothing or (text == "null" and "[]" in nothing)


EQUAL = "D-221"
"""Devices or nodes that are equally full but for the last digits of HAMi's 32-bit numbers."""

CLOSE = 1e-4
MAX_TRIED = 200

Answer = Callable[[Json], Json]
Consistent = Callable[[Json, Json], bool]


class Unexplained(Exception):  # noqa: N818  # control flow within this module, no error of anybody
    """There is no written reason for a step of HAMi's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reasons:
    """Those of one decision. ``known`` are the written differences; ``answer`` is ours to a question, and
    ``consistent`` whether such an answer is sound.
    """

    course: Course
    known: Sequence[Difference]
    answer: Answer
    consistent: Consistent

    def of(self, question: Json, ours: Json, theirs: Json) -> str:
        """The first written difference by which these answers differ; ``Unexplained`` when there is none."""
        return _first(self._all(question, ours, theirs))

    def of_choice(self, step: Step, grants: Sequence[Json]) -> tuple[str, ...]:
        """Why HAMi granted this at a step; nothing where we would."""
        question = self.course.question(step)
        ours = self.answer(question)
        theirs = {"ok": True, "reason": "", "devices": {step.context.demand.device_type: grants}, "applied": grants}
        if _chosen(ours) == _chosen(theirs):
            return ()
        return (_first(chain(self._all(question, ours, theirs), self._nearly_equal(step, theirs))),)

    def of_refusal(self, node_info: NodeInfo, why: str) -> str:
        """HAMi's refusal of a node has a reason at one of our steps; or it follows from another choice at one."""
        walk = self.course.walk(node_info)
        self.course.finish(walk)
        for step in walk.steps:
            question = self.course.question(step)
            for one in self._all(question, self.answer(question), {"ok": False, "reason": why}):
                return one
        return _first(self._after_another_choice(node_info, walk.steps, why))

    def _nearly_equal(self, step: Step, theirs: Json) -> Iterator[str]:
        """HAMi's choice is ours when devices that are equally full but for rounding change places."""
        scores = {state.uuid: score(state, [step.context.demand], self.course.weighing) for state in step.states}
        his = {grant["uuid"] for grant in theirs["applied"]}
        taken = {state.uuid: (state.slots, state.memory, state.cores) for state in step.states}
        close = {
            one
            for one, other in combinations(scores, 2)
            if abs(scores[one] - scores[other]) < CLOSE and taken[one] != taken[other]
        }
        policy = self.course.asked.rules[step.context.demand.device_type]
        for nudge in (CLOSE, -CLOSE) if close else ():
            moved = {uuid: value + nudge * (uuid in his) for uuid, value in scores.items()}
            standing = in_order(policy, step.states, step.context, lambda state: moved[state.uuid])  # noqa: B023  # used at once
            if _chosen(self.answer(self.course.question(step, standing))) == _chosen(theirs):
                yield EQUAL

    def _after_another_choice(self, node_info: NodeInfo, steps: Sequence[Step], why: str) -> Iterator[str]:
        for number, step in enumerate(steps):
            if isinstance(step.outcome, Refused):
                return
            question = self.course.question(step)
            able = [verdict.state for verdict in step.outcome.verdicts if verdict.reason is None]
            policy, count = self.course.asked.rules[step.context.demand.device_type], step.context.demand.count
            for few in islice(combinations(able, count), MAX_TRIED):
                other = fit(policy, few, step.context)
                if not isinstance(other, Granted):
                    continue
                grants = [values.granted(grant) for grant in other.grants]
                theirs = {
                    "ok": True,
                    "reason": "",
                    "devices": {step.context.demand.device_type: grants},
                    "applied": grants,
                }
                walk = self.course.walk(node_info)
                if self.course.finish(walk, {number: other}) == why:
                    yield from self._all(question, self.answer(question), theirs)

    def _all(self, question: Json, ours: Json, theirs: Json) -> Iterator[str]:
        if not self.consistent(question, ours):
            return
        for one in self.known:
            if excused(one, question, ours, theirs):
                yield one.id


def _first(ids: Iterator[str]) -> str:
    found = next(ids, None)
    if found is None:
        raise Unexplained
    return found


def _chosen(answer: Json) -> list[Json] | None:
    """Which devices, and how much of them is booked; None for a refusal."""
    if not answer["ok"]:
        return None
    told = {"uuid": "", "idx": 0, "type": "", "usedmem": 0, "usedcores": 0}
    return [{name: grant.get(name, zero) for name, zero in told.items()} for grant in answer["applied"]]


PADDING = "D-220"
"""HAMi forgets the entries of containers without devices, or writes entries for families without any."""

OF_DECISIONS = (PADDING, EQUAL)


def explained(
    question: Json,
    ours: Json,
    theirs: Json,
    catalog: Catalog,
    *,
    known: Sequence[Difference],
    answer: Answer,
    consistent: Consistent,
) -> tuple[str, ...]:
    """The ids of all differences by which this decision differs, if every part of it has one; else none.

    Ours is followed in the same way first: it must be what its own steps lead to.
    """
    asked = situation(question, catalog)
    wanted, weighing = pod_demands(asked.pod, asked.rules), weights(asked.pod.annotations)
    if isinstance(wanted, Invalid) or isinstance(weighing, Invalid) or ours["err"]:
        return ()
    course = Course(asked=asked, wanted=wanted, weighing=weighing)
    mine, replay = (
        _Replay(
            course=course,
            theirs=decision,
            reasons=Reasons(course=course, known=excuses, answer=answer, consistent=consistent),
        )
        for decision, excuses in ((ours, ()), (theirs, known))
    )
    try:
        mine.follow()
        replay.follow()
        replay.compare_best(ours)
    except Unexplained:
        return ()
    if mine.ids:
        return ()
    # A difference in a step says more than the padding that often comes with it.
    return tuple(sorted(dict.fromkeys(replay.ids), key=lambda found: found == PADDING))


@dataclass(kw_only=True, slots=True)
class _Replay:
    course: Course
    theirs: Json
    reasons: Reasons
    ids: list[str] = field(default_factory=list)

    def follow(self) -> None:
        """HAMi's decision from its first step to its last word."""
        said = [requests(self.course.asked.known, one) for one in self.course.wanted]
        if compared({"fn": "schedule"}, {"requests": said}, {"requests": self.theirs["requests"]}):
            raise Unexplained
        scores = {one["node"]: one for one in self.theirs.get("scores") or ()}
        placed: list[NodeScore] = []
        for node_info in self.course.asked.node_infos:
            if node_info.node.name in scores:
                placed.append(self._placed(node_info, scores[node_info.node.name]))
            elif fit_pod(self.course.asked.pod, self.course.asked.rules, node_info, CIRCUMSTANCES).why != self._refusal(
                node_info
            ):
                self.ids.append(self.reasons.of_refusal(node_info, self._refusal(node_info)))
        order = node_order(self.course.asked.pod, NODE_ORDER)
        best = rank_nodes(placed, order)[-1:]
        if "".join(one.name for one in best) != self.theirs["best"]:
            raise Unexplained
        if not best and self.theirs.get("annotations"):
            raise Unexplained
        for one in best:
            self._written(one.placed)

    def compare_best(self, ours: Json) -> None:
        """Another node than HAMi's, though nothing else differs: then they are equally good."""
        if self.ids or ours["best"] == self.theirs["best"]:
            return
        scores = {one["node"]: one["score"] for one in self.theirs["scores"]}
        if abs(scores[ours["best"]] - scores[self.theirs["best"]]) < CLOSE:
            self.ids.append(EQUAL)

    def _refusal(self, node_info: NodeInfo) -> str:
        return str(self.theirs["failed"][node_info.node.name])

    def _placed(self, node_info: NodeInfo, theirs: Json) -> NodeScore:
        """Book what HAMi chose on this node."""
        walk = self.course.walk(node_info)
        chosen = {
            device_type: iter([p for p in theirs["devices"].get(device_type, ()) if p])
            for device_type in self.course.asked.known
        }
        for container, asked in zip(self.course.asked.pod.containers, self.course.wanted, strict=True):
            for device_type, demand in asked.items():
                walk.fit(container, demand)
                grants = next(chosen[device_type], ())
                self.ids.extend(self.reasons.of_choice(walk.steps[-1], grants))
                if walk.reserve(device_type, [values.grant(one) for one in grants]):
                    raise Unexplained
            walk.close(container)
        if any(next(rest, ()) for rest in chosen.values()):
            raise Unexplained
        placed = PodFit(node_info=node_info, given=walk.given, steps=tuple(walk.steps), after=walk.after)
        listed = {
            device_type: placed.given.get(device_type, tuple(map(tuple, pieces)))
            for device_type, pieces in theirs["devices"].items()
            if device_type in self.course.asked.known
        }
        for device_type, pieces in theirs["devices"].items():
            self._in_place(pieces, [len(piece) for piece in listed.get(device_type, ())])
        self._scored(node_info, listed, theirs["score"])
        return NodeScore(placed=placed, score=theirs["score"])

    def _in_place(self, theirs: Sequence[Sequence[Json]], counts: Sequence[int]) -> None:
        """So many devices for each container, in order; or HAMi has left out all those that have none."""
        his = [len(piece) for piece in theirs]
        if his == counts or (not any(his) and not any(counts)):
            return
        if his != [count for count in counts if count]:
            raise Unexplained
        self.ids.append(PADDING)

    def _scored(self, node_info: NodeInfo, given: Given, theirs: float) -> None:
        """The node's score for HAMi's choice. HAMi also asks families of which the pod has nothing."""
        asked = self.course.asked
        order = node_order(asked.pod, NODE_ORDER)
        mine, full = (node_score(asked.pod, asked.rules, node_info, part, order) for part in (given, {}))
        if not compared({}, {"score": mine}, {"score": theirs}):
            return
        if len(given) != 1:
            raise Unexplained
        ((device_type, pieces),) = given.items()
        question = {
            "fn": "score_node",
            "vendor": device_type,
            "policy": order,
            "node": self.course.node(node_info.node.name),
            "pod": asked.question["pod"],
            "pod_devices": [[values.granted(grant) for grant in piece] for piece in pieces],
            "previous": [values.device(state) for state in node_info.pools[device_type].states],
        }
        ours = self.reasons.answer(question)
        scale = (mine - full) / ours["score"] if ours["score"] else 1
        self.ids.append(self.reasons.of(question, ours, {**ours, "score": (theirs - full) / scale}))

    def _written(self, placed: PodFit) -> None:
        """What we write to the pod for HAMi's choice."""
        asked = self.course.asked
        ours = timeless(patch(asked.families, asked.pod, placed))
        written = self.theirs["annotations"]
        theirs = {key: text for key, text in written.items() if key in ours or not self.course.idle(key, text, placed)}
        padded = {key: _padded(text, ours.get(key, "")) for key, text in theirs.items()}
        if padded != written:
            self.ids.append(PADDING)
        for device_type, pieces in placed.given.items():
            family = asked.known[device_type].family
            keys = family.rules.patch(family, asked.pod, placed.given).keys()
            mine, his = ({key: said.pop(key) for key in keys & said.keys()} for said in (ours, padded))
            if mine != his:
                given = [[values.granted(grant) for grant in piece] for piece in pieces]
                question = {
                    "fn": "patch_annotations",
                    "vendor": device_type,
                    "pod": asked.question["pod"],
                    "given": given,
                }
                self.ids.append(self.reasons.of(question, {"annotations": mine}, {"annotations": his}))
        if ours != padded:
            raise Unexplained


def _padded(theirs: str, ours: str) -> str:
    """HAMi's text with the entries of containers without devices, if nothing but all of these are missing in it."""
    return ours if theirs == "".join(f"{piece};" for piece in ours.split(";") if piece) else theirs
