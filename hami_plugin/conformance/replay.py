"""Why a whole decision differs from HAMi's: it is followed step by step, and each step is a question of its own.

On each node HAMi's own choices are booked one after the other. A step in which we would choose otherwise must be
explained by a difference about such a question. What follows from HAMi's choices (the node's score, the node that is
taken, what is written to the pod) we must then say as HAMi does, or otherwise by a difference about that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice

from hami_plugin.conformance import values
from hami_plugin.conformance.catalog import Catalog
from hami_plugin.conformance.compare import compared
from hami_plugin.conformance.decisions import CIRCUMSTANCES, NODE_ORDER, Situation, requests, situation, timeless
from hami_plugin.conformance.room import sound_decision
from hami_plugin.parity import Difference, Json
from hami_plugin.policy.demand import Invalid
from hami_plugin.policy.engine import Granted, Refused, fit
from hami_plugin.policy.nodes import Scored, node_order, ranked, worth
from hami_plugin.policy.order import Weights, score, weights
from hami_plugin.policy.pods import demands, place
from hami_plugin.policy.sites import Demands, Placed, Site, Step
from hami_plugin.policy.states import DeviceState, Given
from hami_plugin.policy.walk import Walk, in_order, refusal
from hami_plugin.scheduling import patch

PADDING = "D-220"
"""HAMi forgets the entries of containers without devices, or writes entries for families without any."""

EQUAL = "D-221"
"""Devices or nodes that are equally full but for the last digits of HAMi's 32-bit numbers."""

OF_DECISIONS = (PADDING, EQUAL)
CLOSE = 1e-4
MOST_TRIED = 200

Answer = Callable[[Json], Json]
Consistent = Callable[[Json, Json], bool]


class Unexplained(Exception):  # noqa: N818  # control flow within this module, no error of anybody
    """There is no written reason for a step of HAMi's."""


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
    wanted, weighing = demands(asked.pod, asked.rules), weights(asked.pod.annotations)
    if isinstance(wanted, Invalid) or isinstance(weighing, Invalid) or ours["err"]:
        return ()
    if not sound_decision(asked, wanted, ours):
        return ()
    mine, replay = (
        _Replay(
            asked=asked,
            wanted=wanted,
            weighing=weighing,
            theirs=decision,
            known=excuses,
            answer=answer,
            consistent=consistent,
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
    asked: Situation
    wanted: Demands
    weighing: Weights
    theirs: Json
    known: Sequence[Difference]
    answer: Answer
    consistent: Consistent
    ids: list[str] = field(default_factory=list)

    def follow(self) -> None:
        """HAMi's decision from its first step to its last word."""
        said = [requests(self.asked.known, one) for one in self.wanted]
        if compared({"fn": "schedule"}, {"requests": said}, {"requests": self.theirs["requests"]}):
            raise Unexplained
        scores = {one["node"]: one for one in self.theirs.get("scores") or ()}
        placed: list[Scored] = []
        for site in self.asked.sites:
            if site.node.name in scores:
                placed.append(self._placed(site, scores[site.node.name]))
            elif place(self.asked.pod, self.asked.rules, site, CIRCUMSTANCES).why != self._refusal(site):
                self._refused(site, self._refusal(site))
        order = node_order(self.asked.pod, NODE_ORDER)
        best = ranked(placed, order)[-1:]
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

    def _refusal(self, site: Site) -> str:
        return str(self.theirs["failed"][site.node.name])

    def _placed(self, site: Site, theirs: Json) -> Scored:
        """Book what HAMi chose on this node."""
        walk = self._walk(site)
        chosen = {word: iter([p for p in theirs["devices"].get(word, ()) if p]) for word in self.asked.known}
        for container, asked in zip(self.asked.pod.containers, self.wanted, strict=True):
            for word, demand in asked.items():
                walk.ask(container, demand)
                grants = next(chosen[word], ())
                self._step(walk.steps[-1], grants)
                if walk.take(word, [values.grant(one) for one in grants]):
                    raise Unexplained
            walk.close(container)
        if any(next(rest, ()) for rest in chosen.values()):
            raise Unexplained
        placed = Placed(site=site, given=walk.given, steps=tuple(walk.steps), after=walk.after)
        listed = {
            word: placed.given.get(word, tuple(map(tuple, pieces)))
            for word, pieces in theirs["devices"].items()
            if word in self.asked.known
        }
        if any(len(theirs["devices"][word]) != len(pieces) for word, pieces in listed.items()):
            self.ids.append(PADDING)
        self._scored(site, listed, theirs["score"])
        return Scored(placed=placed, score=theirs["score"])

    def _step(self, step: Step, grants: Sequence[Json]) -> None:
        question = self._question(step)
        ours = self.answer(question)
        theirs = {"ok": True, "reason": "", "devices": {step.context.demand.word: grants}, "applied": grants}
        if _chosen(ours) == _chosen(theirs):
            return
        ids = self._reasons(question, ours, theirs)
        self.ids.append(next(ids, "") or self._first(self._nearly_equal(step, theirs)))

    def _nearly_equal(self, step: Step, theirs: Json) -> Iterator[str]:
        """HAMi's choice is ours when devices that are equally full but for rounding change places."""
        scores = {state.uuid: score(state, [step.context.demand], self.weighing) for state in step.states}
        his = {grant["uuid"] for grant in theirs["applied"]}
        taken = {state.uuid: (state.slots, state.memory, state.cores) for state in step.states}
        close = {
            one
            for one, other in combinations(scores, 2)
            if abs(scores[one] - scores[other]) < CLOSE and taken[one] != taken[other]
        }
        policy = self.asked.rules[step.context.demand.word]
        for nudge in (CLOSE, -CLOSE) if close else ():
            moved = {uuid: value + nudge * (uuid in his) for uuid, value in scores.items()}
            standing = in_order(policy, step.states, step.context, lambda state: moved[state.uuid])  # noqa: B023  # used at once
            if _chosen(self.answer(self._question(step, standing))) == _chosen(theirs):
                yield EQUAL

    def _scored(self, site: Site, given: Given, theirs: float) -> None:
        """The node's score for HAMi's choice. HAMi also asks families of which the pod has nothing."""
        pod, policies, order = self.asked.pod, self.asked.rules, node_order(self.asked.pod, NODE_ORDER)
        mine, full = (worth(pod, policies, site, part, order) for part in (given, {}))
        if not compared({}, {"score": mine}, {"score": theirs}):
            return
        if len(given) != 1:
            raise Unexplained
        ((word, pieces),) = given.items()
        question = {
            "fn": "score_node",
            "vendor": word,
            "policy": order,
            "node": self._node(site),
            "pod": self.asked.question["pod"],
            "pod_devices": [[values.granted(grant) for grant in piece] for piece in pieces],
            "previous": [values.device(state) for state in site.stocks[word].states],
        }
        ours = self.answer(question)
        scale = (mine - full) / ours["score"] if ours["score"] else 1
        self.ids.append(self._first(self._reasons(question, ours, {**ours, "score": (theirs - full) / scale})))

    def _refused(self, site: Site, why: str) -> None:
        """HAMi's refusal of a node has a reason at one of our steps; or it follows from another choice at one."""
        walk = self._walk(site)
        self._finish(walk)
        for step in walk.steps:
            question = self._question(step)
            ids = list(self._reasons(question, self.answer(question), {"ok": False, "reason": why}))
            if ids:
                self.ids.append(ids[0])
                return
        self.ids.append(self._first(self._after_another_choice(site, walk.steps, why)))

    def _after_another_choice(self, site: Site, steps: Sequence[Step], why: str) -> Iterator[str]:
        for number, step in enumerate(steps):
            if isinstance(step.outcome, Refused):
                return
            question = self._question(step)
            able = [verdict.state for verdict in step.outcome.verdicts if verdict.reason is None]
            policy, count = self.asked.rules[step.context.demand.word], step.context.demand.count
            for few in islice(combinations(able, count), MOST_TRIED):
                other = fit(policy, few, step.context)
                if not isinstance(other, Granted):
                    continue
                grants = [values.granted(grant) for grant in other.grants]
                theirs = {"ok": True, "reason": "", "devices": {step.context.demand.word: grants}, "applied": grants}
                walk = self._walk(site)
                if self._finish(walk, {number: other}) == why:
                    yield from self._reasons(question, self.answer(question), theirs)

    def _finish(self, walk: Walk, other: Mapping[int, Granted] | None = None) -> str:
        """Walk on to the end, with other outcomes at some steps. The reason why it ends early, or nothing."""
        for container, asked in zip(self.asked.pod.containers, self.wanted, strict=True):
            for word, demand in asked.items():
                number = len(walk.steps)
                outcome = walk.ask(container, demand)
                outcome = (other or {}).get(number, outcome)
                if isinstance(outcome, Refused):
                    return refusal(outcome)
                if conflict := walk.take(word, outcome.grants):
                    return conflict
            walk.close(container)
        return ""

    def _written(self, placed: Placed) -> None:
        """What we write to the pod for HAMi's choice."""
        ours = timeless(patch(self.asked.families, self.asked.pod, placed))
        written = self.theirs["annotations"]
        theirs = {key: text for key, text in written.items() if key in ours or not self._idle(key, placed)}
        padded = {key: _padded(text, ours.get(key, "")) for key, text in theirs.items()}
        if padded != written:
            self.ids.append(PADDING)
        if ours != padded:
            question = {"fn": "patch_annotations", "vendor": self.asked.word, "pod": self.asked.question["pod"]}
            self.ids.append(self._first(self._reasons(question, {"annotations": ours}, {"annotations": padded})))

    def _idle(self, key: str, placed: Placed) -> bool:
        """Whether only families of which the pod has nothing write this."""
        empty = {word: tuple(() for _ in self.asked.pod.containers) for word in self.asked.known}
        idle = [family for family in self.asked.families if not any(placed.given.get(family.word, ()))]
        return any(key in family.patch(family, self.asked.pod, empty) for family in idle)

    def _question(self, step: Step, states: Sequence[DeviceState] | None = None) -> Json:
        """The step as a question about one container, in the recorder's words."""
        context = step.context
        known = self.asked.known[context.demand.word]
        given = {word: pieces for word, pieces in context.given.items() if any(pieces)}
        return {
            "fn": "fit",
            "vendor": context.demand.word,
            "devices": [values.device(state) for state in states or step.states],
            "request": known.parity.request(context.demand, known.parity.unset_percent),
            "pod": self.asked.question["pod"],
            "node": next(node for node in self.asked.question["nodes"] if node["name"] == context.node.name),
            "pair_scores": values.scores(context.links),
            "allocated": {
                word: [[values.granted(grant) for grant in piece] for piece in pieces] for word, pieces in given.items()
            },
            "apply": True,
        }

    def _node(self, site: Site) -> Json:
        return next(node for node in self.asked.question["nodes"] if node["name"] == site.node.name)

    def _walk(self, site: Site) -> Walk:
        pod, policies = self.asked.pod, self.asked.rules
        return Walk(pod=pod, rules=policies, site=site, weighing=self.weighing, circumstances=CIRCUMSTANCES)

    def _reasons(self, question: Json, ours: Json, theirs: Json) -> Iterator[str]:
        if not self.consistent(question, ours):
            return
        for one in self.known:
            if one.applies(question) and one.right(question, ours, theirs):
                yield one.id

    def _first(self, ids: Iterator[str]) -> str:
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


def _padded(theirs: str, ours: str) -> str:
    """HAMi's text with an empty entry wherever ours has one, if that is all that differs."""
    same = [piece for piece in theirs.split(";") if piece] == [piece for piece in ours.split(";") if piece]
    return ours if same else theirs
