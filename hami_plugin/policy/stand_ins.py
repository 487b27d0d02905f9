"""Ids that stand for a device whose own ids are with containers that were decided other devices.

The kubelet hands a plain init container's ids on to later containers of its pod, whatever was decided for those, and
keeps what nobody inherits until the pod is gone. So a device may have room for a share by the scheduler's account and
no id left, and as many ids of other devices are left over. What a container receives is what was decided all the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from hami_plugin.model.views import PodView
from hami_plugin.policy.identity import Held
from hami_plugin.policy.replicas import physical_counts
from hami_plugin.protocol.decisions import Claim, Question


def stand_ins(
    claim: Claim,
    question: Question,
    *,
    room: Mapping[str, int],
    held: Iterable[Held],
    pods: Iterable[PodView],
    others: Iterable[Claim] = (),
) -> tuple[str, ...]:
    """The device behind each id that the claim's container should take beside those that it inherits. Empty where its
    own devices have the ids, and where nothing may stand for them.

    ``room`` is how many ids each device has that the kubelet may hand out; ``held`` come in the order in which they
    were handed out, and ``others`` wait too. Nothing stands for a device that was decided more shares than it has ids.
    """
    shares = [one for one in held if one.resource == question.resource]
    inherited = _inherited(claim.pod.uid, shares)
    missing = len(claim.devices) - inherited.total()
    if missing <= 0:
        return ()
    used = physical_counts({taken for share in shares for taken in share.ids})
    free = Counter({uuid: count - used[uuid] for uuid, count in room.items()})
    own, short = _own(claim, inherited, free)
    if len(own) >= missing:
        return tuple(own[:missing])
    granted = _granted(claim.pod.uid, question, shares, {pod.uid: pod for pod in pods})
    wanted = Counter(claim.devices)
    if any(granted[uuid] + wanted[uuid] > room.get(uuid, 0) for uuid in short):
        return ()
    free.subtract(own)
    others_want = Counter(uuid for other in others if other.pod.uid != claim.pod.uid for uuid in other.devices)
    strange = _left_over(missing - len(own), free, others_want, Counter(granted), used)
    return (*own, *strange) if len(own) + len(strange) == missing else ()


def _inherited(uid: str, shares: Sequence[Held]) -> Counter[str]:
    """By device, the ids that the kubelet hands on to the pod's next container."""
    early = {taken for share in shares if share.uid == uid and share.init for taken in share.ids}
    late = {taken for share in shares if share.uid == uid and not share.init for taken in share.ids}
    return physical_counts(early - late)


def _own(claim: Claim, inherited: Counter[str], free: Counter[str]) -> tuple[list[str], set[str]]:
    """Of the claim's own devices those that have an id for it, and those that have none."""
    left, there = Counter(inherited), Counter(free)
    own: list[str] = []
    short: set[str] = set()
    for uuid in (grant.uuid for grant in claim.grants for _ in range(claim.ids(grant))):
        if left[uuid] > 0:
            left[uuid] -= 1
        elif there[uuid] > 0:
            there[uuid] -= 1
            own.append(uuid)
        else:
            short.add(uuid)
    return own, short


def _granted(uid: str, question: Question, shares: Sequence[Held], pods: Mapping[str, PodView]) -> Counter[str]:
    """By device, the ids' worth of what others have, and of what runs beside the next container of the pod ``uid``."""
    whose: defaultdict[str, list[Held]] = defaultdict(list)
    for share in shares:
        whose[share.uid].append(share)
    total: Counter[str] = Counter()
    for owner, its in whose.items():
        running, peak = Counter[str](), Counter[str]()
        for share in its:
            if share.undecided:
                worth = physical_counts(share.ids)
            else:
                worth = Counter(grant.uuid for grant in share.grants for _ in range(question.ids(grant)))
            if share.init:
                peak |= running + worth
            else:
                running += worth
        pod = pods.get(owner)
        over = owner == uid or (pod is not None and pod.phase == "Running")
        total += running if over else running | peak
    return total


def _left_over(
    count: int, free: Counter[str], others: Counter[str], granted: Counter[str], used: Counter[str]
) -> list[str]:
    """Devices of so many free ids: of those that were decided more shares than ids were taken of them before others,
    and of those that nobody else waits for before all.
    """
    lent, spare = granted - used, Counter(free)
    chosen: list[str] = []
    for _ in range(count):
        uuid = max(spare, key=lambda one: (spare[one] > 0, spare[one] > others[one], lent[one]), default="")
        if spare[uuid] <= 0:
            break
        spare[uuid] -= 1
        lent[uuid] -= 1
        chosen.append(uuid)
    return chosen
