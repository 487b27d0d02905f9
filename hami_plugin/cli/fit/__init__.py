"""``hami-plugin fit``: where a scheduler would place a pod, and which changes would make it fit.

An answer is plain data, printed as text or as JSON. Each change was tested with the scheduler's own rules, so it works
whatever the vendor's rules are.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import click

from hami_plugin.cli.fit.inquiry import FitAnswer, Inquiry, decision_annotations
from hami_plugin.cli.options import kubeconfig_option, names_of, profile_names, warnings_only
from hami_plugin.cli.tables import aligned
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView, whole
from hami_plugin.protocol.nodes import refusal_of
from hami_plugin.scheduler.engine.devices import OURS, Charge, Context, DeviceState, Quota, Reason
from hami_plugin.scheduler.engine.filter import NodeScore
from hami_plugin.scheduler.engine.fit import Granted, PodFit, Refused, Step, Unschedulable
from hami_plugin.scheduler.engine.policy import Policy
from hami_plugin.sdk import Family, unoccupied


@click.command(epilog="Example: kubectl get node gpu-1 -o yaml | hami-plugin fit pod.yaml --node - --pods pods.yaml")
@click.argument("pod", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--node",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="File with nodes, - for standard input.",
)
@click.option(
    "--profile",
    metavar="NAME",
    shell_complete=profile_names,
    help="A simulated idle machine instead of saved nodes, by name or file; several separated by commas.",
)
@click.option(
    "--simulate",
    metavar="PROFILE",
    shell_complete=profile_names,
    help="The same as --profile.",
)
@click.option("--cluster", is_flag=True, help="The live cluster's nodes, pods and quotas, by the API server.")
@kubeconfig_option
@click.option("--pods", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="File with running pods.")
@click.option(
    "--quota",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with resource quotas of the pod's namespace.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    envvar="HAMI_PLUGIN_CONFIG",
    help="The daemon's own YAML file, for simulated nodes.",
)
@click.option(
    "--device-config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    envvar="CONFIG_FILE",
    help="HAMi's device-config.yaml, for resource names and defaults.",
)
@click.option(
    "--gpu-scheduler-policy",
    callback=names_of("binpack", "spread", "numa", "mutex", "topology-aware"),
    default="spread",
    show_default=True,
    help="Order in which the scheduler tries devices.",
)
@click.option(
    "--node-scheduler-policy",
    type=click.Choice(["binpack", "spread"]),
    default="binpack",
    show_default=True,
    help="Which nodes the scheduler prefers.",
)
@click.option(
    "--explain", is_flag=True, help="Print every device, the limits that admission adds, and the annotations."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def fit(explain: bool, as_json: bool, **options: Any) -> None:
    """Print which devices POD (a manifest) would get, or why none, and what would make it fit.

    Nothing is changed. The exit status is 1 if the pod fits on no node.
    """
    from hami_plugin.cli.fit.inquiry import answer_inquiry, inquiry  # noqa: PLC0415

    with warnings_only():
        asked = inquiry(options, os.environ)
    found = facts(asked, answer_inquiry(asked))
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(lines(found, explain=explain)))
    sys.exit(not found["fits"])


WHOLE_NODE = {
    Reason.TOO_FEW_ON_NODE: "the node has fewer devices than requested",
    Reason.NUMA: "too few devices that belong together are free",
    Reason.NO_MIG_PLACE: "the instances do not fit together",
    Reason.ONE_PARTITION: OURS[Reason.ONE_PARTITION],
    Reason.UNCOUNTED: OURS[Reason.UNCOUNTED],
    Reason.MODE: "the node is not in the requested mode",
}


def unit(family: Family) -> str:
    """The unit of the family's memory."""
    return "%" if family.resources.memory_in_percent else "MiB"


def explain_reason(reason: Reason, state: DeviceState, context: Context, family: Family) -> str:
    """Why this device was refused."""
    assert family.rules.policy  # without one nothing is asked
    policy = family.rules.policy
    match reason:
        case Reason.NO_MEMORY:
            asked, free = _charge(state, context, policy).memory, max(0, state.free_memory)
            return f"{asked} {unit(family)} requested, {free} free"
        case Reason.NO_CORES:
            return f"{_charge(state, context, policy).cores} cores requested, {max(0, state.free_cores)} free"
        case Reason.NO_SLOT:
            return f"all {state.info.count} shares are taken"
        case Reason.EXCLUSIVE:
            return f"exclusive use is requested, and {_shares(state.slots)} taken"
        case Reason.NO_MIG_PLACE if room := _room(state):
            return f"{DEVICE[reason]}, though {room['slices_free']} of {room['slices_total']} slices are free"
        case _:
            text = DEVICE.get(reason, WHOLE_NODE.get(reason, str(reason)))
            detail = policy.detail(state, reason) if policy.detail else ""
            return f"{text}: {detail}" if detail else text


DEVICE = {
    Reason.UNHEALTHY: "it is not healthy",
    Reason.SICK: "it is not healthy",
    Reason.CORDONED: "an annotation of the node cordons it",
    Reason.TYPE_MISMATCH: "the pod does not accept its type or mode",
    Reason.UUID_MISMATCH: "the pod's annotations name other devices, or exclude this one",
    Reason.CORES_EXHAUSTED: "all of its cores are taken, and a share without cores needs some left",
    Reason.CUSTOM_RULE: "the vendor's rule excludes it in combination with the pod's other devices",
    Reason.NO_MIG_PLACE: "it has no free placement for an instance of this size",
    Reason.QOS_MISMATCH: "its tenants have another QoS class",
    Reason.APP_CLASS_MISMATCH: "its tenants have another application class",
    Reason.WHOLE_ONLY: "the node serves whole devices only, and a share is requested",
    Reason.NO_PARTITION: OURS[Reason.NO_PARTITION],
    Reason.QUOTA: "the namespace's quota does not cover it",
}


def overall(reason: Reason) -> str:
    """Why suitable devices are not enough."""
    return WHOLE_NODE.get(reason, DEVICE.get(reason, str(reason)))


def _charge(state: DeviceState, context: Context, policy: Policy) -> Charge:
    bill = policy.charge(state, context, ())
    return bill if isinstance(bill, Charge) else Charge()


def _shares(number: int) -> str:
    return "one share is" if number == 1 else f"{number} shares are"


Facts = Mapping[str, Any]


def facts(inquiry: Inquiry, answer: FitAnswer) -> Facts:
    """The chosen node first, then the other nodes where the pod fits, best first, then the rest."""
    best = answer.choice.best
    fitting = [_fitting(inquiry, answer.pod, one) for one in reversed(answer.choice.fitting)]
    return {
        "pod": answer.pod.key,
        "fits": best is not None,
        "node": best.node_info.node.name if best else None,
        "admission": _added(inquiry.pod, answer.pod),
        "nodes": [*fitting, *(_failed(inquiry, one) for one in answer.choice.failed)],
        "problems": list(answer.problems),
    }


def _fitting(inquiry: Inquiry, pod: PodView, scored: NodeScore) -> Facts:
    placed = scored.placed
    return {
        "node": scored.name,
        "fits": True,
        "score": scored.score,
        "steps": [_step(inquiry, step) for step in placed.steps],
        "annotations": dict(decision_annotations(inquiry, pod, placed)),
    }


def _failed(inquiry: Inquiry, unplaced: Unschedulable) -> Facts:
    return {
        "node": unplaced.node_info.node.name,
        "fits": False,
        "reason": unplaced.why,
        "steps": [_step(inquiry, step) for step in unplaced.steps],
        "remedies": [
            {"what": one.what, "container": one.container, "limits": dict(one.limits or {})}
            for one in remedies(inquiry, unplaced)
        ],
    }


def _added(before: PodView, after: PodView) -> list[Facts]:
    """Limits that admission adds or changes."""
    pairs = zip(before.containers, after.containers, strict=True)
    return [
        {"container": one.name, "limit": name, "value": text}
        for old, one in pairs
        for name, text in one.limits.items()
        if old.limits.get(name) != text
    ]


def _step(inquiry: Inquiry, step: Step) -> Facts:
    demand, outcome = step.context.demand, step.outcome
    family = next(family for family in inquiry.families if family.resources.device_type == demand.device_type)
    granted = {grant.uuid: grant for grant in outcome.grants} if isinstance(outcome, Granted) else {}
    refused = {verdict.state.uuid: verdict.reason for verdict in outcome.verdicts}
    return {
        "container": step.container.name,
        "init": step.container.init,
        "family": demand.device_type,
        "resource": family.resources.count,
        "count": demand.count,
        "memory": demand.memory,
        "percent": demand.percent,
        "cores": demand.cores,
        "memory_unit": unit(family),
        "order": ",".join(step.context.orders),
        "granted": isinstance(outcome, Granted),
        "said": _refusal(step),
        "because": [overall(reason) for reason in _of_the_node(outcome)],
        "devices": [
            {**_device(state, family), **_verdict(state, step, family, granted, refused.get(state.uuid))}
            for state in sorted(step.states, key=lambda state: (state.index, state.uuid))
        ],
    }


def _refusal(step: Step) -> str:
    """The node's own refusal of the family, if it applies here."""
    refusal = refusal_of(step.context.node.annotations, step.context.demand.device_type)
    whole = isinstance(step.outcome, Refused) and Reason.WHOLE_ONLY in {*step.outcome.reasons, *step.outcome.seen[1]}
    return str(refusal) if refusal and (whole or refusal.what == "all") else ""


def _of_the_node(outcome: Granted | Refused) -> list[Reason]:
    """The reasons of the node as a whole, except the number of devices."""
    if isinstance(outcome, Granted):
        return []
    of_devices = {verdict.reason for verdict in outcome.verdicts}
    return [reason for reason in outcome.reasons if reason not in of_devices and reason != Reason.TOO_FEW]


def _device(state: DeviceState, family: Family) -> Facts:
    info = state.info
    return {
        "index": info.index,
        "uuid": info.id,
        "type": info.type,
        "numa": info.numa,
        "memory_free": max(0, state.free_memory),
        "memory_total": info.devmem,
        "cores_free": family.resources.core_count(max(0, state.free_cores)),
        "cores_total": family.resources.core_count(info.devcore),
        "shares_free": max(0, info.count - state.slots),
        "shares_total": info.count,
        "used_by": sorted({tenant.name for tenant in state.tenants}),
        **_room(state),
    }


def _room(state: DeviceState) -> Facts:
    """What instances have left of a card that is cut: its slices, and the places of each profile. Else nothing."""
    profiles = state.info.mig_profiles
    if not profiles:
        return {}
    total = max((start + size for one in profiles for start, size in one.placements), default=0)
    taken = [(one.start, one.size) for one in state.slices]
    return {
        "slices_free": len(unoccupied([(number, 1) for number in range(total)], taken)),
        "slices_total": total,
        "places_left": {one.name: len(unoccupied(one.placements, taken)) for one in profiles},
    }


def _verdict(
    state: DeviceState, step: Step, family: Family, granted: Mapping[str, Grant], reason: Reason | None
) -> Facts:
    if state.uuid in granted:
        grant = granted[state.uuid]
        return {"verdict": "granted", "memory": grant.memory, "cores": family.resources.core_count(grant.cores)}
    if reason is None:
        return {"verdict": "would do"}
    return {"verdict": "refused", "reason": str(reason), "why": explain_reason(reason, state, step.context, family)}


ORDERS = {
    "spread": "the least used first",
    "binpack": "the most used first",
    "mutex": "only unused ones",
    "numa": "grouped by NUMA node",
    "topology-aware": "the best linked first",
}


def lines(facts: Facts, *, explain: bool = False) -> Iterator[str]:
    """The answer first; then the reasons for each device, if it is no or ``explain`` is set."""
    nodes = facts["nodes"]
    if not facts["fits"]:
        where = f"node {nodes[0]['node']}" if len(nodes) == 1 else f"any of {len(nodes)} nodes"
        yield f"Pod {facts['pod']} does not fit on {where}."
    else:
        others = sum(node["fits"] for node in nodes) - 1
        also = f" (and {others} more)" if others else ""
        yield f"Pod {facts['pod']} fits: node {facts['node']}{also}."
    for added in facts["admission"] if explain else ():
        yield f"Admission adds to container {added['container']}: {added['limit']}: {added['value']}"
    shown = nodes if explain or not facts["fits"] else nodes[:1]
    for node in shown:
        yield ""
        yield from _node(node, explain=explain)
    for problem in facts["problems"]:
        yield f"! unreadable: {problem}"


def _node(node: Facts, *, explain: bool) -> Iterator[str]:
    score = f", score {node['score']:g}" if explain and node["fits"] else ""
    yield f"Node {node['node']}: {'fits' + score if node['fits'] else 'does not fit'}"
    if not node["steps"]:
        yield f"  {node.get('reason') or 'the pod requests no devices'}"
    for step in node["steps"]:
        yield from _step_lines(step, explain=explain)
    if not node["fits"]:
        if explain:
            yield f"  HAMi's reason: {node['reason']}"
        yield from _remedies(node["remedies"])
    elif explain:
        yield "  Annotations that a scheduler writes to the pod:"
        yield from (f"    {key}: {text}" for key, text in node["annotations"].items())


def _step_lines(step: Facts, *, explain: bool) -> Iterator[str]:
    kind = "init container" if step["init"] else "container"
    yield f"  {kind} {step['container']} requests {_asked(step)}"
    if step["granted"] and not explain:
        granted = [device for device in step["devices"] if device["verdict"] == "granted"]
        yield from (
            f"    {line}" for line in aligned([_granted(device, step["memory_unit"]) for device in granted], right=(0,))
        )
        return
    if not step["granted"]:
        able = sum(device["verdict"] == "would do" for device in step["devices"])
        but = "".join(f"; {reason}" for reason in step["because"])
        yield f"  {able} of the node's {len(step['devices'])} devices are suitable, {step['count']} requested{but}"
        if step["said"]:
            yield f"  {step['said']}"
    if step["devices"]:
        yield from (f"    {line}" for line in _table(step["devices"], step["memory_unit"], explain=explain))
    if explain:
        yield f"  devices are tried {_order(step['order'])}"


def _order(orders: str) -> str:
    """A device order, explained if there is only one."""
    first = ORDERS.get(orders)
    return f"in the order {orders!r}" + (f": {first}" if first else "")


def _table(devices: Sequence[Facts], unit: str, *, explain: bool) -> list[str]:
    """One line for each device. A type that all share is printed once."""
    kinds = {device["type"] for device in devices}
    columns: list[tuple[str, Callable[[Facts], str]]] = [
        ("INDEX", lambda device: str(device["index"])),
        ("NUMA", lambda device: str(device["numa"])),
        ("MEMORY FREE" if unit == "MiB" else f"MEMORY FREE ({unit})", lambda device: _left(device, "memory")),
        ("CORES FREE", lambda device: _left(device, "cores")),
        ("SHARES FREE", lambda device: _left(device, "shares")),
        *([("SLICES FREE", _slices), ("PLACES LEFT", _places)] if any("places_left" in one for one in devices) else []),
        *([("USED BY", lambda device: ", ".join(device["used_by"]) or "-")] if explain else []),
        *([("TYPE", lambda device: str(device["type"]))] if len(kinds) > 1 else []),
        ("ANSWER", lambda device: _mark(device, unit)),
        ("UUID", lambda device: str(device["uuid"])),
    ]
    rows = [[title for title, _ in columns], *([cell(device) for _, cell in columns] for device in devices)]
    return [*([f"all devices: {next(iter(kinds))}"] if len(kinds) == 1 else []), *aligned(rows, right=range(5))]


def _asked(step: Facts) -> str:
    parts = [f"{step['count']} x {step['resource']}"]
    if step["memory"]:
        parts.append(f"{step['memory']} {step['memory_unit']}")
    elif step["percent"]:
        parts.append("all memory" if step["percent"] == 100 else f"{step['percent']} % of the memory")
    if step["cores"]:
        parts.append(f"{step['cores']} cores")
    each = " of each" if step["count"] > 1 else ""
    return f"{parts[0]}{', ' + ' and '.join(parts[1:]) + each if parts[1:] else ''}"


def _granted(device: Facts, unit: str) -> tuple[str, ...]:
    cores = f"{device['cores']} cores" if device["cores"] else "no limit on cores"
    memory = f"{device['memory']} {unit}" if device["memory"] else "no limit on memory"
    return (str(device["index"]), device["uuid"], device["type"], memory, cores)


def _left(device: Facts, what: str) -> str:
    total = device[f"{what}_total"]
    return f"{device[f'{what}_free']} of {total}" if total else "-"


def _slices(device: Facts) -> str:
    return f"{device['slices_free']} of {device['slices_total']}" if "places_left" in device else "-"


def _places(device: Facts) -> str:
    """The profiles that have a place left, with how many."""
    left = device.get("places_left", {})
    return ", ".join(f"{count} x {name}" for name, count in left.items() if count) or "-"


def _mark(device: Facts, unit: str) -> str:
    match device["verdict"]:
        case "granted":
            return f"yes: {device['memory']} {unit}, {device['cores']} cores"
        case "refused":
            return f"no: {device['why']}"
        case _:
            return "suitable"


def _remedies(found: Sequence[Any]) -> Iterator[str]:
    if not found:
        yield "  No tested change makes it fit: less of one resource, one annotation less, fewer pods."
        return
    yield "  It would fit"
    yield from (f"    - {one['what']}" for one in found)


MAX_TRIED = 12
"""Amounts tested for each resource, the largest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingChange:
    """A change after which the pod fits; ``limits`` if it changes a container's limits."""

    what: str
    container: str = ""
    limits: Mapping[str, str] | None = None


def remedies(inquiry: Inquiry, unplaced: Unschedulable) -> tuple[FittingChange, ...]:
    """All changes that work, the smallest first."""
    if not unplaced.steps:
        return ()
    step = unplaced.steps[-1]
    family = next(
        family for family in inquiry.families if family.resources.device_type == step.context.demand.device_type
    )
    node = unplaced.node_info.node
    asked_less = tuple(_less(inquiry, node, step, family))
    return (
        *asked_less,
        *_whole(inquiry, node, step, family),
        *_without_annotation(inquiry, node),
        *_without_quota(inquiry, node),
        *_without_pods(inquiry, node, family),
    )


def fits(inquiry: Inquiry, node: NodeView) -> bool:
    return isinstance(inquiry.on(node), PodFit)


def _less(inquiry: Inquiry, node: NodeView, step: Step, family: Family) -> Iterator[FittingChange]:
    """Less of one resource, or devices in a number that goes together; else less memory and fewer cores together."""
    container = inquiry.pod.container(step.container.name)
    if container is None:
        return
    names = family.resources
    amounts = _amounts(container, step, family)
    found = False
    for name in (names.memory, names.memory_percent, names.cores, names.count):
        tried = islice(((name, value) for value in amounts.get(name, ())), MAX_TRIED)
        if remedy := _first(inquiry, node, container, (dict([one]) for one in tried)):
            found = True
            yield remedy
    count = step.context.demand.count
    more = ({names.count: number} for number in range(count + 1, min(len(step.states), count + MAX_TRIED) + 1))
    if remedy := _first(inquiry, node, container, more):
        yield remedy
    if not found:
        pairs = product(amounts.get(names.memory, ()), amounts.get(names.cores, ()))
        both = ({names.memory: memory, names.cores: cores} for memory, cores in islice(pairs, MAX_TRIED**2))
        if remedy := _first(inquiry, node, container, both):
            yield remedy


def _whole(inquiry: Inquiry, node: NodeView, step: Step, family: Family) -> Iterator[FittingChange]:
    """Whole devices, where a part is asked for."""
    container, names = inquiry.pod.container(step.container.name), family.resources
    parts = [name for name in (names.memory, names.memory_percent, names.cores) if name]
    asked = [name for name in parts if container and name in container.limits]
    if container is None or not asked:
        return
    limits = {name: text for name, text in container.limits.items() if name not in asked}
    other = replace(container, limits=limits, requests={k: v for k, v in container.requests.items() if k not in asked})
    pod = replace(inquiry.pod, containers=tuple(other if one is container else one for one in inquiry.pod.containers))
    if fits(inquiry.asking(pod), node):
        yield FittingChange(what=f"if container {container.name} requests whole devices: without {' and '.join(asked)}")


def _amounts(container: ContainerView, step: Step, family: Family) -> Mapping[str, list[int]]:
    """What may be asked instead, by resource, the largest first: what a device or the quota has left; fewer devices."""
    names, factor = family.resources, max(1, family.resources.memory_factor)
    count, quota = step.context.demand.count, step.context.quota
    memory = {state.free_memory // factor for state in step.states}
    memory |= {(limit * factor - used) // factor // count for limit, used in _of_quota(quota, names.memory)}
    cores = {family.resources.core_count(max(0, state.free_cores)) for state in step.states}
    cores |= {(limit - used) // count for limit, used in _of_quota(quota, names.cores)}
    percents = {state.free_memory * 100 // state.info.devmem for state in step.states if state.info.devmem}
    asks_percent = names.memory_percent in container.limits
    return {
        names.memory: [] if asks_percent else _below(container, names.memory, memory),
        names.memory_percent: _below(container, names.memory_percent, percents) if asks_percent else [],
        names.cores: _below(container, names.cores, cores),
        names.count: list(range(count - 1, 0, -1)),
    }


def _of_quota(quota: Quota, resource: str) -> list[tuple[int, int]]:
    """The limit and what is used of it, if there is a limit."""
    return [(quota.limits[resource], quota.used.get(resource, 0))] if resource in quota.limits else []


def _below(container: ContainerView, name: str, values: set[int]) -> list[int]:
    text = container.limits.get(name)
    most = whole(text) if text is not None else None
    return sorted((value for value in values if value > 0 and (most is None or value < most)), reverse=True)


def _first(
    inquiry: Inquiry, node: NodeView, container: ContainerView, changes: Iterator[Mapping[str, int]]
) -> FittingChange | None:
    for change in changes:
        limits = {name: str(value) for name, value in change.items() if name}
        if limits and fits(inquiry.asking(_changed(inquiry.pod, container, limits)), node):
            return FittingChange(what=_description(container, limits), container=container.name, limits=limits)
    return None


def _changed(pod: PodView, container: ContainerView, limits: Mapping[str, str]) -> PodView:
    other = replace(container, limits={**container.limits, **limits})
    return replace(pod, containers=tuple(other if one is container else one for one in pod.containers))


def _description(container: ContainerView, limits: Mapping[str, str]) -> str:
    parts = [
        f"{name}: {value} instead of {container.limits[name]}" if name in container.limits else f"{name}: {value}"
        for name, value in limits.items()
    ]
    return f"if container {container.name} requests {' and '.join(parts)}"


def _without_annotation(inquiry: Inquiry, node: NodeView) -> Iterator[FittingChange]:
    for key, text in inquiry.pod.annotations.items():
        rest = {other: value for other, value in inquiry.pod.annotations.items() if other != key}
        if fits(inquiry.asking(replace(inquiry.pod, annotations=rest)), node):
            yield FittingChange(what=f"without the pod's annotation {key}: {text}")


def _without_quota(inquiry: Inquiry, node: NodeView) -> Iterator[FittingChange]:
    if inquiry.hard and fits(replace(inquiry, hard={}), node):
        yield FittingChange(what=f"with a larger quota of namespace {inquiry.pod.namespace}")


def _without_pods(inquiry: Inquiry, node: NodeView, family: Family) -> Iterator[FittingChange]:
    """One pod less; if that is not enough, all of them less."""
    holders = [pod.key for pod in inquiry.pods if pod.annotations.get(family.rules.annotations.allocated)]
    single = [key for key in holders if fits(inquiry.without([key]), node)]
    for key in single:
        yield FittingChange(what=f"once pod {key} has ended")
    if holders and not single and fits(inquiry.without(holders), node):
        yield FittingChange(what=f"once the other pods with {family.resources.count} on this node have ended")
