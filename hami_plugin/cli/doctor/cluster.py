"""What is wrong with the cluster around the nodes, as whoever asks may see it: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from hami_plugin.cli.doctor.findings import (
    Finding,
    Unavailable,
    failed,
    in_order,
    items,
    member,
    ok,
    stale_locks,
    text_in,
    warning,
)
from hami_plugin.model.views import Json, NodeView, PodView, node_view, pod_view
from hami_plugin.protocol.keys import ASSIGNED_NODE, REFUSES
from hami_plugin.scheduler.engine.node_info import read_idle_node
from hami_plugin.sdk import Family

Listed = tuple[Json, ...] | Unavailable
WEBHOOK = "vgpu.hami.io"
"""The name of the webhook in HAMi's chart and in ours."""
RESERVED = "-reserved-"
MAX_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Lists of the API server's, each with why it could not be had. ``endpoints`` counts the ready addresses of the
    webhooks' services, by namespace and name.
    """

    families: tuple[Family, ...] = ()
    scheduler: str = ""
    nodes: Listed = ()
    pods: Listed = ()
    webhooks: Listed = ()
    bindings: Listed = ()
    endpoints: Mapping[tuple[str, str], int | Unavailable] = field(default_factory=dict)
    locks: Mapping[str, timedelta] = field(default_factory=dict)
    now: datetime | None = None


def cluster_findings(facts: ClusterFacts) -> tuple[Finding, ...]:
    """Everything about a cluster, causes first."""
    if isinstance(facts.nodes, Unavailable):
        return (Finding.of("api server", facts.nodes),)
    return in_order((*_webhooks(facts), *_policies(facts), *_nodes(facts, facts.nodes), *_pods(facts)))


def services(webhooks: Listed) -> tuple[tuple[str, str], ...]:
    """Namespace and name of the services behind our webhooks."""
    found = (member(member(one, "clientConfig"), "service") for _name, one in _ours(webhooks))
    return tuple(dict.fromkeys((text_in(one, "namespace"), text_in(one, "name")) for one in found if one))


def _ours(webhooks: Listed) -> Iterator[tuple[str, Json]]:
    """Each webhook for pods with devices, and the name of its configuration."""
    for configuration in () if isinstance(webhooks, Unavailable) else webhooks:
        for one in items(configuration, "webhooks"):
            if text_in(one, "name") == WEBHOOK:
                yield text_in(member(configuration, "metadata"), "name"), one


def _webhooks(facts: ClusterFacts) -> Iterator[Finding]:
    if isinstance(facts.webhooks, Unavailable):
        yield warning("webhook", f"was not checked: {facts.webhooks.text}", facts.webhooks.remedy)
        return
    found = list(_ours(facts.webhooks))
    if not found:
        text = f"there is no webhook {WEBHOOK}: pods with devices go to the default scheduler"
        yield failed("webhook", text, "install the chart, or HAMi's")
    if len(found) > 1:
        text = f"several are there: {', '.join(name for name, _ in found)}"
        yield failed("webhook", text, "keep the one of the scheduler that is to decide")
    for name, one in found:
        client = member(one, "clientConfig")
        if not client.get("caBundle"):
            remedy = "cert-manager or the chart fills it in; see docs/helm.md"
            yield failed("webhook", f"{name} has no caBundle, so the API server trusts nobody there", remedy)
        if one.get("failurePolicy") == "Ignore":
            text = f"{name} is passed over when it does not answer: pods then go to the default scheduler"
            yield warning("webhook", text, "failurePolicy: Fail, with a matchCondition or a selector")
    for (namespace, service), ready in facts.endpoints.items():
        if isinstance(ready, Unavailable):
            yield warning("scheduler", f"service {namespace}/{service} was not checked: {ready.text}")
        elif not ready:
            remedy = f"kubectl -n {namespace} get pods; look at their log and readiness"
            yield failed("scheduler", f"service {namespace}/{service} has no pod that is ready", remedy)
        else:
            yield ok("scheduler", f"service {namespace}/{service} has {ready} ready pods")


def _policies(facts: ClusterFacts) -> Iterator[Finding]:
    if isinstance(facts.bindings, Unavailable):
        yield warning(
            "admission policies", f"were not checked: {facts.bindings.text}", "Kubernetes has them since 1.30"
        )
        return
    names = [text_in(member(one, "metadata"), "name") for one in facts.bindings]
    if any(RESERVED in name for name in names):
        yield ok("admission policies", "reserve our annotations")
    else:
        text = "none reserves our annotations: whoever may edit a pod may forge a decision"
        yield warning("admission policies", text, "admissionPolicies in the chart (docs/helm.md)")


@dataclass(frozen=True, slots=True)
class _Daemons:
    """Which nodes have a daemon of ours, and whether it is ready, by node."""

    ready: Mapping[str, bool]

    @classmethod
    def of(cls, pods: Sequence[Json]) -> _Daemons:
        found: dict[str, bool] = {}
        for pod in pods:
            if runs_daemon(pod):
                ready = any(
                    one.get("type") == "Ready" and one.get("status") == "True"
                    for one in items(member(pod, "status"), "conditions")
                )
                node = text_in(member(pod, "spec"), "nodeName")
                found[node] = found.get(node, False) or ready
        return cls(found)


def runs_daemon(pod: Json) -> bool:
    """Whether the pod is a node's daemon of ours."""
    name = text_in(member(member(pod, "metadata"), "labels"), "app.kubernetes.io/name")
    return any(
        "hami-plugin" in f"{name} {text_in(one, 'image')}" and _command(one) == "run"
        for one in items(member(pod, "spec"), "containers")
    )


def _command(container: Json) -> str:
    """The first word of a container that is no path."""
    arguments = (str(argument) for key in ("command", "args") for argument in container.get(key) or ())
    return next((argument for argument in arguments if "/" not in argument), "")


def _nodes(facts: ClusterFacts, nodes: Sequence[Json]) -> Iterator[Finding]:
    pods = None if isinstance(facts.pods, Unavailable) else _Daemons.of(facts.pods)
    with_devices = 0
    for raw in nodes:
        node = node_view(raw)
        info = read_idle_node(node, facts.families)
        counted = [one for one in facts.families if node.capacity.get(one.resources.count, "0") != "0"]
        if not (info.node_info.pools or info.problems or counted):
            continue
        with_devices += 1
        own = (*_node(facts, raw, node, info.problems), *_offers(facts, node), *_daemon(node.name, pods))
        yield from (replace(one, check=f"node {node.name}: {one.check}") for one in own)
        if not any(one.mark.failed for one in own):
            yield ok(f"node {node.name}", _offered(node, counted))
    if not with_devices:
        yield failed("nodes", "no node has devices", "run hami-plugin doctor in the daemon's pod on one that should")


def _offered(node: NodeView, counted: Sequence[Family]) -> str:
    names = (one.resources.count for one in counted)
    return "offers " + (", ".join(f"{node.allocatable.get(name, '0')} {name}" for name in names) or "nothing yet")


def _node(facts: ClusterFacts, raw: Json, node: NodeView, problems: Sequence[str]) -> Iterator[Finding]:
    ready = next((one for one in items(member(raw, "status"), "conditions") if one.get("type") == "Ready"), None)
    if ready and ready.get("status") != "True":
        yield failed("kubelet", text_in(ready, "message") or "is not ready", "look at the kubelet on that node")
    for one in problems:
        yield failed("register", one, "find out who wrote it; the daemon there writes it anew")
    if facts.now:
        yield from stale_locks(node.annotations, facts.locks, facts.now, node.name)
    for key, value in node.annotations.items():
        if key.startswith(REFUSES):
            yield warning("refuses", value, "ask for whole devices there")


def _offers(facts: ClusterFacts, node: NodeView) -> Iterator[Finding]:
    pools = read_idle_node(node, facts.families).node_info.pools
    for family in facts.families:
        count = family.resources.count
        registered = pools.get(family.resources.device_type)
        if registered is None or not registered.states:
            continue
        if node.allocatable.get(count, "0") == "0":
            text = f"devices are registered, and the kubelet counts 0 {count}"
            yield failed("count", text, "run hami-plugin doctor in the daemon's pod there")
        if sick := [state.uuid for state in registered.states if not state.info.health]:
            yield warning("devices", f"{len(sick)} are unhealthy: {', '.join(sick[:MAX_NAMED])}", "see top there")


def _daemon(node: str, daemons: _Daemons | None) -> Iterator[Finding]:
    if daemons is None or not daemons.ready:  # HAMi's own plugin may serve the cluster
        return
    if node not in daemons.ready:
        yield warning("daemon", "no daemon of ours runs there", "check the DaemonSet's nodeSelector and tolerations")
    elif not daemons.ready[node]:
        yield failed("daemon", "is not ready", "kubectl exec it: hami-plugin doctor")


def _pods(facts: ClusterFacts) -> Iterator[Finding]:
    if isinstance(facts.pods, Unavailable):
        yield warning("pods", f"were not checked: {facts.pods.text}", facts.pods.remedy)
        return
    names = {name for one in facts.families for name in one.resources.names.values() if name}
    asking = [(raw, view) for raw in facts.pods if _asks(view := pod_view(raw), names)]
    for what, found, remedy in (
        ("wait for devices", [v for _, v in asking if v.phase == "Pending" and not v.node], "hami-plugin doctor POD"),
        ("were refused by a node", [v for raw, v in asking if _refused(raw)], "hami-plugin doctor POD"),
        ("are on a node without a decision", [v for _, v in asking if _undecided(v)], "hami-plugin doctor POD"),
    ):
        if found:
            named = ", ".join(one.key for one in found[:MAX_NAMED])
            more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
            yield warning("pods", f"{len(found)} {what}: {named}{more}", remedy)
    yield ok("pods", f"{len(asking)} ask for devices")


def _asks(pod: PodView, names: set[Any]) -> bool:
    return any(not names.isdisjoint((*one.limits, *one.requests)) for one in pod.containers)


def _refused(raw: Json) -> bool:
    return text_in(member(raw, "status"), "reason") == "UnexpectedAdmissionError"


def _undecided(pod: PodView) -> bool:
    return bool(pod.node) and not pod.terminal and ASSIGNED_NODE not in pod.annotations
