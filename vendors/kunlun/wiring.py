"""How the eight cards of a Kunlun machine are wired, and which of the free ones to take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hami_plugin.scheduler.engine.devices import Candidate, Context, DeviceState, asked
from hami_plugin.scheduler.engine.policy import DeviceCheck, Misfit, Select, Selection, free_memory, healthy, named
from hami_plugin.scheduler.engine.reasons import Reason
from hami_plugin.scheduler.engine.scores import Decision, Score

CARDS = 8
WINGS = (range(4), range(4, CARDS))
"""Cards by index. Those of a wing are all linked, and each with the one opposite: 0 with 4, 1 with 5, and so on."""
CROSSING = tuple(frozenset(map(int, cards)) for cards in ("0145", "2367", "0246", "1357", "0347", "1256"))
"""Four of both wings, the best first."""
BEST_LEFT = {1: (1, 3, 2, 4), 2: (2, 3, 4), 4: (4,)}
"""For so many cards of one wing: how many of it should be free before, the best first."""
BY_NAME = (
    named("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"),
    named("baidu.com/use-gpuuuid", "baidu.com/nouse-gpuuuid"),
)
"""Both pairs of annotations count."""
OUTWEIGHING = (Reason.EXCLUSIVE, Reason.UUID_MISMATCH, Reason.NO_SLOT)
"""Why cards with room do not serve. Only the first that applies is told."""


def wired(free: Sequence[int], count: int) -> tuple[int, ...]:
    """Which of the free cards to take; none if there is no such group."""
    cards = sorted(set(free) & set(range(CARDS)))
    if count == CARDS:
        return tuple(cards) if len(cards) == CARDS else ()
    wings = [[card for card in cards if card in wing] for wing in WINGS]
    for left in BEST_LEFT.get(count, ()):
        for wing in wings:
            if len(wing) == left:
                return tuple(wing[:count])
    return _crossing(cards, count)


def _crossing(cards: Sequence[int], count: int) -> tuple[int, ...]:
    """Two opposite ones; or four, such that what is left of six is a linked pair."""
    if count == 2:
        return next(((card, card + 4) for card in cards if card + 4 in cards), ())
    groups = [group for group in CROSSING if group <= set(cards)] if count == 4 else []
    good = [group for group in groups if len(cards) < 6 or _linked(set(cards) - group)]
    return tuple(sorted((good or groups[-1:] or [frozenset()])[0]))


def _linked(pair: set[int]) -> bool:
    one, other = sorted(pair)
    return other - one == 4 or one // 4 == other // 4


def by_wiring(*alone: DeviceCheck) -> Select:
    """The cards that ``wired`` names; else one reason.

    ``alone`` are rules that may keep a card from a pod although it has room.
    """

    def select(eligible: Sequence[Candidate], context: Context) -> Selection:
        free = {candidate.state.index: candidate for candidate in eligible}
        chosen = wired(tuple(free), context.demand.count)
        if chosen:
            return tuple(free[card] for card in chosen)
        kept = Counter(reason for state in context.states for reason in _against(state, context, alone))
        reason = next((one for one in OUTWEIGHING if kept[one]), None)
        return Misfit(reasons={reason: kept[reason]} if reason else {Reason.NUMA: 1}, instead=True)

    return select


def _against(state: DeviceState, context: Context, alone: Sequence[DeviceCheck]) -> Iterator[Reason]:
    card = Candidate(state=state, charge=asked(state, context, ()))
    no_room = healthy(state, context) or free_memory(card, context, ()) or one_size(card, context, ())
    reasons = (check(state, context) for check in (*BY_NAME, *(() if no_room else alone)))
    return (reason for reason in set(reasons) if reason)


def one_size(candidate: Candidate, _context: Context, _eligible: Sequence[Candidate]) -> Reason | None:
    """All parts of a card are of one size."""
    state = candidate.state
    other = state.slots and state.memory // state.slots != candidate.charge.memory
    return Reason.NO_MEMORY if other else None


def tidiness(device_type: str) -> Score:
    """Up to 3000 for cards that tear the wings less than those in use do; 0 beside devices of another type."""

    def score(decision: Decision) -> float:
        if any(state.info.type != device_type for state in decision.before):
            return 0.0
        taken = {grant.index for piece in decision.pieces for grant in piece}
        used = {state.index for state in decision.before if state.slots}
        return {-1: 3000.0, 0: 2000.0, 1: 1000.0, 2: 0.0}.get(_torn(taken) - _torn(used), 1000.0)

    return score


def _torn(cards: set[int]) -> int:
    """How torn the wings are by these cards: not at all by four of a wing, most by one."""
    in_wings = [len(cards.intersection(wing)) for wing in WINGS]
    return sum({4: 0, 1: 2}.get(count, 1) for count in in_wings) if cards else 1
