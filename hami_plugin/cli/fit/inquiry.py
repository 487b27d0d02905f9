"""The question of a pod and some nodes, and the scheduler's answer to it."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hami_plugin.cli.fit import manifests
from hami_plugin.cli.snapshot import snapshot_of
from hami_plugin.daemon.startup import Plan, opened, plan
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostPaths
from hami_plugin.inventory.inventory import part
from hami_plugin.model.device import Device
from hami_plugin.model.machine import Machine
from hami_plugin.model.views import NodeView, PodView
from hami_plugin.node_status.annotations import Style, wanted_annotations
from hami_plugin.scheduler.engine.filtering import Choice, Scored, choose
from hami_plugin.scheduler.engine.ledger import patch
from hami_plugin.scheduler.engine.pods import Circumstances, Placed, Unplaced, place
from hami_plugin.scheduler.engine.quotas import quota
from hami_plugin.scheduler.engine.requests import Denied
from hami_plugin.scheduler.engine.satisfiable import exhausted, impossible, lacking, miscounted, sizes
from hami_plugin.scheduler.engine.states import Quota
from hami_plugin.scheduler.engine.survey import registered, rules, survey
from hami_plugin.scheduler.webhook.admission import admitted
from hami_plugin.sdk import Family, load_vendor
from hami_plugin.simulation.machines import load_machine


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
        return admitted(self.pod, self.families)

    def circumstances(self) -> Circumstances:
        """The cluster's order and the namespace's quota. HamiError when a quota is no quantity."""
        try:
            counted = quota(self.pod.namespace, self.hard, self.families, self.pods) if self.hard else Quota()
        except ValueError as error:
            raise HamiError(f"the quota of namespace {self.pod.namespace}: {error}") from error
        return Circumstances(order=self.order, quota=counted)

    def on(self, node: NodeView) -> Placed | Unplaced | Denied:
        """The answer for one node."""
        pod = self.admitted()
        if isinstance(pod, Denied):
            return pod
        site = survey(node, self.families, self.pods).site
        if missing := self.unasked(pod, node):
            return Unplaced(site=site, why=missing)
        placed = place(pod, rules(self.families), site, self.circumstances())
        wrong = self.uncountable(pod, placed) if isinstance(placed, Placed) else ""
        return Unplaced(site=site, why=wrong) if wrong else placed

    def uncountable(self, pod: PodView, placed: Placed) -> str:
        """Why the kubelet would not hand out what was decided, by its own count of the node; empty when it would."""
        return miscounted(pod, placed.given, self.families) or exhausted(pod, placed.site, self.families)

    def unasked(self, pod: PodView, node: NodeView) -> str:
        """Why the pod is refused before the rules are asked about this node: by kube-scheduler, or when it is created.

        As if this node were the cluster's largest: where another is larger, it does not fit here all the more.
        """
        idle = registered(node, self.families).site
        return lacking(pod, node, self.families) or impossible(pod, self.families, sizes(idle, self.families))

    def asking(self, pod: PodView) -> Inquiry:
        """The same about another pod."""
        return replace(self, pod=pod)

    def without(self, keys: Container[str]) -> Inquiry:
        """The same, once these pods (namespace/name) are over."""
        return replace(self, pods=tuple(pod for pod in self.pods if pod.key not in keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the scheduler would do. ``problems`` are annotations that nobody can read."""

    pod: PodView
    choice: Choice
    problems: tuple[str, ...]

    @property
    def fitting(self) -> tuple[Scored, ...]:
        return self.choice.fitting

    @property
    def failed(self) -> tuple[Unplaced, ...]:
        return self.choice.failed


def answered(inquiry: Inquiry) -> Answer:
    """Ask the scheduler's rules about all nodes. HamiError when admission denies the pod."""
    pod = inquiry.admitted()
    if isinstance(pod, Denied):
        raise HamiError(f"pod {inquiry.pod.key} is denied by admission: {pod.why}")
    surveyed = [survey(node, inquiry.families, inquiry.pods) for node in inquiry.nodes]
    missing = {one.site.node.name: inquiry.unasked(pod, one.site.node) for one in surveyed}
    sites = [one.site for one in surveyed if not missing[one.site.node.name]]
    choice = choose(pod, rules(inquiry.families), sites, inquiry.circumstances(), order=inquiry.node_order)
    wrong = {one.name: inquiry.uncountable(pod, one.placed) for one in choice.fitting}
    counted = [Unplaced(site=one.placed.site, why=wrong[one.name]) for one in choice.fitting if wrong[one.name]]
    elsewhere = [Unplaced(site=one.site, why=why) for one in surveyed if (why := missing[one.site.node.name])]
    return Answer(
        pod=pod,
        choice=Choice(
            fitting=tuple(one for one in choice.fitting if not wrong[one.name]),
            failed=(*choice.failed, *counted, *elsewhere),
        ),
        problems=tuple(problem for one in surveyed for problem in one.problems),
    )


def written(inquiry: Inquiry, pod: PodView, placed: Placed) -> Mapping[str, str]:
    """The annotations of this decision."""
    return patch(inquiry.families, pod, placed)


NOBODY = {"config": None, "device_config": None, "node_config": None, "nvml_library": None, "simulation_dir": None}
INSTANCE_TYPE = "node.kubernetes.io/instance-type"


def inquiry(options: Mapping[str, Any], environment: Mapping[str, str]) -> Inquiry:
    """Read everything that the command's options name."""
    if sum(bool(options[name]) for name in ("node", "simulate", "profile")) != 1:
        raise HamiError("fit needs a node", hint="give one of --node FILE, --profile NAME and --simulate NAME")
    pod = manifests.the_pod(options["pod"])
    nodes, families = _nodes(options, environment)
    quotas = manifests.quotas(options["quota"]) if options["quota"] else ()
    return Inquiry(
        pod=pod,
        nodes=nodes,
        families=families,
        pods=manifests.pods(options["pods"]) if options["pods"] else (),
        hard={name: text for one in quotas if one.namespace == pod.namespace for name, text in one.limits.items()},
        order=options["gpu_scheduler_policy"],
        node_order=options["node_scheduler_policy"],
    )


def _nodes(
    options: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[tuple[NodeView, ...], tuple[Family, ...]]:
    """The nodes to ask about, and the families by whose rules they have devices."""
    known = {**NOBODY, **options}
    if options["node"]:
        return manifests.nodes(options["node"]), _families(_planned(known, "", environment, "this-node"))
    machines = options["simulate"] or options["profile"]
    loaded = [load_machine(name.strip()) for name in machines.split(",") if name.strip()]
    name = "-".join(machine.name for machine in loaded)
    ready = _planned(known, machines, environment, name)
    return (simulated(ready, loaded),), _families(ready)


def _planned(options: Mapping[str, Any], simulate: str, environment: Mapping[str, str], node: str) -> Plan:
    return plan({**options, "simulate": simulate}, {"NODE_NAME": node, **environment})


def simulated(ready: Plan, machines: Sequence[Machine]) -> NodeView:
    """The node as the daemon and the kubelet would describe it on the simulated machines: by the daemon's own code."""
    annotations: dict[str, str] = {}
    capacity: dict[str, str] = {}
    for served in opened(ready, HostPaths(prepared=True)):
        try:
            snapshot = snapshot_of(served.driver)
        finally:
            served.driver.close()
        families = served.vendor.families(served.settings)
        for family in families:
            own = part(snapshot, family.device_type) if len(families) > 1 else snapshot
            wanted = wanted_annotations(family, own, Style())
            annotations |= {key: text for key, text in wanted.items() if text is not None}
            capacity |= _counted(family, own.devices)
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


def _families(ready: Plan) -> tuple[Family, ...]:
    return tuple(
        family
        for name, settings in ready.configuration.vendors.items()
        for family in load_vendor(name).families(settings)
    )
