"""The question of a pod and some nodes, read from files as kubectl saves them, and the scheduler's answer to it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from hami_plugin.cli.snapshot import snapshot_of
from hami_plugin.daemon.startup import StartPlan, open_drivers, plan
from hami_plugin.errors import HamiError
from hami_plugin.host.bounded_yaml import BoundedLoader
from hami_plugin.host.paths import HostPaths
from hami_plugin.inventory.inventory import part
from hami_plugin.model.device import Device
from hami_plugin.model.machine import Machine
from hami_plugin.model.views import NodeView, PodView, node_view, pod_view
from hami_plugin.node_status.registration import Style, wanted_annotations
from hami_plugin.scheduler.engine.admission import admit_pod
from hami_plugin.scheduler.engine.capacity import sizes, why_impossible
from hami_plugin.scheduler.engine.devices import Denied, Quota
from hami_plugin.scheduler.engine.filter import ScoredNodes, score_nodes
from hami_plugin.scheduler.engine.fit import CycleOptions, PodFit, Unschedulable, fit_pod
from hami_plugin.scheduler.engine.node_info import (
    count_mismatch,
    insufficient_ids,
    insufficient_other,
    patch,
    read_idle_node,
    read_node,
    scheduling_policies,
)
from hami_plugin.scheduler.engine.quotas import quota
from hami_plugin.sdk import Family, load_vendor
from hami_plugin.simulation.machines import load_machine

Json = Mapping[str, Any]

PLAIN = ("annotations", "labels", "limits", "requests", "capacity", "allocatable", "hard")
"""Mappings of texts and numbers, whose keys are anybody's."""
NESTED = ("metadata", "spec", "status", "template", "jobTemplate", "resources", "securityContext", "schedulingGroup")
LISTS = ("items", "initContainers", "containers", "env")


def misshapen(value: Json, place: str = "") -> str:
    """The first field of the wrong type, as a message; empty if there is none."""
    for key in (*PLAIN, *NESTED):
        inner = value.get(key)
        if inner is not None and not isinstance(inner, Mapping):
            return f"{place}{key} is {_shown(inner)}; it must be a mapping"
        if inner and key in NESTED and (found := misshapen(inner, f"{place}{key}.")):
            return found
    for key in LISTS:
        if found := _of_list(value.get(key), f"{place}{key}"):
            return found
    return ""


def _of_list(value: object, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, list):
        return f"{place} is {_shown(value)}; it must be a list"
    for number, item in enumerate(value):
        if not isinstance(item, Mapping):
            return f"{place}[{number}] is {_shown(item)}; it must be a mapping"
        if found := misshapen(item, f"{place}[{number}]."):
            return found
    return ""


def _shown(value: object) -> str:
    return repr(value)[:40]


STANDARD_INPUT = Path("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hard:
    """The limits of one ResourceQuota."""

    namespace: str
    limits: Mapping[str, str]


class _Cluster(BoundedLoader):
    """All pods of a large cluster in one file have some million values."""

    most_nodes = 5_000_000


def the_pod(path: Path) -> PodView:
    """The one pod in a file, or the pod that its workload (Deployment, Job, …) makes."""
    found = [pod for item in _objects(path) if (pod := _pod(item)) is not None]
    if len(found) != 1:
        kinds = ", ".join(sorted({str(item.get("kind")) for item in _objects(path)})) or "nothing"
        raise HamiError(f"{path}: has {len(found)} pods ({kinds})", hint="give a file with one pod or one workload")
    return found[0]


def read_nodes(path: Path) -> tuple[NodeView, ...]:
    """All nodes of a file."""
    found = tuple(node_view(item) for item in _objects(path) if item.get("kind") == "Node")
    if not found:
        raise HamiError(f"{path}: has no node", hint="save one with kubectl get node NAME -o yaml")
    return found


def read_pods(path: Path) -> tuple[PodView, ...]:
    """All pods of a file; it may have none."""
    return tuple(pod_view(item) for item in _objects(path) if item.get("kind") == "Pod")


def read_quotas(path: Path) -> tuple[Hard, ...]:
    """All resource quotas of a file."""
    return tuple(
        Hard(
            namespace=str((item.get("metadata") or {}).get("namespace", "default")),
            limits={str(key): str(value) for key, value in ((item.get("spec") or {}).get("hard") or {}).items()},
        )
        for item in _objects(path)
        if item.get("kind") == "ResourceQuota"
    )


def _pod(item: Json) -> PodView | None:
    """A pod, or a workload's pod under the workload's name."""
    if item.get("kind") == "Pod":
        return pod_view(item)
    spec = item.get("spec") or {}
    template = ((spec.get("jobTemplate") or {}).get("spec") or spec).get("template")
    if not isinstance(template, Mapping):
        return None
    meta = {**(item.get("metadata") or {}), "annotations": None, **(template.get("metadata") or {})}
    return pod_view({**template, "metadata": {**meta, "name": (item.get("metadata") or {}).get("name", "")}})


def _objects(path: Path) -> Iterator[Json]:
    try:
        text = sys.stdin.read() if path == STANDARD_INPUT else path.read_text(encoding="utf-8")
        documents = list(yaml.load_all(text, _Cluster))  # a safe loader, with bounds
    except (yaml.YAMLError, ValueError) as error:
        raise HamiError(
            f"{path}: cannot be read as YAML or JSON: {error}", hint="save it with kubectl get -o yaml"
        ) from error
    for document in documents:
        if not isinstance(document, Mapping):
            continue
        if wrong := misshapen(document):
            raise HamiError(f"{path}: {wrong}", hint="write it as `kubectl explain` has it")
        items = document.get("items")
        yield from [document] if items is None else items


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """``pod`` is as written, before admission; ``pods`` run already. ``hard`` are the limits of its namespace."""

    pod: PodView
    nodes: tuple[NodeView, ...]
    families: tuple[Family, ...]
    pods: tuple[PodView, ...] = ()
    hard: Mapping[str, str] = field(default_factory=dict)
    order: str = "spread"
    node_order: str = "binpack"

    def admitted(self) -> PodView | Denied:
        """The pod as it would be stored."""
        return admit_pod(self.pod, self.families)

    def options(self) -> CycleOptions:
        """The cluster's order and the namespace's quota. HamiError when a quota is no quantity."""
        try:
            counted = quota(self.pod.namespace, self.hard, self.families, self.pods) if self.hard else Quota()
        except ValueError as error:
            raise HamiError(f"the quota of namespace {self.pod.namespace}: {error}") from error
        return CycleOptions(order=self.order, quota=counted)

    def on(self, node: NodeView) -> PodFit | Unschedulable | Denied:
        """The answer for one node."""
        pod = self.admitted()
        if isinstance(pod, Denied):
            return pod
        node_info = read_node(node, self.families, self.pods).node_info
        if missing := self.unasked(pod, node):
            return Unschedulable(node_info=node_info, why=missing)
        placed = fit_pod(pod, scheduling_policies(self.families), node_info, self.options())
        wrong = self.uncountable(pod, placed) if isinstance(placed, PodFit) else ""
        return Unschedulable(node_info=node_info, why=wrong) if wrong else placed

    def uncountable(self, pod: PodView, placed: PodFit) -> str:
        """Why the kubelet would not hand out what was decided, by its own count of the node; empty when it would."""
        return count_mismatch(pod, placed.given, self.families) or insufficient_ids(
            pod, placed.node_info, self.families
        )

    def unasked(self, pod: PodView, node: NodeView) -> str:
        """Why the pod is refused before the rules are asked about this node: by kube-scheduler, or when it is created.

        As if this node were the cluster's largest: where another is larger, it does not fit here all the more.
        """
        idle = read_idle_node(node, self.families).node_info
        return insufficient_other(pod, node, self.families) or why_impossible(
            pod, self.families, sizes(idle, self.families)
        )

    def asking(self, pod: PodView) -> Inquiry:
        """The same about another pod."""
        return replace(self, pod=pod)

    def without(self, keys: Container[str]) -> Inquiry:
        """The same, once these pods (namespace/name) are over."""
        return replace(self, pods=tuple(pod for pod in self.pods if pod.key not in keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class FitAnswer:
    """What the scheduler would do. ``problems`` are annotations that nobody can read."""

    pod: PodView
    choice: ScoredNodes
    problems: tuple[str, ...]


def answer_inquiry(inquiry: Inquiry) -> FitAnswer:
    """Ask the scheduler's rules about all nodes. HamiError when admission denies the pod."""
    pod = inquiry.admitted()
    if isinstance(pod, Denied):
        raise HamiError(f"pod {inquiry.pod.key} is denied by admission: {pod.why}")
    surveyed = [read_node(node, inquiry.families, inquiry.pods) for node in inquiry.nodes]
    missing = {one.node_info.node.name: inquiry.unasked(pod, one.node_info.node) for one in surveyed}
    node_infos = [one.node_info for one in surveyed if not missing[one.node_info.node.name]]
    choice = score_nodes(
        pod, scheduling_policies(inquiry.families), node_infos, inquiry.options(), order=inquiry.node_order
    )
    wrong = {one.name: inquiry.uncountable(pod, one.placed) for one in choice.fitting}
    counted = [
        Unschedulable(node_info=one.placed.node_info, why=wrong[one.name]) for one in choice.fitting if wrong[one.name]
    ]
    elsewhere = [
        Unschedulable(node_info=one.node_info, why=why) for one in surveyed if (why := missing[one.node_info.node.name])
    ]
    return FitAnswer(
        pod=pod,
        choice=ScoredNodes(
            fitting=tuple(one for one in choice.fitting if not wrong[one.name]),
            failed=(*choice.failed, *counted, *elsewhere),
        ),
        problems=tuple(problem for one in surveyed for problem in one.problems),
    )


def decision_annotations(inquiry: Inquiry, pod: PodView, placed: PodFit) -> Mapping[str, str]:
    """The annotations of this decision."""
    return patch(inquiry.families, pod, placed)


NOBODY = {"config": None, "device_config": None, "node_config": None, "nvml_library": None, "simulation_dir": None}
INSTANCE_TYPE = "node.kubernetes.io/instance-type"


def inquiry(options: Mapping[str, Any], environment: Mapping[str, str]) -> Inquiry:
    """Read everything that the command's options name."""
    if sum(bool(options[name]) for name in ("node", "simulate", "profile", "cluster")) != 1:
        raise HamiError(
            "fit needs a node", hint="give one of --node FILE, --cluster, --profile NAME or --simulate NAME"
        )
    pod = the_pod(options["pod"])
    if options["cluster"]:
        return _live(pod, options, environment)
    nodes, families = _nodes(options, environment)
    quotas = read_quotas(options["quota"]) if options["quota"] else ()
    return Inquiry(
        pod=pod,
        nodes=nodes,
        families=families,
        pods=read_pods(options["pods"]) if options["pods"] else (),
        hard={name: text for one in quotas if one.namespace == pod.namespace for name, text in one.limits.items()},
        order=options["gpu_scheduler_policy"],
        node_order=options["node_scheduler_policy"],
    )


def _live(pod: PodView, options: Mapping[str, Any], environment: Mapping[str, str]) -> Inquiry:
    """The question about a cluster as it is now."""
    from hami_plugin.cli.live import read_cluster  # noqa: PLC0415  # files need no Kubernetes
    from hami_plugin.scheduler.extender.app import configured, families  # noqa: PLC0415

    if options["pods"] or options["quota"]:
        raise HamiError("--cluster reads pods and quotas itself", hint="leave --pods and --quota out")
    known = families(configured({key: options[key] for key in ("config", "device_config")}, environment))
    cluster = asyncio.run(read_cluster(options["kubeconfig"], environment, pod.namespace))
    return Inquiry(
        pod=pod,
        nodes=cluster.nodes,
        families=known,
        pods=tuple(one for one in cluster.pods if one.key != pod.key),
        hard=cluster.hard,
        order=options["gpu_scheduler_policy"],
        node_order=options["node_scheduler_policy"],
    )


def _nodes(
    options: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[tuple[NodeView, ...], tuple[Family, ...]]:
    """The nodes to ask about, and the families by whose rules they have devices."""
    known = {**NOBODY, **options}
    if options["node"]:
        return read_nodes(options["node"]), _families(_planned(known, "", environment, "this-node"))
    machines = options["simulate"] or options["profile"]
    loaded = [load_machine(name.strip()) for name in machines.split(",") if name.strip()]
    name = "-".join(machine.name for machine in loaded)
    ready = _planned(known, machines, environment, name)
    return (simulated_node(ready, loaded),), _families(ready)


def _planned(options: Mapping[str, Any], simulate: str, environment: Mapping[str, str], node: str) -> StartPlan:
    return plan({**options, "simulate": simulate}, {"NODE_NAME": node, **environment})


def simulated_node(ready: StartPlan, machines: Sequence[Machine]) -> NodeView:
    """The node as the daemon and the kubelet would describe it on the simulated machines: by the daemon's own code."""
    annotations: dict[str, str] = {}
    capacity: dict[str, str] = {}
    for served in open_drivers(ready, HostPaths(prepared=True)):
        try:
            snapshot = snapshot_of(served.driver)
        finally:
            served.driver.close()
        families = served.vendor.families(served.settings)
        further = served.vendor.further
        for family in families:
            own = part(snapshot, family.resources.device_type) if len(families) > 1 or further else snapshot
            wanted = wanted_annotations(family, own, Style())
            annotations |= {key: text for key, text in wanted.items() if text is not None}
            capacity |= _counted(family, own.devices)
        for device_type in {one.family for one in snapshot.devices} - {one.resources.device_type for one in families}:
            if further:
                capacity |= _counted(further(served.settings, device_type), part(snapshot, device_type).devices)
    kinds = [str(one.extra["instance_type"]) for one in machines if "instance_type" in one.extra]
    return NodeView(
        name=ready.configuration.settings.node_name,
        labels={INSTANCE_TYPE: kinds[0]} if kinds else {},
        annotations=annotations,
        capacity=capacity,
    )


def _counted(family: Family, devices: Sequence[Device]) -> Mapping[str, str]:
    """What the kubelet would count of a family's devices."""
    kinds = {
        family.resources.count: family.node.replicas,
        **{one.resource: one.of_device for one in family.resources.units},
    }
    return {resource: str(sum(map(count, devices))) for resource, count in kinds.items()}


def _families(ready: StartPlan) -> tuple[Family, ...]:
    return tuple(
        family
        for name, settings in ready.configuration.vendors.items()
        for family in load_vendor(name).families(settings)
    )
