"""Which ids the kubelet should take, so that its account, the scheduler's and what containers see are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami_plugin.model.device import Snapshot
from hami_plugin.policy.identity import Held, Pending, reusing
from hami_plugin.policy.replicas import physical_counts, physical_id
from hami_plugin.protocol.decisions import Claim
from hami_plugin.scheduler.engine.topology.choice import best_linked


def preferred(
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    *,
    waiting: Pending,
    held: Mapping[tuple[str, str, str], Held],
    resource: str,
    snapshot: Snapshot,
) -> tuple[str, ...]:
    """``size`` of the ``available`` ids, ``must_include`` first; empty when no set of that size exists.

    The next pod in order of arrival whose decision has this size leads. Without one, the best-linked distinct devices,
    and those that nobody has a share of if there are enough.
    """
    if size <= 0 or len(must_include) > size or len(set(available) | set(must_include)) < size:
        return ()
    heir = reusing(must_include, waiting, held, resource) if must_include else None
    for claim in (heir,) if heir else waiting.next:
        if len(claim.devices) == size:
            decided = _decided(must_include, claim, strict=heir is None)
            if ids := _of(decided, available, must_include, size):
                return ids
            if ids := _of(waiting.instead(claim), available, must_include, size):
                return ids
    shared = {grant.uuid for share in held.values() for grant in share.grants}
    alone = [replica for replica in available if physical_id(replica) not in shared]
    if len({physical_id(replica) for replica in (*alone, *must_include)}) >= size:
        return _undecided(alone, must_include, size, snapshot)
    return _undecided(available, must_include, size, snapshot)


def _decided(must_include: Sequence[str], claim: Claim, *, strict: bool) -> Sequence[str]:
    """The devices of a decision, in its order, without those of re-used ids. Where ids of other devices are re-used,
    these count as they are, or ``strict``ly for nothing.
    """
    covered = physical_counts(must_include)
    left: list[str] = []
    for uuid in (grant.uuid for grant in claim.grants for _ in range(claim.ids(grant))):
        if covered[uuid] > 0:
            covered[uuid] -= 1
        else:
            left.append(uuid)
    return () if strict and covered.total() else left


def _of(devices: Sequence[str], available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
    """``size`` ids: beside those that must be one of each of these devices, while more are needed."""
    chosen = list(must_include)
    for uuid in devices[: size - len(chosen)]:
        # Of a thousand ids few are of this device, and those alone are worth more than a comparison.
        free = [one for one in available if one.startswith(uuid) and physical_id(one) == uuid and one not in chosen]
        if not free:
            return ()
        chosen.append(min(free, key=_place))
    return tuple(chosen) if len(chosen) == size else ()


def _undecided(available: Sequence[str], must_include: Sequence[str], size: int, snapshot: Snapshot) -> tuple[str, ...]:
    """Distinct devices that are linked best; a second id of one device only when there are not enough devices."""
    chosen = list(must_include)
    free: dict[str, list[str]] = {}
    for replica in _in_order(available):
        if replica not in chosen:
            free.setdefault(physical_id(replica), []).append(replica)
    taken = list(dict.fromkeys(physical_id(replica) for replica in chosen))
    order = [device.uuid for device in snapshot.devices if device.uuid in free or device.uuid in taken]
    count = min(len(order), len(taken) + size - len(chosen))
    required = [uuid for uuid in taken if uuid in order]
    for uuid in best_linked(order, count, snapshot.links, required=required) if count else ():
        if uuid not in taken and len(chosen) < size:
            chosen.append(free[uuid].pop(0))
    rest = [replica for replicas in free.values() for replica in replicas]
    chosen.extend(rest[: size - len(chosen)])
    return tuple(chosen)


def _in_order(ids: Sequence[str]) -> list[str]:
    return sorted(ids, key=_place)


def _place(replica: str) -> tuple[str, int, str]:
    """By device, then by share number as a number."""
    uuid = physical_id(replica)
    number = replica[len(uuid) :].lstrip("-:")
    return (uuid, int(number) if number.isdecimal() else 0, replica)
