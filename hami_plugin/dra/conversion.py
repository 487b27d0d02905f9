"""A pod that asks for devices by a vendor's resources, rewritten to ask for them by a ResourceClaim.

Its claim is made from a ResourceClaimTemplate that is named by its content, so that pods of one shape share one. What
a claim cannot say is refused, never left out. Nothing here waits.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hami_plugin.dra.slices import API_VERSION, CORES, MAX_CORES, MEMORY, driver_name, limits_shares, numbers
from hami_plugin.model.views import Json, PodView, whole
from hami_plugin.scheduler.engine.admission import Rewritten, Views
from hami_plugin.scheduler.engine.devices import ORDER_KEY, Demand, Denied, Invalid
from hami_plugin.scheduler.engine.fit import pod_demands
from hami_plugin.scheduler.engine.policy import ByNumaIf, ReadFirst, Selects
from hami_plugin.sdk import Family

CLAIMED = "hami-plugin.io/claimed"
"""The annotation of a pod whose limits were rewritten: what it counts for in quotas, and its templates."""
MANAGED = ("app.kubernetes.io/managed-by", "hami-plugin")
"""The label of templates that were made here, and may be removed."""
MAX_REQUESTS, MAX_DEVICES, MAX_SELECTOR = 32, 32, 8192
MAX_CLAIMED = 4096
_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimVendor:
    """A vendor whose devices go by claims: its families as they are then."""

    name: str
    families: tuple[Family, ...]

    @property
    def driver(self) -> str:
        return driver_name(self.name)

    @property
    def resources(self) -> frozenset[str]:
        """All that its pods may have among their limits."""
        named = {name for family in self.families for name in family.resources.names.values()}
        units = {one.resource for family in self.families for one in family.resources.units}
        return frozenset(named | units) - {""}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTemplate:
    """A ResourceClaimTemplate for pods of one shape. ``spec`` is what claims of it ask for."""

    name: str
    device_class: str
    spec: Json

    def document(self, namespace: str, owner: Json, used: str) -> dict[str, Any]:
        """The object. ``owner`` is the DeviceClass, with which it goes; ``used`` says when a pod last asked for it."""
        return {
            "apiVersion": API_VERSION,
            "kind": "ResourceClaimTemplate",
            "metadata": {
                "name": self.name,
                "namespace": namespace,
                "labels": dict([MANAGED]),
                "annotations": {USED: used},
                "ownerReferences": [owner],
            },
            "spec": {"spec": self.spec},
        }

    def is_in(self, document: Json) -> bool:
        """Whether an object of its name says the same. The API server writes quantities in a way of its own."""
        spec = document.get("spec")
        return isinstance(spec, Mapping) and bool(numbers(spec.get("spec")) == numbers(self.spec))


USED = "hami-plugin.io/last-used"
"""The annotation of a template: when a pod last asked for it, within a few minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedAmounts:
    """What a pod that was rewritten counts for: devices, MiB and percent, by resource. ``token`` is its own."""

    token: str
    amounts: Mapping[str, int] = field(default_factory=dict)
    templates: tuple[str, ...] = ()

    def text(self) -> str:
        """As the annotation has it."""
        return json.dumps(
            {"id": self.token, "amounts": dict(self.amounts), "templates": list(self.templates)},
            separators=(",", ":"),
            sort_keys=True,
        )


def read_claimed(text: str) -> ClaimedAmounts | None:
    """The annotation. None for what nobody here has written."""
    if not text or len(text) > MAX_CLAIMED:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, Mapping):
        return None
    amounts, templates = found.get("amounts"), found.get("templates")
    if not isinstance(amounts, Mapping) or not isinstance(templates, list):
        return None
    return ClaimedAmounts(
        token=str(found.get("id", ""))[:64],
        amounts={str(name): n for name, n in amounts.items() if type(n) is int and n >= 0},
        templates=tuple(str(name) for name in templates if isinstance(name, str)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedPod(Rewritten):
    """The pod with claims, what it counts for, and the templates that must be there before it."""

    claimed: ClaimedAmounts
    templates: tuple[ClaimTemplate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One container's request of one vendor."""

    at: int
    request: Mapping[str, Any]
    resource: str
    alone: bool
    same_numa: bool = False
    memory: int = 0
    cores: int = 0
    named: tuple[str, str] = ("", "")


def convert(stored: Json, pods: Views, vendors: Sequence[ClaimVendor], token: str) -> ConvertedPod | Denied | None:
    """The pod with claims in place of these vendors' limits; None where it asks for nothing of them."""
    view = pods.filled
    templates: list[ClaimTemplate] = []
    amounts: Counter[str] = Counter()
    listed: dict[int, list[dict[str, str]]] = {}
    claims: list[dict[str, str]] = []
    resources: frozenset[str] = frozenset()
    for vendor in vendors:
        asked = _asked(pods, vendor)
        if isinstance(asked, Denied):
            return asked
        if not asked:
            continue
        resources |= vendor.resources
        names, requests = _requests(asked)
        template = _template(vendor, requests)
        if too_many := _too_many(template):
            return Denied(why=too_many)
        claim = f"hami-{vendor.name}"
        if any(_text(one, "name") == claim for one in _list(_map(stored, "spec"), "resourceClaims")):
            return Denied(why=f"pod has a resourceClaim of the name {claim}, which is taken; give it another name")
        templates.append(template)
        claims.append({"name": claim, "resourceClaimTemplateName": template.name})
        for one in asked:
            listed.setdefault(one.at, []).append({"name": claim, "request": names[one.at, one.resource]})
        for one in requests.values():
            _count(amounts, one)
    if not templates:
        return None
    claimed = ClaimedAmounts(token=token, amounts=dict(amounts), templates=tuple(one.name for one in templates))
    annotated = {**stored, "metadata": _annotated(stored, claimed)}
    return ConvertedPod(
        stored=_with_claims(annotated, view, claims, listed, resources),
        view=_without(view, resources),
        claimed=claimed,
        templates=tuple(templates),
    )


def _count(amounts: Counter[str], one: _Asked) -> None:
    count = int(one.request["count"])
    amounts[one.resource] += count
    for name, amount in zip(one.named, (one.memory, one.cores), strict=True):
        if name:
            amounts[name] += count * amount


def _asked(pods: Views, vendor: ClaimVendor) -> Sequence[_Asked] | Denied:
    pod = pods.filled
    policies = {family.resources.device_type: family.rules.policy for family in vendor.families if family.rules.policy}
    wanted = pod_demands(pod, policies)
    if isinstance(wanted, Invalid):
        return Denied(why=str(wanted))
    found: list[_Asked] = []
    families = {family.resources.device_type: family for family in vendor.families}
    for at, (container, by_type) in enumerate(zip(pod.containers, wanted, strict=True)):
        for device_type, demand in by_type.items():
            one = _request(pods, at, families[device_type], demand, vendor)
            if isinstance(one, Denied):
                return one
            found.append(one)
        if not by_type and (lone := sorted(vendor.resources & container.limits.keys())):
            return Denied(
                why=f"container {container.name!r} asks for {lone[0]} and for no device; add the number of devices"
            )
        if len(by_type) > 1:
            return Denied(
                why=f"container {container.name!r} asks for {' and '.join(by_type)} of {vendor.name}, and one claim "
                "serves one type in a container; ask for one of them"
            )
    return found


def _request(pods: Views, at: int, family: Family, demand: Demand, vendor: ClaimVendor) -> _Asked | Denied:
    """The request of the pod's container ``at`` this place, but for its name."""
    pod, resources, parts = pods.filled, family.resources, limits_shares(family)
    container, written = pod.containers[at], pods.asked.containers[at]
    where = f"container {container.name!r}"
    if (parts and demand.detail is not None) or resources.sized_by_count:
        return Denied(
            why=f"{where} asks for a part of a device by {resources.count}, which a claim cannot say yet; use a node "
            f"whose frontEnd is device-plugin, and leave {vendor.name} out of scheduler.claimVendors"
        )
    capacity: dict[str, str] = {}
    if parts and demand.memory is None and (demand.percent or 100) != 100:
        return Denied(
            why=f"{where} asks for {demand.percent} percent of a device's memory, and a claim says amounts only; write "
            f"{resources.memory or 'all of it'} in place of {resources.memory_percent}"
        )
    cores = min(demand.cores, MAX_CORES)
    others = vendor.resources & (written.limits.keys() | written.requests.keys()) - {resources.count}
    if others and not parts:
        return Denied(
            why=f"{where} asks for {min(others)}, and claims give {resources.count} whole; leave it out, and ask "
            f"for a number of {resources.count}"
        )
    if parts and demand.memory:
        capacity[MEMORY] = f"{demand.memory}Mi"
    if parts and cores:
        capacity[CORES] = str(cores)
    selectors = _selectors(pod, family, vendor.driver)
    if isinstance(selectors, Denied):
        return selectors
    exactly: dict[str, Any] = {
        "deviceClassName": vendor.driver,
        "allocationMode": "ExactCount",
        "count": demand.count,
        "selectors": [{"cel": {"expression": one}} for one in selectors],
    }
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    group = family.rules.policy.group if family.rules.policy else None
    return _Asked(
        at=at,
        request=exactly,
        resource=resources.count,
        alone=container.alone,
        same_numa=demand.count > 1 and isinstance(group, ByNumaIf) and group.wanted(pod),
        memory=demand.memory or 0,
        cores=cores,
        named=(resources.memory, resources.cores),
    )


def _selectors(pod: PodView, family: Family, driver: str) -> Sequence[str] | Denied:
    """CEL that says which devices may serve: of the family's type, and as the pod's annotations choose."""
    attributes = f"device.attributes[{_quoted(driver)}]"
    found = [f"{attributes}.type == {_quoted(family.resources.device_type)}"]
    if "mutex" in pod.annotations.get(ORDER_KEY, ""):
        return Denied(
            why=f"{ORDER_KEY}: mutex cannot be said in a claim made of limits; ask for all slots in a claim of your own"
        )
    checks = family.rules.policy.serves if family.rules.policy else ()
    for check in checks:
        if not isinstance(check, ReadFirst):
            continue
        for key, negated in zip(check.keys, (False, True), strict=False):
            names = sorted({name.strip() for name in pod.annotations.get(key, "").split(",")} - {""})
            if not pod.annotations.get(key, "").strip():
                continue
            if check.selects is None:
                return Denied(why=f"annotation {key} cannot be said in a claim; leave it out, or write a claim")
            term = _chosen(check.selects, names, attributes)
            found.append(f"!({term})" if negated else f"({term})")
    return found


def _chosen(selects: Selects, names: Sequence[str], attributes: str) -> str:
    if selects is Selects.UUID:
        return f"{attributes}.?uuid.orValue('') in [{', '.join(map(_quoted, names))}]"
    product = f"{attributes}.?productName.orValue('').lowerAscii()"
    return " || ".join(f"{product}.contains({_quoted(name.lower())})" for name in names) or "false"


def _quoted(text: str) -> str:
    """A string of CEL, whose escapes are JSON's."""
    return json.dumps(text)


def _requests(asked: Iterable[_Asked]) -> tuple[Mapping[tuple[int, str], str], Mapping[str, _Asked]]:
    """The requests by their names, and which of them each container has.

    A plain init container has what a main container has that asks for the same: it is over before that one starts.
    """
    names: dict[tuple[int, str], str] = {}
    found: dict[str, _Asked] = {}
    for one in sorted(asked, key=lambda one: one.alone):
        like = (name for name, other in found.items() if one.alone and other.request == one.request)
        name = next(like, "") or f"devices-{len(found)}"
        found.setdefault(name, one)
        names[one.at, one.resource] = name
    return names, found


def _template(vendor: ClaimVendor, requests: Mapping[str, _Asked]) -> ClaimTemplate:
    devices: dict[str, Any] = {
        "requests": [{"name": name, "exactly": dict(one.request)} for name, one in requests.items()]
    }
    if numa := [name for name, one in requests.items() if one.same_numa]:
        devices["constraints"] = [
            {"requests": [name], "matchAttribute": "resource.kubernetes.io/numaNode"} for name in numa
        ]
    spec = {"devices": devices}
    digits = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:_DIGITS]
    return ClaimTemplate(name=f"hami-{vendor.name}-{digits}", device_class=vendor.driver, spec=spec)


def _too_many(template: ClaimTemplate) -> str:
    """Why no API server would take the template; empty when it will."""
    requests = template.spec["devices"]["requests"]
    count = sum(one["exactly"]["count"] for one in requests)
    if len(requests) > MAX_REQUESTS or count > MAX_DEVICES:
        return (
            f"pod asks for {count} devices of {template.device_class} in {len(requests)} containers; a claim has at "
            f"most {MAX_DEVICES} devices of {MAX_REQUESTS} requests; split the pod"
        )
    texts = [one["cel"]["expression"] for request in requests for one in request["exactly"]["selectors"]]
    if any(len(text) > MAX_SELECTOR for text in texts):
        return "the pod's annotations name too many devices for a claim's selector; name fewer, or a part of their type"
    return ""


def _with_claims(
    stored: Json,
    view: PodView,
    claims: Sequence[Json],
    listed: Mapping[int, Sequence[Json]],
    resources: frozenset[str],
) -> Json:
    """The pod as JSON: claims listed, and the vendors' limits taken out."""
    spec = dict(stored["spec"])
    spec["resourceClaims"] = [*_list(spec, "resourceClaims"), *claims]
    at = 0
    for key, init in (("initContainers", True), ("containers", False)):
        count = sum(one.init is init for one in view.containers)
        if count:
            spec[key] = [_container(raw, listed.get(at + n, ()), resources) for n, raw in enumerate(spec[key][:count])]
        at += count
    return {**stored, "spec": spec}


def _annotated(stored: Json, claimed: ClaimedAmounts) -> Json:
    metadata = _map(stored, "metadata")
    return {**metadata, "annotations": {**_map(metadata, "annotations"), CLAIMED: claimed.text()}}


def _container(raw: Json, listed: Sequence[Json], resources: frozenset[str]) -> Json:
    own = dict(_map(raw, "resources"))
    for key in ("limits", "requests"):
        if key in own:
            own[key] = {name: value for name, value in _map(own, key).items() if name not in resources}
    if listed:
        own["claims"] = [*_list(own, "claims"), *listed]
    return {**raw, "resources": own} if own else raw


def _without(view: PodView, resources: frozenset[str]) -> PodView:
    def rest(amounts: Mapping[str, str]) -> Mapping[str, str]:
        return {name: text for name, text in amounts.items() if name not in resources}

    containers = tuple(replace(one, limits=rest(one.limits), requests=rest(one.requests)) for one in view.containers)
    return replace(view, containers=containers)


def quota_excess(
    claimed: ClaimedAmounts, vendors: Iterable[ClaimVendor], hard: Iterable[Mapping[str, str]], used: Mapping[str, int]
) -> str:
    """What of a namespace's quotas is not enough for a pod by claims; empty when it may do.

    A limit of devices, memory or cores means the same as of pods that the kubelet counts. Memory that is limited has to
    be said: how much a whole device has is known only once there is one.
    """
    factors = {
        name: factor
        for vendor in vendors
        for one in vendor.families
        for name, factor in (
            (one.resources.count, 1),
            (one.resources.memory, max(1, one.resources.memory_factor)),
            (one.resources.cores, 1),
        )
        if name
    }
    memories = {one.resources.memory: one.resources.count for vendor in vendors for one in vendor.families}
    for key, text in ((key, text) for one in hard for key, text in one.items()):
        kind, _, name = key.partition(".")
        if kind not in ("limits", "requests") or name not in factors or name not in claimed.amounts:
            continue
        limit = whole(text) * factors[name]
        needed, taken = claimed.amounts[name], used.get(name, 0)
        if not needed and claimed.amounts.get(memories.get(name, "")):
            return f"{key} is limited in this namespace: say how much each container needs of {name}"
        if needed and taken + needed > limit:
            return f"{key}: the pod needs {needed}, and {taken} of {limit} are used"
    return ""


def _map(parent: Json, key: str) -> Json:
    value = parent.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(parent: Json, key: str) -> Sequence[Any]:
    value = parent.get(key)
    return value if isinstance(value, list) else ()


def _text(parent: object, key: str) -> str:
    return str(parent.get(key, "")) if isinstance(parent, Mapping) else ""
