"""Why a step of HAMi's decision is not ours: the written differences about it, and what a tie or a choice leads to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice

from hami_plugin.conformance import values
from hami_plugin.conformance.compare import excused
from hami_plugin.conformance.course import Course
from hami_plugin.parity import Difference, Json
from hami_plugin.scheduler.engine.fit import Granted, Refused, fit
from hami_plugin.scheduler.engine.pods import Site, Step, in_order
from hami_plugin.scheduler.engine.scores import score

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

    def of_refusal(self, site: Site, why: str) -> str:
        """HAMi's refusal of a node has a reason at one of our steps; or it follows from another choice at one."""
        walk = self.course.walk(site)
        self.course.finish(walk)
        for step in walk.steps:
            question = self.course.question(step)
            for one in self._all(question, self.answer(question), {"ok": False, "reason": why}):
                return one
        return _first(self._after_another_choice(site, walk.steps, why))

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

    def _after_another_choice(self, site: Site, steps: Sequence[Step], why: str) -> Iterator[str]:
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
                walk = self.course.walk(site)
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
