"""What happens to a pod when it is created: it is left alone, given defaults and our scheduler, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hami_plugin.model.views import CONTAINER_LISTS, ContainerView, PodView, crowded, pod_view
from hami_plugin.process.concurrency import Pausing, run_without_pauses
from hami_plugin.scheduler.engine.devices import Admitted, Denied, Invalid, Quota
from hami_plugin.scheduler.engine.fit import overlong_annotation, pod_demands_pausing, requested_policies
from hami_plugin.scheduler.engine.node_info import (
    scheduling_policies,
    shares_without_device,
    shares_without_device_pausing,
)
from hami_plugin.scheduler.engine.policy import weights
from hami_plugin.scheduler.engine.quotas import beyond
from hami_plugin.sdk import Family

Operation = Mapping[str, Any]
"""``op``, ``path``, and the ``value`` unless something is removed."""


def json_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Operation, ...]:
    """The operations in order of their paths. Lists of another length are replaced whole."""
    return tuple(sorted(_differences("", before, after), key=lambda one: str(one["path"])))


def _differences(path: str, before: Any, after: Any) -> list[Operation]:
    if before is after:  # what was taken over as it is may be large, and nested deep
        return []
    match before, after:
        case Mapping(), Mapping():
            return _of_maps(path, before, after)
        case list(), list() if len(before) == len(after):
            pairs = enumerate(zip(before, after, strict=True))
            return [one for n, (old, new) in pairs for one in _differences(f"{path}/{n}", old, new)]
    return [] if before == after else [{"op": "replace", "path": path, "value": after}]


def _of_maps(path: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Operation]:
    found: list[Operation] = []
    for key in {**before, **after}:
        place = f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"
        if key not in after:
            found.append({"op": "remove", "path": place})
        elif key not in before:
            found.append({"op": "add", "path": place, "value": after[key]})
        else:
            found += _differences(place, before[key], after[key])
    return found


IGNORE = ("hami.io/webhook", "ignore")
"""The label of pods that admission leaves alone. HAMi's webhook configuration does not even ask about them."""

DEFAULT_SCHEDULER = "default-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """Which scheduler pods with devices go to; none when ``name`` is empty. ``replaces_default``: also those for which
    the cluster's own was chosen, by name or by the API server.
    """

    name: str = ""
    replaces_default: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A pod that asks for some of its devices in another way: as it is stored, and as these rules see it then."""

    stored: Mapping[str, Any]
    view: PodView


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """A pod as its user has ``asked`` for it, and with the defaults ``filled`` in."""

    asked: PodView
    filled: PodView


Rewrite = Callable[[Mapping[str, Any], Views], Rewritten | Denied | None]
"""Given the pod as it would be stored. None where there is nothing to rewrite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The pod is taken, with these changes. ``why`` says why it was left alone, if that needs an explanation."""

    changes: tuple[Operation, ...] = ()
    why: str = ""
    rewritten: Rewritten | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """A pod with the defaults that families fill in. ``found``: it uses a device of one of them."""

    pod: PodView
    found: bool


def review(
    pod: Mapping[str, Any],
    families: Sequence[Family],
    scheduling: Scheduling,
    quota: Quota | None = None,
    impossible: Callable[[PodView], str] = lambda _pod: "",
) -> Allowed | Denied:
    """``review_pausing``, without a pause."""
    return run_without_pauses(review_pausing(pod, families, scheduling, quota, impossible))


def review_pausing(
    pod: Mapping[str, Any],
    families: Sequence[Family],
    scheduling: Scheduling,
    quota: Quota | None = None,
    impossible: Callable[[PodView], str] = lambda _pod: "",
    *,
    rewrite: Rewrite = lambda _stored, _pod: None,
) -> Pausing[Allowed | Denied]:
    """Decide on a v1 Pod as the API server hands it over, with pauses. ``quota`` is its namespace's, and ``impossible``
    is why no node can ever serve the pod as it is stored.

    The beginning of each reason is HAMi's.
    """
    too_many = crowded(pod)
    view = pod_view({**pod, "spec": _without_containers(pod)} if too_many else pod)
    if outright := _outright(view, scheduling, crowded=bool(too_many)):
        return outright
    filled = Denied(why=too_many) if too_many else (yield from _filling(view, families))
    if isinstance(filled, Denied):
        return filled
    yield
    problem = yield from shares_without_device_pausing(filled.pod, families)
    if filled.found and not problem:
        problem = yield from _finding_problem(filled.pod, families, scheduling, quota or Quota())
    yield
    if problem:
        return Denied(why=problem)
    stored = _stored(pod, view, filled)
    rewritten = rewrite(stored, Views(asked=view, filled=filled.pod))
    if isinstance(rewritten, Denied):
        return rewritten
    seen, found = filled.pod, filled.found
    if rewritten:
        stored, seen = rewritten.stored, rewritten.view
        others = yield from _filling(seen, families)
        found = isinstance(others, Defaults) and others.found
    yield
    if why := impossible(seen):
        return Denied(why=why)
    yield
    if found and scheduling.name:
        stored = {**stored, "spec": {**stored["spec"], "schedulerName": scheduling.name}}
    return Allowed(changes=json_patch(pod, stored), rewritten=rewritten)


def _outright(view: PodView, scheduling: Scheduling, *, crowded: bool) -> Allowed | Denied | None:
    """What is decided before the pod's containers are looked at."""
    if why := _ignored(view):
        return Allowed(why=why)
    if not crowded and all(container.init for container in view.containers):
        return Denied(why="pod has no containers")
    if why := _elsewhere(view, scheduling):
        return Allowed(why=why)
    return None


def _without_containers(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in pod["spec"].items() if key not in CONTAINER_LISTS}


def admit_pod(pod: PodView, families: Sequence[Family]) -> PodView | Denied:
    """The pod as it is stored after admission: with defaults that families fill in."""
    filled = defaults(pod, families)
    if isinstance(filled, Denied):
        return filled
    lone = shares_without_device(filled.pod, families)
    return Denied(why=lone) if lone else filled.pod


def admit_document(pod: Mapping[str, Any], families: Sequence[Family]) -> Mapping[str, Any] | Denied:
    """The same for a v1 Pod: as the API server stores it after the webhook's review."""
    view = pod_view(pod)
    filled = defaults(view, families)
    return filled if isinstance(filled, Denied) else _stored(pod, view, filled)


def defaults(pod: PodView, families: Sequence[Family]) -> Defaults | Denied:
    """Ask each family about each container, init containers first."""
    return run_without_pauses(_filling(pod, families))


def _filling(pod: PodView, families: Sequence[Family]) -> Pausing[Defaults | Denied]:
    containers: list[ContainerView] = []
    annotations, found, runtime_class = dict(pod.annotations), False, pod.runtime_class
    so_far = pod
    for container in pod.containers:
        seen = container
        for family in families:
            answer = family.rules.admit(seen, so_far)
            if isinstance(answer, Denied):
                return answer
            seen = _changed(seen, answer)
            if answer.pod_annotations:
                annotations |= answer.pod_annotations
                so_far = replace(pod, annotations=dict(annotations))
            found, runtime_class = found or answer.found, runtime_class or answer.runtime_class
        containers.append(seen)
        yield
    stored = replace(pod, annotations=annotations, containers=tuple(containers), runtime_class=runtime_class)
    return Defaults(pod=stored, found=found)


def _ignored(pod: PodView) -> str:
    return f"pod is labelled {IGNORE[0]}: {IGNORE[1]}" if pod.labels.get(IGNORE[0]) == IGNORE[1] else ""


def _elsewhere(pod: PodView, scheduling: Scheduling) -> str:
    return "" if _ours(pod.scheduler, scheduling) else "pod already has different scheduler assigned"


def _ours(scheduler: str, scheduling: Scheduling) -> bool:
    if not scheduler or scheduler == scheduling.name:
        return True
    return scheduling.replaces_default and scheduler == DEFAULT_SCHEDULER


def _finding_problem(pod: PodView, families: Sequence[Family], scheduling: Scheduling, quota: Quota) -> Pausing[str]:
    """Why a pod with devices cannot be taken; empty when it can."""
    for container in pod.containers:
        if container.privileged:
            return f"container {container.name} is privileged: it would see every device of its node"
    if scheduling.name and pod.node:
        return "pod has node assigned: only the scheduler knows which devices of it are free"
    known = scheduling_policies(families)
    wanted, weighing = (yield from pod_demands_pausing(pod, known)), weights(pod.annotations)
    for asked in (wanted, weighing):
        if isinstance(asked, Invalid):
            return str(asked)
    assert not isinstance(wanted, Invalid)
    if too_long := overlong_annotation(pod, requested_policies(wanted, known)):
        return str(too_long)
    missing = beyond(pod, wanted, families, quota)
    return f"exceeding resource quota: {missing}" if missing else ""


def _changed(container: ContainerView, answer: Admitted) -> ContainerView:
    if not (answer.limits or answer.requests or answer.env):
        return container
    return replace(
        container,
        limits={**container.limits, **answer.limits},
        requests={**container.requests, **answer.requests},
        env={**container.env, **answer.env},
    )


def _stored(pod: Mapping[str, Any], view: PodView, filled: Defaults) -> Mapping[str, Any]:
    """The pod as JSON, with what is new in it."""
    spec = dict(pod["spec"])
    pairs = list(zip(view.containers, filled.pod.containers, strict=True))
    for key, init in (("initContainers", True), ("containers", False)):
        own = [pair for pair in pairs if pair[0].init is init]
        if own:
            spec[key] = [_container(raw, *pair) for raw, pair in zip(spec[key], own, strict=True)]
    if filled.pod.runtime_class:
        spec["runtimeClassName"] = filled.pod.runtime_class
    metadata = dict(pod.get("metadata") or {})
    if added := _added(view.annotations, filled.pod.annotations):
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **added}
    return {**pod, "metadata": metadata, "spec": spec}


def _container(raw: Mapping[str, Any], before: ContainerView, after: ContainerView) -> Mapping[str, Any]:
    resources = dict(raw.get("resources") or {})
    for key, old, new in (
        ("limits", before.limits, after.limits),
        ("requests", before.requests, after.requests),
    ):
        if added := _added(old, new):
            resources[key] = {**(resources.get(key) or {}), **added}
    changed = {**raw, "resources": resources} if resources else dict(raw)
    if added := _added(before.env, after.env):
        changed["env"] = _environment(raw.get("env") or (), added)
    return changed


def _environment(own: Sequence[Mapping[str, Any]], added: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Variables in their old places, since later ones may refer to earlier ones; new ones last."""
    new = {name: {"name": name, "value": value} for name, value in added.items()}
    there = {str(one.get("name")) for one in own}
    return [*(new.get(str(one.get("name")), one) for one in own), *(new[name] for name in new if name not in there)]


def _added(before: Mapping[str, str], after: Mapping[str, str]) -> Mapping[str, str]:
    return {key: value for key, value in after.items() if before.get(key) != value}
