"""An allocated ResourceClaim: what it has of a driver's devices here, and which containers have which part of it.

Amounts are those that the scheduler has booked, never defaults of ours. Nothing here waits, and whatever is not as the
scheduler and the API server write it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hami_plugin.dra.slices import CORES, MEMORY, SLOTS, Offered, consumed_mebibytes
from hami_plugin.errors import HamiError
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, Json, PodView, whole
from hami_plugin.sdk import Parameters
from hami_plugin.sdk.partitions import NOWHERE, Placement

MAX_RESULTS, MAX_CONSUMERS, MAX_CONFIG = 32, 256, 1024
"""Classes and the claim may have 32 entries of configuration each; so may each of 32 requests' classes."""
_UID = re.compile(r"[0-9a-zA-Z](?:[-0-9a-zA-Z]{0,62}[0-9a-zA-Z])?")
_REQUEST = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


class ClaimReason(StrEnum):
    """Why a claim is refused, as in metrics."""

    UNREADABLE = "Unreadable"
    REPLACED = "Replaced"
    NOT_ALLOCATED = "NotAllocated"
    NO_POD = "NoPod"
    INVALID = "Invalid"
    UNSUPPORTED = "Unsupported"
    UNKNOWN_DEVICE = "UnknownDevice"
    UNHEALTHY = "Unhealthy"
    IN_USE = "InUse"
    NOT_SERVED = "NotServed"
    HOST = "Host"
    DISK = "Disk"
    TIMEOUT = "Timeout"
    FAILED = "Failed"


class ClaimError(HamiError):
    """A claim that cannot be made ready. The kubelet shows the text at its pod, and asks again."""

    def __init__(self, message: str, *, hint: str = "", reason: ClaimReason = ClaimReason.INVALID) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One device that a claim was given. ``request`` is the main name; amounts are in MiB and percent.

    One without ``share_id`` is whole. ``admin`` looks after a device that others have.
    """

    request: str
    device: str
    share_id: str = ""
    memory: int = 0
    cores: int = 0
    slots: int = 0
    admin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a DeviceClass or the claim says to the devices of these requests, as it is written."""

    requests: frozenset[str]
    by_class: bool
    parameters: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim as far as it is a driver's. ``consumers`` are UIDs of the pods that it is reserved for."""

    uid: str
    namespace: str
    name: str
    results: tuple[Result, ...]
    consumers: tuple[str, ...]
    config: tuple[Config, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def read_claim(document: Json, *, uid: str, driver: str, pool: str) -> Claim:
    """What ``driver`` has to make ready of a ResourceClaim. ``ClaimError`` where it is not to be, or unreadable."""
    meta = _map(document, "metadata")
    namespace, name = str(meta.get("namespace", "")), str(meta.get("name", ""))
    key = f"ResourceClaim {namespace}/{name}"
    if meta.get("uid") != uid or not _UID.fullmatch(uid):
        raise ClaimError(
            f"{key} was replaced: its UID is not {uid[:64]}",
            hint="the kubelet asks about the present one",
            reason=ClaimReason.REPLACED,
        )
    status = _map(document, "status")
    allocation = _map(_map(status, "allocation"), "devices")
    if not allocation:
        raise ClaimError(
            f"{key} is not allocated",
            hint="its pod has ended, or the scheduler has yet to decide",
            reason=ClaimReason.NOT_ALLOCATED,
        )
    results = [one for one in _list(allocation, "results") if isinstance(one, Mapping) and one.get("driver") == driver]
    if not 0 < len(results) <= MAX_RESULTS:
        raise ClaimError(f"{key} has {len(results)} devices of {driver}; from 1 to {MAX_RESULTS} can be made ready")
    consumers = [one for one in _list(status, "reservedFor") if isinstance(one, Mapping)]
    pods = tuple(str(one.get("uid", "")) for one in consumers if one.get("resource") == "pods")[:MAX_CONSUMERS]
    if not pods:
        raise ClaimError(f"{key} is reserved for no pod", hint="its pod has ended", reason=ClaimReason.NO_POD)
    return Claim(
        uid=uid,
        namespace=namespace,
        name=name,
        results=tuple(_result(one, key, pool) for one in results),
        consumers=pods,
        config=_config(_list(allocation, "config"), [str(one.get("request", "")) for one in results], driver),
    )


def _config(entries: Sequence[object], requests: Sequence[str], driver: str) -> tuple[Config, ...]:
    """What classes, then the claim, say to the driver's devices. ``requests`` are as the scheduler chose them."""
    found = []
    for one in entries[:MAX_CONFIG]:
        opaque = _map(one, "opaque") if isinstance(one, Mapping) else {}
        if not isinstance(one, Mapping) or opaque.get("driver") != driver:
            continue
        named = [str(name) for name in _list(one, "requests")]
        about = [each for each in requests if not named or each in named or each.partition("/")[0] in named]
        found.append(
            Config(
                requests=frozenset(each.partition("/")[0] for each in about),
                by_class=one.get("source") == "FromClass",
                parameters=opaque.get("parameters"),
            )
        )
    return tuple(found)


def environment(claim: Claim, request: str, known: Parameters, driver: str) -> Mapping[str, str]:
    """What the parameters of a request say to its containers: later ones beat earlier ones, a claim its class."""
    variables: dict[str, str] = {}
    for one in sorted(claim.config, key=lambda one: not one.by_class):
        if request in one.requests:
            try:
                variables |= known.read(one.parameters, driver, by_class=one.by_class)
            except ValueError as error:
                whose = "its DeviceClass" if one.by_class else "itself"
                raise ClaimError(
                    f"ResourceClaim {claim.key}, request {request}: of {whose}, {error}", reason=ClaimReason.UNSUPPORTED
                ) from error
    return variables


def _result(one: Json, key: str, pool: str) -> Result:
    request = str(one.get("request", "")).partition("/")[0]
    device, share = str(one.get("device", "")), str(one.get("shareID") or "")
    if one.get("pool") != pool:
        raise ClaimError(f"{key} has a device of pool {str(one.get('pool'))[:253]!r}, and this node's is {pool}")
    if not _REQUEST.fullmatch(request) or not _REQUEST.fullmatch(device) or (share and not _UID.fullmatch(share)):
        raise ClaimError(f"{key} has a device that no scheduler allocates: {request[:64]!r}, {device[:64]!r}")
    amounts = _map(one, "consumedCapacity")
    try:
        return Result(
            request=request,
            device=device,
            share_id=share,
            memory=consumed_mebibytes(amounts.get(MEMORY, "0")),
            cores=max(0, whole(amounts.get(CORES, "0"))),
            slots=max(0, whole(amounts.get(SLOTS, "0"))),
            admin=one.get("adminAccess") is True,
        )
    except ValueError as error:
        raise ClaimError(f"{key} has an amount of {device} that cannot be read: {error}") from error


def _map(parent: Json, key: str) -> Json:
    value = parent.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(parent: Json, key: str) -> Sequence[object]:
    value = parent.get(key)
    return value if isinstance(value, list) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A container of a pod, and the requests of a claim that it receives."""

    pod: PodView
    container: ContainerView
    requests: frozenset[str]


def uses_of_claim(claim: Claim, pods: Iterable[PodView]) -> tuple[Use, ...]:
    """The containers of ``pods`` that receive something of the claim."""
    every = frozenset(result.request for result in claim.results)
    found = []
    for pod in pods:
        names = {name for name, real in pod.claims.items() if real == claim.name and pod.namespace == claim.namespace}
        for container in pod.containers:
            listed = [request for name, request in container.claims if name in names]
            own = every if "" in listed else every & {request.partition("/")[0] for request in listed}
            if own:
                found.append(Use(pod=pod, container=container, requests=own))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a claim gives to one container: some of its requests, always together.

    ``use`` is the container that they are made ready for; None where nobody receives them.
    """

    requests: tuple[str, ...]
    results: tuple[Result, ...]
    use: Use | None


def parts(claim: Claim, used: Sequence[Use], shared: Mapping[str, bool]) -> tuple[Part, ...]:
    """The claim's results by the containers that receive them. ``shared`` are devices that containers have parts of.

    A container has one list of limits, in the order of its devices: several requests make one only where all who have
    one of them have all. And what counts a container's part counts the processes that it can see: of that container
    alone, or of all containers of a pod that share their processes.
    """
    groups: dict[frozenset[tuple[str, str]], list[str]] = {}
    for request in dict.fromkeys(result.request for result in claim.results):
        users = frozenset((use.pod.uid, use.container.name) for use in used if request in use.requests)
        groups.setdefault(users, []).append(request)
    found = []
    for users, requests in groups.items():
        results = tuple(result for result in claim.results if result.request in requests)
        holders = [use for use in used if (use.pod.uid, use.container.name) in users]
        lasting = [use for use in holders if not use.container.alone]
        together = len({use.pod.uid for use in lasting}) == 1 and lasting[0].pod.shares_processes
        if (
            len(lasting) > 1
            and not together
            and any(shared.get(result.device) and not result.admin for result in results)
        ):
            names = " and ".join(f"{use.container.name} of {use.pod.key}" for use in lasting[:2])
            raise ClaimError(
                f"request {requests[0]} of ResourceClaim {claim.key} is for containers {names}, "
                "and limits are counted for one container",
                hint="give each container a request of its own, or set the pod's shareProcessNamespace: true and "
                "have them share one limit",
                reason=ClaimReason.UNSUPPORTED,
            )
        given = [result.device for result in results]
        twice = next((device for device in given if given.count(device) > 1), None)
        if twice and holders:
            raise ClaimError(
                f"container {holders[0].container.name} of {holders[0].pod.key} is given two shares of {twice}",
                hint="ask for the sum in one request, or for different devices with distinctAttribute",
                reason=ClaimReason.UNSUPPORTED,
            )
        found.append(Part(requests=tuple(requests), results=results, use=next(iter(lasting or holders), None)))
    for use in used:
        own = [part for part in found if use.requests & set(part.requests)]
        if len(own) > 1:
            names = " and ".join(part.requests[0] for part in own[:2])
            raise ClaimError(
                f"container {use.container.name} of {use.pod.key} receives requests {names} of ResourceClaim "
                f"{claim.key}, one of which another container has too",
                hint="put its devices into one request",
                reason=ClaimReason.UNSUPPORTED,
            )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedShare:
    """A share of a device as it was made ready: the grant, and how many slots it has. ``admin`` counts for nothing.

    With a ``profile`` it is a partition of the card that the grant names.
    """

    request: str
    device: str
    grant: Grant
    share_id: str = ""
    memory: int = 0
    cores: int = 0
    slots: int = 1
    admin: bool = False
    profile: str = ""
    placement: Placement = NOWHERE


def excess(
    wanted: Iterable[PreparedShare], others: Mapping[str, Sequence[PreparedShare]], offered: Iterable[Offered]
) -> str:
    """What of ``wanted`` a device has not left beside the ``others``, by claim; empty where all fits.

    The scheduler sees to that too. But it gives away what a pod has that was deleted by force before the pod has ended.
    """
    cards = {one.device.uuid: one for one in offered}
    by_amounts = {uuid for uuid, one in cards.items() if one.shared}
    own = [held for held in wanted if not held.admin and (not held.profile or held.grant.uuid in by_amounts)]
    for uuid in dict.fromkeys(held.grant.uuid for held in own):
        device = cards.get(uuid)
        whose = [key for key, shares in others.items() for held in shares if held.grant.uuid == uuid and not held.admin]
        beside = [held for shares in others.values() for held in shares if held.grant.uuid == uuid and not held.admin]
        if device is None:
            continue
        if whose and not device.shared:
            return f"{device.name} is still prepared for ResourceClaim {whose[0]}"
        together = [*beside, *(held for held in own if held.grant.uuid == uuid)]
        for what, total in ((MEMORY, device.memory), (CORES, device.cores), (SLOTS, device.slots)):
            asked = sum(getattr(held, what) for held in together)
            if total and asked > total:
                who = f", with what ResourceClaim {whose[0]} still has" if whose else ""
                return f"{asked} of {total} {what} of {device.name} would be given out{who}"
    return ""
