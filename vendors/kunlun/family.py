"""How Kunlun XPUs and parts of them are requested, chosen and written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.register import DeviceInfo, decode_json
from hami_plugin.scheduler.engine.devices import Booked, DeviceState, Given, Piece, whole
from hami_plugin.scheduler.engine.policy import (
    Policy,
    alone_if_mutex,
    free_memory,
    free_slot,
    healthy,
    idle_device,
    of_this_type,
)
from hami_plugin.scheduler.engine.registered import annotated, counted_in
from hami_plugin.scheduler.engine.requests import Admitted, Asked, Demand, Denied, Invalid, amount, counted, if_limited
from hami_plugin.sdk import AnnotationKeys, Family, Resources, SchedulingRules, both_keys
from vendors.kunlun.settings import KunlunSettings
from vendors.kunlun.wiring import BY_NAME, by_wiring, one_size, tidiness

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
    demand = counted(PART, count=amount(settings.parts), memory=part_of(settings.memory))(container)
    if not isinstance(demand, Demand):
        return demand
    memory = demand.memory or CARD
    return replace(demand, memory=memory, cores=memory * 100 // CARD)


def families(settings: KunlunSettings) -> tuple[Family, ...]:
    """Whole cards, and parts."""
    return (_whole(settings), _part(settings))


def _whole(settings: KunlunSettings) -> Family:
    policy = Policy(
        request=counted(WHOLE, count=amount(settings.count)),
        serves=(healthy, of_this_type(WHOLE), *BY_NAME, idle_device),
        charge=whole,
        checks=(),
        select=by_wiring(),
        book=slot_only,
        score=tidiness(WHOLE),
    )
    return Family(
        device_type=WHOLE,
        annotations=AnnotationKeys(allocated="hami.io/kunlun-allocated"),
        resources=Resources(count=settings.count),
        rules=SchedulingRules(
            policy=policy,
            admit=if_limited(settings.count),
            node_devices=counted_in(settings.count, _card),
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
    last: Piece = next((piece for piece in reversed(given[family.device_type]) if piece), ())
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
    return Family(
        device_type=PART,
        annotations=keys,
        resources=Resources(count=settings.parts, memory=settings.memory),
        rules=SchedulingRules(policy=policy, admit=admit, node_devices=annotated(keys.register, decode_json)),
    )
