"""Whole cards, and shares of cards by percentage as HAMi 2.7 had them: two families that count cards."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.protocol.pods import encode_devices
from hami_plugin.scheduler.engine.devices import (
    Admit,
    Admitted,
    Booked,
    Candidate,
    Charge,
    Context,
    Denied,
    DeviceState,
    Given,
    Invalid,
    Reason,
    Request,
    amount,
    charge_request,
    count_request,
    from_capacity,
    if_limited,
)
from hami_plugin.scheduler.engine.policy import CHARGED, Policy, enough, healthy, idle_device, of_this_type, standard
from hami_plugin.sdk import (
    AnnotationKeys,
    Family,
    Patch,
    Resources,
    SchedulingRules,
    Units,
)
from vendors.enflame import drs, partitions
from vendors.enflame.drs import DEVICE_TYPE
from vendors.enflame.partitions import UNITS, is_cut, size
from vendors.enflame.settings import EnflameSettings

WHOLE, SHARED = "GCU", "vGCU"
NAMES = {"whole": (WHOLE, "GCU"), "shared": (SHARED, "enflame"), "partitions": (DEVICE_TYPE, "enflame-drs")}
"""By way of serving: the device type, and what the scheduler's names of its cards contain."""
CARDS = "enflame.com/gcu-count"
SLICES = "enflame.com/shared-gcu"
"""The resources of Enflame's gcushare plugin: the node's cards, and the slices that a container gets."""


KEYS = AnnotationKeys(
    to_allocate="hami.io/enflame-gcu-devices-to-allocate", allocated="hami.io/enflame-gcu-devices-allocated"
)


def whole(settings: EnflameSettings) -> Family:
    """Cards that nobody else uses."""
    policy = Policy(
        request=count_request(WHOLE, count=amount(settings.whole), default_memory=UNITS, default_cores=UNITS),
        serves=(healthy, of_this_type(WHOLE), idle_device),
        checks=(),
    )
    return Family(
        resources=Resources(device_type=WHOLE, count=settings.whole),
        rules=SchedulingRules(
            annotations=KEYS,
            policy=policy,
            admit=if_limited(settings.whole),
            node_devices=from_capacity(settings.whole, _cards("GCU", WHOLE, slots=1)),
            lock=None,
        ),
    )


def shared(settings: EnflameSettings, clock: Callable[[], int]) -> Family:
    """The first cards with so much percent left; where partitions have been cut, with one that is as large."""
    counted_cards = from_capacity(CARDS, _cards("enflame", DEVICE_TYPE, slots=UNITS))
    request = count_request(
        SHARED, count=amount(settings.shared), percent=amount(settings.percentage, least=1, most=UNITS)
    )
    return Family(
        resources=Resources(
            device_type=SHARED,
            count=settings.shared,
            memory_percent=settings.percentage,
            memory_in_percent=True,
            units=counted_too(settings),
        ),
        rules=SchedulingRules(
            annotations=AnnotationKeys(allocated=drs.KEYS.allocated),
            policy=Policy(
                request=request,
                gates=(partitions.one_each(settings.shared),),
                serves=standard(SHARED, uuids=drs.UUIDS),
                charge=share,
                checks=(*CHARGED, a_partition_is_free),
                select=tightest,
                book=book,
                restore=restore,
            ),
            admit=admission(settings, request),
            node_devices=lambda of: partitions.annotated_cards(of, SHARED, counted_cards(of)),
            patch=patch(clock),
            lock=None,
        ),
    )


def a_partition_is_free(candidate: Candidate, _context: Context, _eligible: Sequence[Candidate]) -> Reason | None:
    """Where partitions have been cut, nobody has one that serves the share."""
    state = candidate.state
    if not is_cut(state):
        return None
    profile = partitions.for_percent(candidate.charge.memory, state.notes[partitions.CUT])
    return None if partitions.free_partitions(state).get(profile, 0) > 0 else Reason.NO_PARTITION


@enough
def tightest(eligible: Sequence[Candidate], context: Context) -> Sequence[Candidate]:
    """Where partitions have been cut, those cards whose partition wastes least; of equals the first."""
    ordered = sorted(
        eligible, key=lambda one: size(_profile(one.state, one.grant(SHARED)) if is_cut(one.state) else "")
    )
    return ordered[: context.demand.count]


def book(state: DeviceState, grant: Grant, _pod: PodView) -> Booked:
    return partitions.book_partition(state, grant, _profile(state, grant))


def restore(state: DeviceState, grant: Grant, pod: PodView) -> DeviceState:
    return partitions.restore_partition(state, grant, pod, _profile(state, grant))


def _profile(state: DeviceState, grant: Grant) -> str:
    return partitions.for_percent(grant.memory, state.notes.get(partitions.CUT, {}))


def counted_too(settings: EnflameSettings) -> tuple[Units, ...]:
    """Cards, by which HAMi's scheduler knows how many a node has, and slices, which it asks for where it rounds."""
    cards = Units(resource=CARDS, of_device=lambda _device: 1, of_grant=lambda _grant: 1)
    slices = Units(
        resource=SLICES,
        of_device=lambda _device: settings.slices,
        of_grant=lambda grant: -(-grant.memory * settings.slices // UNITS),
    )
    return (cards, slices) if settings.slices else (cards,)


def _cards(name: str, kind: str, *, slots: int) -> Callable[[NodeView, int, int], DeviceInfo]:
    def card(node: NodeView, number: int, _count: int) -> DeviceInfo:
        uuid = f"{node.name}-{name}-{number}"
        return DeviceInfo(id=uuid, index=number, count=slots, devmem=UNITS, devcore=UNITS, type=kind, health=True)

    return card


def share(state: DeviceState, context: Context, eligible: Sequence[Candidate]) -> Charge:
    """The percentage, under the name that HAMi 2.7 writes."""
    return charge_request(state, context, eligible)._replace(device_type=DEVICE_TYPE)


def admission(settings: EnflameSettings, request: Request) -> Admit:
    """Shares are rounded up to the slices that Enflame's plugin hands out; several cards are whole ones."""

    def admit(container: ContainerView, _pod: PodView) -> Admitted | Denied:
        if settings.shared not in container.limits:
            return Admitted(found=False)
        demand = request(container)
        if isinstance(demand, Invalid):
            return Denied(why=f"container {container.name!r}: {demand}")
        if demand is None:
            return Admitted(found=True)
        percent = demand.percent if demand.count == 1 else UNITS
        added = {settings.percentage: str(percent)}
        if settings.slices:
            slices = -(-(percent or UNITS) * settings.slices // UNITS)
            share = slices * UNITS // settings.slices
            added = {settings.percentage: str(share), SLICES: str(slices * demand.count)}
        return Admitted(found=True, limits=added, requests=added)

    return admit


def patch(clock: Callable[[], int]) -> Patch:
    """The agent finds the cards of the first container by number."""

    def of_decision(family: Family, _pod: PodView, given: Given) -> Mapping[str, str]:
        pieces = given[family.resources.device_type]
        first = next(filter(None, pieces), ())
        return {
            family.rules.annotations.allocated: encode_devices(pieces),
            **drs.unassigned(clock),
            "enflame.com/gcu-assigned-id": ",".join(str(grant.index) for grant in first),
        }

    return of_decision


def families(settings: EnflameSettings, clock: Callable[[], int] = time.time_ns) -> tuple[Family, ...]:
    """Partitions, whole cards, and shared cards unless partitions have taken over their name.

    ``clock`` says when a decision is written, in nanoseconds since 1970.
    """
    shares = () if settings.shared == settings.drs else (shared(settings, clock),)
    return (drs.family(settings, clock), whole(settings), *shares)
