"""A difference explains one thing: of a recorded question that it explains, no other answer of ours is explained."""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.scheduler.engine.devices import Candidate
from hami_plugin.scheduler.engine.fit import check_device
from tests.hami import fits
from tests.hami.answers import DECISION, answer, consistent
from tests.hami.catalog import Catalog
from tests.hami.compare import compared
from tests.hami.parity import Difference
from tests.hami.run import Case, Explained, documented_in, explaining, read
from tests.support import hami_fits
from tests.support.scale import sized, spread

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests" / "vectors").glob("*.jsonl.xz"))
MAX_CASES = sized(2, 8)
"""For each difference and kind of question. The differences are few and their questions alike."""
MAX_CHANGES = sized(50, 150)
OPEN = ("annotations", "limits", "requests", "pod_annotations", "score", "failed")
"""Mappings of which a member may be missing."""

REQUESTED = "request"

DIFFERENCES_OF_ORDER = {"D-130", "D-131", "D-132", "D-133", "D-140", "D-141"}
"""Which judge both answers by the question alone."""

Json = Any
Place = tuple[Any, ...]


@cache
def catalog() -> Catalog:
    return Catalog()


@cache
def rules() -> Mapping[str, Difference]:
    """The vendors' own differences by id."""
    return {difference.id: difference for parity in catalog().parities for difference in parity.differences}


@cache
def explain() -> Explained:
    return explaining(catalog(), documented_in((ROOT / "docs" / "differences.md").read_text()))


@cache
def explained() -> Mapping[tuple[str, str], Sequence[tuple[Case, Json]]]:
    """Questions with our answers, by the difference that explains them and the kind of question."""
    found: dict[tuple[str, str], list[tuple[Case, Json]]] = {}
    cases = itertools.chain.from_iterable(map(read, FILES))
    for case in spread(cases, lambda case: (case.question["fn"], case.question.get("vendor"))):
        ours = json.loads(json.dumps(answer(case.question, catalog())))
        if differs(case, ours) and (reason := explain()(case, ours)):
            found.setdefault((reason, case.question["fn"]), []).append((case, ours))
    return found


def differs(case: Case, ours: Json) -> bool:
    return all(compared(case.question, ours, theirs) for theirs in case.answers)


def at_most(items: Sequence[Any], most: int) -> Sequence[Any]:
    """So many of them, from the first to the last."""
    return items[:: -(-len(items) // most)] if items else items


def changes(value: Json, place: Place = ()) -> Iterator[tuple[Place, Json]]:
    """Every place in an answer with another value for it; ``...`` is for leaving it out."""
    match value:
        case dict():
            for key, item in value.items():
                if place and place[-1] in OPEN:
                    yield (*place, key), ...
                yield from changes(item, (*place, key))
        case list():
            for number, item in enumerate(value):
                yield (*place, number), ...
                yield from changes(item, (*place, number))
        case bool():
            yield place, not value
        case int() | float():
            yield from ((place, other) for other in {value + 1, value - 1, 0} - {value})
        case str():
            yield from ((place, other) for other in {f"{value}x", value[:-1], ""} - {value})


def changed(ours: Json, place: Place, value: Json) -> Json:
    other = copy.deepcopy(ours)
    *path, last = place
    at = other
    for step in path:
        at = at[step]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return other


def other_choices(case: Case, ours: Json) -> Iterator[Json]:
    """One device less; another one that would serve, well booked; a refusal for a grant; a grant for a refusal."""
    question = case.question
    known = catalog().find(question)
    assert known.family.rules.policy
    demand = known.parity.demand(question["request"])
    context = fits.options(question, demand)
    alone = [check_device(known.family.rules.policy, state, context, ()) for state in context.states]
    able = {one.uuid: one for one in alone if isinstance(one, Candidate)}

    def choice(uuids: Sequence[str]) -> Json:
        grants = [able[uuid].grant(demand.device_type) for uuid in uuids]
        return json.loads(json.dumps(fits.summary(question, known.family.rules.policy, known.parity, grants)))

    if not ours["ok"]:
        yield {"ok": True, "reason": "", "devices": {demand.device_type: []}}
        yield from (choice(uuids) for uuids in itertools.islice(itertools.combinations(able, demand.count), 5))
        return
    total = len(question["devices"])
    for reason in ("", "CardNotHealth", "CardInsufficientMemory", "NumaNotFit", "AllocatedCardsInsufficientRequest"):
        yield {"ok": False, "reason": f"{total}/{total} {reason}" if reason else ""}
    chosen = [one["uuid"] for devices in ours["devices"].values() for one in devices]
    if set(chosen) <= able.keys():
        for number in range(len(chosen)):
            yield choice([*chosen[:number], *chosen[number + 1 :]])
            for uuid in able.keys() - set(chosen):
                yield choice([*chosen[:number], uuid, *chosen[number + 1 :]])


def wrong(case: Case, ours: Json) -> Iterator[tuple[str, Json]]:
    """Other answers than ours, and than HAMi's."""
    spots = at_most([*changes(ours)], MAX_CHANGES)
    others = [(f"{'.'.join(map(str, place))} = {value}", changed(ours, place, value)) for place, value in spots]
    if case.question["fn"] == fits.QUESTION:
        others += [(f"the choice {one['reason'] or one.get('devices')}", one) for one in other_choices(case, ours)]
    for what, other in others:
        if well_formed(other) and compared(case.question, other, ours) and differs(case, other):
            yield what, other


def wrong_of_hami(case: Case, theirs: Json) -> Iterator[tuple[str, Json]]:
    """Other answers of HAMi's than the recorded ones."""
    for place, value in at_most([*changes(theirs)], MAX_CHANGES):
        other = changed(theirs, place, value)
        if well_formed(other) and differs(case, other):
            yield f"{'.'.join(map(str, place))} = {value}", other


def well_formed(other: Json) -> bool:
    return not other.get("ok") or "devices" in other or "profile" in other


@pytest.mark.full
def test_questions_are_explained_by_many_differences() -> None:
    assert len({reason for reason, _ in explained()}) >= 22


@pytest.mark.parametrize(
    "kind",
    [
        *("fit", "request", "mutate", "score_node", "sort_devices", "pair_scores", DECISION),
        pytest.param("mig_select", marks=pytest.mark.full),
    ],
)
def test_no_other_answer_is_explained(kind: str) -> None:
    tried = 0
    for (reason, of), cases in explained().items():
        if of != kind:
            continue
        for case, ours in at_most(cases, MAX_CASES if kind != DECISION else 4):
            for what, other in wrong(case, ours):
                tried += 1
                assert not explain()(case, other), f"{reason} explains {case.id} with {what}"

    assert tried > 0


@pytest.mark.parametrize("kind", [fits.QUESTION, REQUESTED])
def test_no_other_answer_of_hami_is_explained(kind: str) -> None:
    """A rule says what HAMi answers, too: another fault of HAMi, or of the record, is not hidden by it."""
    tried = 0
    for (reason, of), cases in explained().items():
        for case, ours in at_most(cases, MAX_CASES) if of == kind else ():
            theirs = next(one for one in case.answers if explain()(replace(case, answers=(one,)), ours))
            for what, other in wrong_of_hami(case, theirs):
                tried += 1
                asked = replace(case, answers=(other,))
                assert not explain()(asked, ours), f"{reason} explains {case.id} with HAMi's {what}"

    assert tried > 0


def test_no_other_text_is_explained() -> None:
    for (reason, kind), cases in explained().items():
        for case, ours in cases if kind.endswith("_node") and "str" in cases[0][1] else ():
            for other in (ours["str"][:-1], f"{ours['str']}x", ours["str"].replace("1", "2"), "[]", ""):
                assert not explain()(case, {"str": other}), f"{reason} explains {case.id} with {other}"


def renamed(question: Json) -> Json:
    """The same question under other names of devices and nodes."""
    text = json.dumps(question)
    names = {one["id"] for one in question.get("devices") or ()} | {one["uuid"] for one in question.get("links") or ()}
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(f'"{name}"', f'"other-{name}"')
    return json.loads(text)


def test_a_rule_depends_on_no_name() -> None:
    for (reason, kind), cases in explained().items():
        for case, _ in cases if reason in rules() and kind != DECISION else ():
            assert rules()[reason].applies(renamed(case.question)), f"{reason} does not see {case.id} by its content"


@pytest.mark.parametrize("file", [file for file in FILES if "_fit" in file.name], ids=lambda file: file.name[:-13])
def test_what_must_hold_of_every_answer_holds_in_any_device_order(file: Path) -> None:
    shuffled = random.Random(file.name)
    for case in itertools.islice(read(file), 0, None, sized(30, 6)):
        question = copy.deepcopy(case.question)
        shuffled.shuffle(question["devices"])
        ours = answer(question, catalog())

        assert consistent(question, ours, catalog()), case.id
        theirs = hami_fits.answer(question, shuffled) if question["vendor"] != "NVIDIA" else ours
        for difference in DIFFERENCES_OF_ORDER & rules().keys():
            if rules()[difference].applies(question):
                assert rules()[difference].right(question, ours, theirs), (difference, case.id)
