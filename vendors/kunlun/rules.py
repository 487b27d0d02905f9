"""How Kunlun XPUs and parts of them are requested, chosen by the wiring of a machine's eight, and written down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import (
    Admitted,
    Asked,
    Booked,
    Candidate,
    Context,
    Demand,
    Denied,
    DeviceState,
    Given,
    Invalid,
    Piece,
    Reason,
    amount,
    charge_request,
    charge_whole_device,
    count_request,
    from_capacity,
    if_limited,
)
from hami_plugin.scheduler.engine.policy import (
    Decision,
    DeviceCheck,
    Misfit,
    Policy,
    Score,
    Select,
    Selection,
    alone_if_mutex,
    free_memory,
    free_slot,
    healthy,
    idle_device,
    named,
    of_this_type,
)
from hami_plugin.sdk import AnnotationKeys, Family, Resources, SchedulingRules, both_keys
from vendors.kunlun.settings import KunlunSettings

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


def choose_wired(free: Sequence[int], count: int) -> tuple[int, ...]:
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
    """The cards that ``choose_wired`` names; else one reason.

    ``alone`` are rules that may keep a card from a pod although it has room.
    """

    def select(eligible: Sequence[Candidate], context: Context) -> Selection:
        free = {candidate.state.index: candidate for candidate in eligible}
        chosen = choose_wired(tuple(free), context.demand.count)
        if chosen:
            return tuple(free[card] for card in chosen)
        kept = Counter(reason for state in context.states for reason in _against(state, context, alone))
        reason = next((one for one in OUTWEIGHING if kept[one]), None)
        return Misfit(reasons={reason: kept[reason]} if reason else {Reason.NUMA: 1}, instead=True)

    return select


def _against(state: DeviceState, context: Context, alone: Sequence[DeviceCheck]) -> Iterator[Reason]:
    card = Candidate(state=state, charge=charge_request(state, context, ()))
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


WHOLE, PART = "kunlun", "XPU"
CARD = 98304
"""MiB of a card. A part is a quarter, a half, or all of it."""


def slot_only(state: DeviceState, grant: Grant, _pod: PodView) -> Booked:
    """A whole card is taken by its one slot."""
    return replace(state, slots=state.slots + 1), grant


def part_of(resource: str) -> Callable[[ContainerView], int | Invalid | None]:
    """MiB of the smallest part that has what is asked for: a quarter, a half, or all of a card."""
    read = amount(resource, most=CARD)

    def size(container: ContainerView) -> int | Invalid | None:
        memory = read(container)
        if memory is None or isinstance(memory, Invalid):
            return memory
        return next(part for part in (CARD // 4, CARD // 2, CARD) if memory <= part)

    return size


def request(settings: KunlunSettings, container: ContainerView) -> Asked:
    """So many parts of a size, whole cards without one; cores go with it."""
    demand = count_request(PART, count=amount(settings.parts), memory=part_of(settings.memory))(container)
    if not isinstance(demand, Demand):
        return demand
    memory = demand.memory or CARD
    return replace(demand, memory=memory, cores=memory * 100 // CARD)


def families(settings: KunlunSettings) -> tuple[Family, ...]:
    """Whole cards, and parts."""
    return (_whole(settings), _part(settings))


def _whole(settings: KunlunSettings) -> Family:
    policy = Policy(
        request=count_request(WHOLE, count=amount(settings.count)),
        serves=(healthy, of_this_type(WHOLE), *BY_NAME, idle_device),
        charge=charge_whole_device,
        checks=(),
        select=by_wiring(),
        book=slot_only,
        score=tidiness(WHOLE),
    )
    return Family(
        resources=Resources(device_type=WHOLE, count=settings.count),
        rules=SchedulingRules(
            annotations=AnnotationKeys(allocated="hami.io/kunlun-allocated"),
            policy=policy,
            admit=if_limited(settings.count),
            node_devices=from_capacity(settings.count, _card),
            patch=_with_indices,
            lock=None,
        ),
    )


def _card(node: NodeView, number: int, count: int) -> DeviceInfo:
    return DeviceInfo(
        id=f"{node.name}-{WHOLE}-{number}",
        index=number,
        count=100,
        devmem=CARD,
        devcore=100,
        type=WHOLE,
        numa=int(number >= count // 2),
        health=True,
        vendor=WHOLE,
    )


def _with_indices(family: Family, pod: PodView, given: Given) -> Mapping[str, str]:
    """With the indices that Kunlun's device plugin reads, which knows one container of a pod: the last one counts."""
    last: Piece = next((piece for piece in reversed(given[family.resources.device_type]) if piece), ())
    indices = ",".join(str(grant.index) for grant in last)
    return {**both_keys(family, pod, given), **({"BAIDU_COM_DEVICE_IDX": indices} if indices else {})}


def _part(settings: KunlunSettings) -> Family:
    def admit(container: ContainerView, _pod: PodView) -> Admitted | Denied:
        if settings.parts not in container.limits or settings.memory not in container.limits:
            return Admitted(found=settings.parts in container.limits)
        size = part_of(settings.memory)(container)
        if isinstance(size, Invalid):
            return Denied(why=str(size))
        written = {settings.memory: str(size)}
        return Admitted(found=True, limits=written, requests=written)

    keys = AnnotationKeys(
        register="hami.io/node-register-xpu",
        handshake="hami.io/node-handshake-xpu",
        to_allocate="hami.io/xpu-devices-to-allocate",
        allocated="hami.io/xpu-devices-allocated",
    )
    policy = Policy(
        request=lambda container: request(settings, container),
        serves=(healthy, of_this_type(PART), *BY_NAME, free_slot, alone_if_mutex),
        checks=(free_memory, one_size),
        select=by_wiring(alone_if_mutex, free_slot),
    )
    resources = Resources(device_type=PART, count=settings.parts, memory=settings.memory)
    return Family.registered(resources, keys, policy, admit=admit)
