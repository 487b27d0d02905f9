"""How NVIDIA cards and MIG instances are requested, admitted, chosen, placed and written down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hami_plugin.errors import WireError
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.grammar import (
    INT32_MAX,
    MAX_POD_BYTES,
    from_json,
    in_range,
    int_of,
    object_of,
    objects,
    printable,
    text_of,
    to_json,
)
from hami_plugin.protocol.keys import OWN
from hami_plugin.protocol.nodes import MigProfile, decode_json
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
    Instance,
    Invalid,
    Reason,
    Slice,
    amount,
    book_grant,
    charge_request,
    count_request,
    limit_or_request,
    percentage,
    restore_grant,
    subtract_grant,
)
from hami_plugin.scheduler.engine.policy import (
    CHARGED,
    ByNumaIf,
    DeviceCheck,
    Policy,
    ReadFirst,
    linked_choice,
    standard,
    topology_aware,
    when,
    within_quota,
)
from hami_plugin.sdk import AnnotationKeys, Family, Range, Resources, SchedulingRules, both_keys, overlaps, unoccupied
from vendors.nvidia.host import FAMILY, VISIBLE, VOID
from vendors.nvidia.instances import MIG_MODE, PREFIX
from vendors.nvidia.settings import NvidiaSettings

_WHAT = "MIG allocations"
_RUNTIME = ("migUUID", "gpuInstanceID", "computeInstanceID")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A slice that exists: the driver's names for it. Ids start at 0."""

    uuid: str
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigAllocation:
    """One slice for one container. ``container`` counts init containers first; ``instance`` is the node's to fill in.

    ``start`` and ``size`` are the placement, in memory slices of the card.
    """

    container: int
    device: int
    uuid: str
    profile: str
    start: int
    size: int
    instance: MigInstance | None = None

    @property
    def complete(self) -> bool:
        """Whether it says which card, which profile, and where."""
        return bool(self.uuid and self.profile and self.size > 0)


def decode_mig(text: str) -> tuple[MigAllocation, ...]:
    """Read the annotation, in its order. An empty text holds nothing; one bad entry spoils the whole, as for HAMi."""
    if not text:
        return ()
    items = objects(from_json(text, _WHAT, MAX_POD_BYTES), _WHAT)
    return _unique(tuple(_allocation(item, f"{_WHAT}[{position}]") for position, item in enumerate(items)))


def encode_mig(allocations: Sequence[MigAllocation]) -> str:
    """The annotation's text, in HAMi's key order; empty when there is nothing to say."""
    return to_json([_members(item) for item in _unique(allocations)], _WHAT) if allocations else ""


def _unique(allocations: Sequence[MigAllocation]) -> tuple[MigAllocation, ...]:
    seen: set[tuple[int, int]] = set()
    for item in allocations:
        key = (item.container, item.device)
        if key in seen:
            raise WireError(f"{_WHAT}: container {item.container} device {item.device} appears twice")
        seen.add(key)
    return tuple(allocations)


def _allocation(item: Mapping[str, Any], where: str) -> MigAllocation:
    placement = object_of(item, "placement", where) or {}
    allocation = MigAllocation(
        container=int_of(item, "containerIndex", where, 0),
        device=int_of(item, "deviceIndex", where, 0),
        uuid=text_of(item, "gpuUUID", where),
        profile=text_of(item, "profile", where),
        start=int_of(placement, "start", where, 0),
        size=int_of(placement, "size", where, 0),
        instance=_instance(item, where),
    )
    if not allocation.complete:
        raise WireError(f"{where}: gpuUUID, profile and a placement of some size are needed")
    return allocation


def _instance(item: Mapping[str, Any], where: str) -> MigInstance | None:
    # An empty UUID counts as absent, an id of 0 does not: the driver's first instance has it.
    present = [bool(item.get("migUUID")), *(item.get(key) is not None for key in _RUNTIME[1:])]
    if not any(present):
        return None
    if not all(present):
        raise WireError(f"{where}: {', '.join(_RUNTIME)} must be there together, or not at all")
    return MigInstance(
        uuid=text_of(item, "migUUID", where),
        gpu_instance=int_of(item, "gpuInstanceID", where, 0),
        compute_instance=int_of(item, "computeInstanceID", where, 0),
    )


def _members(item: MigAllocation) -> dict[str, Any]:
    where = f"{_WHAT}: container {item.container} device {item.device}"
    if not item.complete:
        raise WireError(f"{where}: card, profile and a placement of some size are needed")
    members: dict[str, Any] = {
        "containerIndex": _number(item.container, where),
        "deviceIndex": _number(item.device, where),
        "gpuUUID": printable(item.uuid, where),
        "profile": printable(item.profile, where),
        "placement": {"start": _number(item.start, where), "size": _number(item.size, where)},
    }
    if item.instance:
        instance = item.instance
        if not instance.uuid:
            raise WireError(f"{where}: an instance without UUID")
        ids = (instance.gpu_instance, instance.compute_instance)
        members |= zip(_RUNTIME, (printable(instance.uuid, where), *(_number(n, where) for n in ids)), strict=True)
    return members


def _number(value: int, where: str) -> int:
    return in_range(value, where, 0, INT32_MAX)


ALLOCATIONS = "hami.io/vgpu-mig-allocations"
"""Where a pod's instances are, by container and device."""


def is_cut(state: DeviceState) -> bool:
    """The card is cut into MIG instances."""
    return state.info.mode == MIG_MODE


Place = Callable[[MigProfile, Sequence[MigProfile], Sequence[Range]], Range | None]
"""Of a profile, among those that the card has, beside what is occupied; None where none is free."""


def places_left(profile: MigProfile, occupied: Sequence[Range]) -> list[Range]:
    """The legal places of a profile that no instance is in, in HAMi's order.

    That is from the top for 1g and 3g and from the bottom for others, so that what is wide in the middle stays free.
    """
    from_top = profile.name.startswith(("1g.", "3g."))
    return sorted(unoccupied(profile.placements, occupied), key=lambda place: place[0], reverse=from_top)


def best_place(profile: MigProfile, profiles: Sequence[MigProfile], occupied: Sequence[Range]) -> Range | None:
    """The free place that costs larger profiles least, as no instance can be moved later; of equal ones HAMi's.

    A place costs every place of a larger profile that is free without it and not with it, by its size. None where no
    place is free.
    """
    free = places_left(profile, occupied)
    if len(free) < 2:
        return free[0] if free else None
    rank = _rank(profile)
    larger = [place for one in profiles if _rank(one) > rank for place in one.placements]
    possible = unoccupied(larger, occupied)
    return min(free, key=lambda place: sum(size for start, size in possible if overlaps((start, size), (place,))))


def _rank(profile: MigProfile) -> tuple[int, int]:
    """Memory slices, then compute slices: 4g is larger than 3g, which is as wide."""
    return max((size for _, size in profile.placements), default=0), profile.slices


def choose(
    profiles: Sequence[MigProfile], occupied: Sequence[Slice], memory: int, place: Place = best_place
) -> tuple[MigProfile, Slice] | None:
    """The smallest profile, by memory and slices, that has so much memory and a free place; and the best such place."""
    taken = [(one.start, one.size) for one in occupied]
    for profile in sorted(profiles, key=lambda profile: (profile.memory, profile.slices)):
        found = place(profile, profiles, taken) if profile.memory >= memory else None
        if found:
            return profile, Slice(profile=profile.name, start=found[0], size=found[1])
    return None


def can_place(profiles: Sequence[MigProfile], occupied: Sequence[Slice], names: Sequence[str]) -> bool:
    """Whether there is any way to place instances of all these profiles."""
    if not names:
        return True
    profile = next((profile for profile in profiles if profile.name == names[0]), None)
    places = places_left(profile, [(one.start, one.size) for one in occupied]) if profile else ()
    return any(
        can_place(profiles, (*occupied, Slice(profile=names[0], start=start, size=size)), names[1:])
        for start, size in places
    )


def charge(state: DeviceState, context: Context, eligible: Sequence[Candidate]) -> Charge:
    """As asked. A percentage of a card that is cut never means more than its largest instance."""
    bill = charge_request(state, context, eligible)
    if context.demand.memory or not is_cut(state) or not state.info.mig_profiles:
        return bill
    return bill._replace(memory=min(bill.memory, max(profile.memory for profile in state.info.mig_profiles)))


def has_place(candidate: Candidate, _context: Context, eligible: Sequence[Candidate]) -> Reason | None:
    """There is a place for one more instance beside those that this container may get on the same card."""
    state = candidate.state
    if not is_cut(state):
        return None
    occupied = list(state.slices)
    for share in (*(other for other in eligible if other.uuid == state.uuid), candidate):
        found = choose(state.info.mig_profiles, occupied, share.charge.memory)
        if found is None:
            return Reason.NO_MIG_PLACE
        occupied.append(found[1])
    return None


def book(state: DeviceState, grant: Grant, pod: PodView, place: Place = best_place) -> Booked | Reason:
    """On a card that is cut, an instance with all its memory and cores is taken, whatever part of it was asked for."""
    if not is_cut(state):
        return book_grant(state, grant, pod)
    found = choose(state.info.mig_profiles, state.slices, grant.memory, place)
    if found is None:
        return Reason.NO_MIG_PLACE
    profile, chosen = found
    notes = {"migProfile": chosen.profile, "migPlacement": {"start": chosen.start, "size": chosen.size}}
    grant = replace(grant, memory=profile.memory, cores=profile.cores, notes={**(grant.notes or {}), **notes})
    return replace(subtract_grant(state, grant), slices=(*state.slices, chosen)), grant


def restore(state: DeviceState, grant: Grant, pod: PodView) -> DeviceState:
    """What a pod has already. Its instances are where its annotation says, else where they would be put now."""
    after = restore_grant(state, grant, pod)
    if not is_cut(state):
        return after
    known = [one for one in _recorded(pod) if one.uuid == state.uuid]
    places = [Slice(profile=one.profile, start=one.start, size=one.size) for one in known]
    for _ in range(0 if places else max(1, grant.slots)):
        found = choose(state.info.mig_profiles, (*state.slices, *places), grant.memory // max(1, grant.slots))
        places += [found[1]] if found else []
    return replace(after, slices=(*state.slices, *places))


def patch(family: Family, pod: PodView, given: Given) -> Mapping[str, str]:
    """The usual two annotations, and where the instances are, if there are any."""
    placed = [
        MigAllocation(
            container=position,
            device=number,
            uuid=grant.uuid,
            profile=grant.notes["migProfile"],
            start=grant.notes["migPlacement"]["start"],
            size=grant.notes["migPlacement"]["size"],
        )
        for position, piece in enumerate(given[family.resources.device_type])
        for number, grant in enumerate(piece)
        if grant.notes and "migProfile" in grant.notes
    ]
    return {**both_keys(family, pod, given), **({ALLOCATIONS: encode_mig(placed)} if placed else {})}


def _recorded(pod: PodView) -> tuple[MigAllocation, ...]:
    try:
        return decode_mig(pod.annotations.get(ALLOCATIONS, ""))
    except WireError:  # as if it were missing: then the places are guessed
        return ()


def instances_of(pod: PodView) -> tuple[Instance, ...]:
    """The instances that exist for the pod, as its annotation names them."""
    return tuple(
        Instance(
            device=one.uuid,
            uuid=one.instance.uuid,
            gpu_instance=one.instance.gpu_instance,
            compute_instance=one.instance.compute_instance,
            part=Slice(profile=one.profile, start=one.start, size=one.size),
        )
        for one in _recorded(pod)
        if one.instance
    )


CORDON = "hami.io/device-cordon"
POD_MODE = "nvidia.com/vgpu-mode"
NUMA_BIND = "nvidia.com/numa-bind"


def _not_cordoned(context: Context) -> DeviceCheck | None:
    text = context.node.annotations.get(CORDON, "")
    cordoned = frozenset(uuid.strip() for uuid in text.split(","))
    return (lambda state, _context: Reason.CORDONED if state.uuid in cordoned else None) if text else None


not_cordoned = ReadFirst(_not_cordoned)
"""The node's annotation does not keep new pods off the card."""


def _in_mode(context: Context) -> DeviceCheck | None:
    modes = context.pod.annotations.get(POD_MODE)
    if modes is None:
        return None
    return lambda state, _context: None if state.info.mode in modes else Reason.TYPE_MISMATCH


in_mode = ReadFirst(_in_mode, keys=(POD_MODE,))
"""The pod's annotation, if there is one, names the way in which the card is shared."""


BOTH_KINDS = f"{OWN}cut-and-shared-cards"
"""The annotation of a node of which some cards are cut and others shared: HAMi's schedulers know none."""


class ByKind(ByNumaIf):
    """The same groups; on a node with both kinds, a container's cards are all cut into MIG instances, or none is."""

    def __call__(self, states: Sequence[DeviceState], context: Context) -> Iterable[Sequence[DeviceState]]:
        groups = super().__call__(states, context)
        if context.demand.count < 2 or BOTH_KINDS not in context.node.annotations:
            return groups
        kinds = ([state for state in group if is_cut(state) is cut] for group in groups for cut in (False, True))
        return tuple(kind for kind in kinds if kind)


def policy(settings: NvidiaSettings) -> Policy:
    """Shares of cards, or MIG instances; under ``topology-aware`` the best-linked ones."""
    usual = standard(
        FAMILY,
        types=("nvidia.com/use-gputype", "nvidia.com/nouse-gputype"),
        uuids=("nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"),
    )
    return Policy(
        request=count_request(
            FAMILY,
            count=amount(settings.resource_count_name),
            memory=amount(settings.resource_memory_name, factor=settings.memory_factor),
            percent=percentage(settings.resource_memory_percentage_name),
            cores=amount(settings.resource_core_name, fraction="ignore"),
            default_memory=settings.default_memory,
            default_cores=settings.default_cores,
        ),
        group=ByKind(NUMA_BIND),
        serves=(usual[0], not_cordoned, in_mode, *usual[1:]),
        charge=charge,
        checks=(
            within_quota(
                memory=settings.resource_memory_name,
                cores=settings.resource_core_name,
                factor=settings.memory_factor,
            ),
            *CHARGED,
            has_place,
        ),
        again=is_cut,
        select=when(topology_aware, linked_choice),
        book=book,
        restore=restore,
    )


def admission(settings: NvidiaSettings) -> Admit:
    """Defaults of a container that asks for a card, or only for memory or cores of one."""
    parts = (settings.resource_core_name, settings.resource_memory_name, settings.resource_memory_percentage_name)

    valid = amount(settings.resource_memory_percentage_name, most=100, fraction="round up")

    def admit(container: ContainerView, _pod: PodView) -> Admitted | Denied:
        percent = valid(container)
        if isinstance(percent, Invalid):
            return Denied(why=f"container {container.name!r}: {percent}")
        limits: dict[str, str] = {}
        env: dict[str, str] = {}
        if settings.resource_priority_name in container.limits:
            env["CUDA_TASK_PRIORITY"] = container.limits[settings.resource_priority_name]
        if settings.gpu_core_policy != "default":
            env["GPU_CORE_UTILIZATION_POLICY"] = settings.gpu_core_policy
        implied = any(part in container.limits for part in parts) and settings.default_gpu_num > 0
        found = settings.resource_count_name in container.limits or implied
        if implied and settings.resource_count_name not in container.limits:
            limits[settings.resource_count_name] = str(settings.default_gpu_num)
        if _whole_cards(container, settings, percent, counted=found):
            limits[settings.resource_core_name] = "100"
            found = True
        lent = any(name.startswith(PREFIX) for name in container.limits)
        if not found and not lent and settings.overwrite_env:
            # NVIDIA's runtime adds the driver's files for none, and nothing at all for void.
            env[VISIBLE] = VOID if settings.delivery.cdi else "none"
        return Admitted(found=found, limits=limits, env=env, runtime_class=settings.runtime_class_name if found else "")

    return admit


def _whole_cards(container: ContainerView, settings: NvidiaSettings, percent: int | None, *, counted: bool) -> bool:
    """Cards are asked for, cores are not mentioned, and all of the memory is meant."""
    if not counted and limit_or_request(container, settings.resource_count_name) is None:
        return False
    if limit_or_request(container, settings.resource_core_name) is not None:
        return False
    if percent is not None:
        return percent == 100
    return limit_or_request(container, settings.resource_memory_name) is None


ANNOTATIONS = AnnotationKeys(
    register="hami.io/node-nvidia-register",
    handshake="hami.io/node-handshake",
    to_allocate="hami.io/vgpu-devices-to-allocate",
    allocated="hami.io/vgpu-devices-allocated",
    score="hami.io/node-nvidia-score",
)


def families(settings: NvidiaSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    resources = Resources(
        device_type=FAMILY,
        count=settings.resource_count_name,
        memory=settings.resource_memory_name,
        memory_percent=settings.resource_memory_percentage_name,
        cores=settings.resource_core_name,
        priority=settings.resource_priority_name,
        memory_factor=settings.memory_factor,
    )
    rules = SchedulingRules.registered(
        resources,
        ANNOTATIONS,
        policy(settings),
        decode=decode_json,
        admit=admission(settings),
        patch=patch,
    )
    rules = replace(rules, cordon=CORDON, instances=instances_of)
    return (Family(resources=resources, rules=rules),)
