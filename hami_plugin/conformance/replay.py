"""Why a whole decision differs from HAMi's: it is followed step by step, and each step is a question of its own.

On each node HAMi's own choices are booked one after the other. A step in which we would choose otherwise must be
explained by a difference about such a question. What follows from HAMi's choices (the node's score, the node that is
taken, what is written to the pod) we must then say as HAMi does, or otherwise by a difference about that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hami_plugin.conformance import values
from hami_plugin.conformance.catalog import Catalog
from hami_plugin.conformance.compare import compared
from hami_plugin.conformance.course import Course
from hami_plugin.conformance.decisions import CIRCUMSTANCES, NODE_ORDER, requests, situation, timeless
from hami_plugin.conformance.reasons import CLOSE, EQUAL, Answer, Consistent, Reasons, Unexplained
from hami_plugin.parity import Difference, Json
from hami_plugin.scheduler.engine.filtering import Scored, node_order, ranked, worth
from hami_plugin.scheduler.engine.ledger import patch
from hami_plugin.scheduler.engine.pods import Placed, Site, demands, place
from hami_plugin.scheduler.engine.requests import Invalid
from hami_plugin.scheduler.engine.scores import weights
from hami_plugin.scheduler.engine.states import Given

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
    wanted, weighing = demands(asked.pod, asked.rules), weights(asked.pod.annotations)
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
        placed: list[Scored] = []
        for site in self.course.asked.sites:
            if site.node.name in scores:
                placed.append(self._placed(site, scores[site.node.name]))
            elif place(self.course.asked.pod, self.course.asked.rules, site, CIRCUMSTANCES).why != self._refusal(site):
                self.ids.append(self.reasons.of_refusal(site, self._refusal(site)))
        order = node_order(self.course.asked.pod, NODE_ORDER)
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
        walk = self.course.walk(site)
        chosen = {
            device_type: iter([p for p in theirs["devices"].get(device_type, ()) if p])
            for device_type in self.course.asked.known
        }
        for container, asked in zip(self.course.asked.pod.containers, self.course.wanted, strict=True):
            for device_type, demand in asked.items():
                walk.ask(container, demand)
                grants = next(chosen[device_type], ())
                self.ids.extend(self.reasons.of_choice(walk.steps[-1], grants))
                if walk.take(device_type, [values.grant(one) for one in grants]):
                    raise Unexplained
            walk.close(container)
        if any(next(rest, ()) for rest in chosen.values()):
            raise Unexplained
        placed = Placed(site=site, given=walk.given, steps=tuple(walk.steps), after=walk.after)
        listed = {
            device_type: placed.given.get(device_type, tuple(map(tuple, pieces)))
            for device_type, pieces in theirs["devices"].items()
            if device_type in self.course.asked.known
        }
        for device_type, pieces in theirs["devices"].items():
            self._in_place(pieces, [len(piece) for piece in listed.get(device_type, ())])
        self._scored(site, listed, theirs["score"])
        return Scored(placed=placed, score=theirs["score"])

    def _in_place(self, theirs: Sequence[Sequence[Json]], counts: Sequence[int]) -> None:
        """So many devices for each container, in order; or HAMi has left out all those that have none."""
        his = [len(piece) for piece in theirs]
        if his == counts or (not any(his) and not any(counts)):
            return
        if his != [count for count in counts if count]:
            raise Unexplained
        self.ids.append(PADDING)

    def _scored(self, site: Site, given: Given, theirs: float) -> None:
        """The node's score for HAMi's choice. HAMi also asks families of which the pod has nothing."""
        asked = self.course.asked
        order = node_order(asked.pod, NODE_ORDER)
        mine, full = (worth(asked.pod, asked.rules, site, part, order) for part in (given, {}))
        if not compared({}, {"score": mine}, {"score": theirs}):
            return
        if len(given) != 1:
            raise Unexplained
        ((device_type, pieces),) = given.items()
        question = {
            "fn": "score_node",
            "vendor": device_type,
            "policy": order,
            "node": self.course.node(site.node.name),
            "pod": asked.question["pod"],
            "pod_devices": [[values.granted(grant) for grant in piece] for piece in pieces],
            "previous": [values.device(state) for state in site.stocks[device_type].states],
        }
        ours = self.reasons.answer(question)
        scale = (mine - full) / ours["score"] if ours["score"] else 1
        self.ids.append(self.reasons.of(question, ours, {**ours, "score": (theirs - full) / scale}))

    def _written(self, placed: Placed) -> None:
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
