"""Questions about one container: which devices it gets, and what every answer must satisfy, whatever was chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb

from hami_plugin.model.placement import Grant
from hami_plugin.scheduler.engine.devices import Candidate, Context, Demand, Quota, Reason
from hami_plugin.scheduler.engine.devices import summary as told_as
from hami_plugin.scheduler.engine.fit import Granted, check_device, collect_candidates, fit
from hami_plugin.scheduler.engine.policy import Policy, first
from tests.hami import values
from tests.hami.compare import compared
from tests.hami.parity import Json, Parity

QUESTION = "fit"
OF_SEVERAL = (Reason.TOO_FEW, Reason.NUMA)
"""Reasons that no device has by itself."""


def answer(question: Json, policy: Policy, parity: Parity) -> Json:
    """Ask our code."""
    context = options(question, parity.demand(question["request"]))
    outcome = fit(policy, context.states, context)
    if isinstance(outcome, Granted):
        return summary(question, policy, parity, outcome.grants)
    return {"ok": False, "reason": str(outcome)}


def answered_by(question: Json, theirs: Json, policy: Policy, parity: Parity) -> bool:
    """Whether this is HAMi's answer if it follows that policy. A row says of HAMi's what it does otherwise than we."""
    return _the_same(question, answer(question, policy, parity), theirs)


def granted(question: Json, theirs: Json, policy: Policy, parity: Parity, grants: Sequence[Grant]) -> bool:
    """Whether this is HAMi's answer if it grants these, all bookings included."""
    return _the_same(question, summary(question, policy, parity, grants), theirs)


def _the_same(question: Json, meant: Json, theirs: Json) -> bool:
    """Where HAMi's answer is known in parts only, these are compared."""
    return not compared(question, {field: value for field, value in meant.items() if field in theirs}, theirs)


def options(question: Json, demand: Demand) -> Context:
    """Everything that a question says, as our values."""
    return Context(
        demand=demand,
        pod=values.pod(question.get("pod")),
        node=values.node(question.get("node")),
        links=values.links(question.get("pair_scores")),
        given={device_type: values.pieces(given) for device_type, given in (question.get("allocated") or {}).items()},
        quota=Quota(limits=question.get("quota_limits") or {}, used=question.get("quota_used") or {}),
        states=tuple(values.state(item) for item in question["devices"]),
    )


def serving(question: Json, policy: Policy, demand: Demand) -> tuple[str, ...]:
    """The devices that would serve, in walking order; a card of which several shares may be had, so many times."""
    context = options(question, demand)
    return tuple(one.uuid for one in collect_candidates(policy, context.states[::-1], context)[0])


def counted(reason: str) -> Mapping[str, int]:
    """HAMi's text of a refusal as numbers by reason."""
    parts = (part.split(" ", 1) for part in reason.split(", ") if part)
    return {name: int(count.partition("/")[0]) for count, name in parts}


def consistent(question: Json, ours: Json, policy: Policy, parity: Parity) -> bool:
    """Whether everything but the choice of devices is right: it is worked out anew, one device at a time.

    So a difference about the choice cannot hide a wrong bill, booking, or reason against a device; nor, where the first
    that serve are to be taken, another choice than those.
    """
    demand = parity.demand(question["request"])
    if not ours["ok"]:
        return parity.one_reason or reasons_hold(question, ours["reason"], policy, demand)
    context = options(question, demand)
    states = {state.uuid: state for state in context.states}
    given = [one["uuid"] for devices in ours["devices"].values() for one in devices]
    if policy.select is first and tuple(given) != serving(question, policy, demand)[: demand.count]:
        return False
    chosen: list[Candidate] = []
    for uuid in given:
        beside = [one for one in chosen if one.uuid == uuid]
        if uuid not in states or (beside and not policy.again(states[uuid])):
            return False
        found = check_device(policy, states[uuid], context, beside)
        if isinstance(found, Reason):
            return False
        chosen.append(found)
    grants = tuple(one.grant(demand.device_type) for one in chosen)
    return not compared(question, ours, summary(question, policy, parity, grants))


def reasons_hold(question: Json, text: str, policy: Policy, demand: Demand) -> bool:
    """Each device counts for the reason against it. Those without one may count as too few, or as in other groups."""
    context = options(question, demand)
    if closed := next((reason for gate in policy.gates if (reason := gate(context))), None):
        return text == told_as({closed: 1}, len(context.states))
    walks = [collect_candidates(policy, group, context) for group in policy.group(context.states[::-1], context)]
    able = sum(len(eligible) for eligible, _ in walks)
    against = Counter(str(reason) for _, (_, reasons) in walks for reason in reasons if reason)
    said = dict(counted(text))
    several = sum(said.pop(reason, 0) for reason in OF_SEVERAL)
    whole = [told_as(counted(text), total) for total in (len(context.states), demand.count)]
    return text in whole and said == against and several <= able


def summary(question: Json, policy: Policy, parity: Parity, grants: Sequence[Grant]) -> Json:
    """A choice, with its bookings where they are asked for, in the recorder's words."""
    devices = [values.granted(grant) for grant in grants]
    said = {"ok": True, "reason": "", "devices": {parity.demand(question["request"]).device_type: devices}}
    booked = _booked(question, policy, grants) if question.get("apply") else {}
    return parity.said(question, {**said, **booked})


def _booked(question: Json, policy: Policy, grants: Sequence[Grant]) -> Json:
    after = {state.uuid: state for state in map(values.state, question["devices"])}
    applied: list[Json] = []
    for grant in grants:
        booking = policy.book(after[grant.uuid], grant, values.pod(question.get("pod")))
        if isinstance(booking, Reason):
            return {"apply_error": str(booking)}
        after[grant.uuid], recorded = booking
        applied.append(values.granted(recorded))
    return {"applied": applied, "usage_after": [values.usage(state) for state in after.values()]}


FEW = 20_000
"""So many choices are tried one by one."""


def best_of(question: Json, chosen: Sequence[str], pool: Sequence[str], *, whole: bool) -> bool:
    """Of ``pool``, which stands in walking order, the best linked; of equals the first.

    Of ``whole`` cards first those that leave the best-linked rest; a single card is the one that the rest misses least.
    Where there are too many choices to try them, none that changes one device may be better.
    """
    count = len(chosen)
    links = values.links(question.get("pair_scores"))

    def worth(choice: Sequence[str]) -> tuple[int, int, list[int]]:
        rest = list((Counter(pool) - Counter(choice)).elements()) if whole or count == 1 else []
        return links.total(choice), links.total(rest), [-place for place in _places(choice, pool)]

    if Counter(chosen) - Counter(pool):
        return False
    if comb(len(pool), count) <= FEW:
        return worth(chosen) == max(map(worth, combinations(pool, count)))
    others = ([*chosen[:n], uuid, *chosen[n + 1 :]] for n in range(count) for uuid in set(pool) - set(chosen))
    return all(worth(other) <= worth(chosen) for other in others)


def _places(choice: Sequence[str], pool: Sequence[str]) -> list[int]:
    """Where they stand, in order: of a card that stands there several times, the first of its places."""
    wanted = Counter(choice)
    places: list[int] = []
    for place, uuid in enumerate(pool):
        if wanted[uuid]:
            wanted[uuid] -= 1
            places.append(place)
    return places
