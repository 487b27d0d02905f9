"""What the API server says, and of a pod its node, too: for doctors of pods and clusters. It changes nothing.

Each call has a deadline, each list and file a bound; one that hangs or fails is a fact as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from hami_plugin.allocation.allocator import question_of
from hami_plugin.cli.doctor.cluster import ClusterFacts, services
from hami_plugin.cli.doctor.findings import Unavailable, items, member, text_in
from hami_plugin.cli.doctor.pod import LimitedProcess, PodFacts, SchedulingVerdict
from hami_plugin.cli.doctor.probe import Probed, probed
from hami_plugin.cli.fit.inquiry import Inquiry, answer_inquiry
from hami_plugin.cli.live import api_calls, list_all, read_by
from hami_plugin.cli.pages import page
from hami_plugin.cluster.client import NODES, PODS
from hami_plugin.cluster.requests import ApiCall, ApiCalls
from hami_plugin.config.load import Configuration
from hami_plugin.config.settings import Settings
from hami_plugin.daemon.startup import Options, plan
from hami_plugin.errors import ClusterError, ConfigError, HamiError, WireError
from hami_plugin.model.views import Json, PodView, pod_view
from hami_plugin.node_status.registration import Traces
from hami_plugin.process.concurrency import StuckError, WorkThread
from hami_plugin.protocol.pods import decided_shares
from hami_plugin.scheduler.extender.app import configured, families
from hami_plugin.sdk import Family

T = TypeVar("T")

OPENING_S = 25.0
"""Vendors that nobody has enabled are asked for their hardware, for up to 20 s."""
PAGE_S = 8.0
RULES_S = 30.0
PROCESSES_S = 10.0
MAX_EVENTS = 500
MAX_PROCESSES = 65_536
MAX_CGROUP = 1 << 14
MAX_MAPS = 4 << 20
PROC = Path("/proc")
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


async def within(seconds: float, name: str, function: Callable[[], T]) -> T:
    """Call a blocking ``function`` on a thread that does not keep this process. ``StuckError`` after ``seconds``."""
    return await WorkThread(name).call(function, seconds, last=True)


def daemons_url(settings: Settings) -> str:
    """Where the daemon with these settings answers, from its own host or pod."""
    host = "127.0.0.1" if settings.http_host in ("0.0.0.0", "::") else settings.http_host
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.http_port}"


async def daemons_page(url: str, name: str) -> Json | Unavailable:
    """A page of the daemon's, whatever its status."""
    try:
        return await within(PAGE_S + 1, name, lambda: page(url, name, timeout=PAGE_S))
    except StuckError:
        return Unavailable(text=f"the daemon at {url} does not answer within {PAGE_S:g} s", remedy="look at its log")
    except HamiError as error:
        return Unavailable.of(error)


# -- a pod


async def pod_facts(
    namespace: str,
    name: str,
    options: Options,
    environment: Mapping[str, str],
    *,
    on_its_node: bool = True,
    probe: bool = False,
) -> PodFacts:
    """All that can be seen of a pod with these credentials; and with ``on_its_node`` what this host shows."""
    configuration = _cluster_configuration(options, environment)
    known = families(configuration)
    key = f"{namespace}/{name}"
    try:
        async with api_calls(options["kubeconfig"], environment) as calls:
            raw = await _the_pod(calls, namespace, name)
            if raw is None:
                return PodFacts(name=key, raw=None)
            view = pod_view(raw)
            events = await _events(calls, view)
            pending = not view.node and not view.terminal
            verdict = await _verdict(calls, view, known, configuration.settings) if pending else None
    except ConfigError as error:
        return PodFacts(name=key, raw=Unavailable(text=str(error)))
    except ClusterError as error:
        return PodFacts(name=key, raw=Unavailable.of(error))
    facts = PodFacts(
        name=key,
        raw=raw,
        view=view,
        families=known,
        scheduler=configuration.settings.scheduler.name,
        serves_others=configuration.settings.unannotated_pods == "serve",
        events=events,
        verdict=verdict,
    )
    if probe and view.node and not view.terminal:
        facts = replace(facts, probed=await _probed(facts, view, options["kubeconfig"]))
    looking = on_its_node and view.node and not view.terminal
    return await _on_its_node(facts, view, options, environment) if looking else facts


async def _probed(facts: PodFacts, pod: PodView, kubeconfig: Path | None) -> tuple[Probed, ...]:
    """Each container with a limit of memory that HAMi-core holds it to, one after the other."""
    limits: dict[str, list[int]] = {}
    for family in facts.families:
        if not family.node.usage:
            continue
        with suppress(WireError):  # which the lines about the decision tell
            for claim in decided_shares(pod, question_of(family)):
                limits.setdefault(claim.container.name, []).extend(grant.memory << 20 for grant in claim.grants)
    return tuple(
        [
            await probed(pod.namespace, pod.name, container, some, kubeconfig=kubeconfig)
            for container, some in limits.items()
            if any(some)
        ]
    )


async def _on_its_node(facts: PodFacts, pod: PodView, options: Options, environment: Mapping[str, str]) -> PodFacts:
    """What this host shows of a pod that runs here, by the configuration of the daemon here."""
    named = {"NODE_NAME": pod.node, **environment}
    try:
        ready = await within(OPENING_S, "configuration", lambda: plan(options, named))
    except HamiError as error:
        return replace(facts, usage=Unavailable.of(error))
    settings = ready.configuration.settings
    assert isinstance(facts.raw, Mapping)
    usage, processes = await asyncio.gather(
        _used(pod, options.get("url") or daemons_url(settings)), _processes(facts.raw, settings.hook_path)
    )
    return replace(facts, usage=usage, processes=processes)


def _cluster_configuration(options: Options, environment: Mapping[str, str]) -> Configuration:
    return configured({key: options[key] for key in ("config", "device_config")}, environment)


async def _the_pod(calls: ApiCalls, namespace: str, name: str) -> Json | None:
    """By a list: a daemon's account may list pods, and not get one."""
    query = {"fieldSelector": f"metadata.name={name}"}
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
    return next(iter(await list_all(calls, "pods", path, query)), None)


async def _events(calls: ApiCalls, pod: PodView) -> tuple[Json, ...] | Unavailable:
    path = f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/events"
    query = {"fieldSelector": f"involvedObject.uid={pod.uid}"}
    try:
        found = await list_all(calls, "events", path, query, most=MAX_EVENTS)
    except ClusterError as error:
        return Unavailable.of(error)
    return tuple(sorted(found, key=_when))


def _when(event: Json) -> str:
    meta = member(event, "metadata")
    return text_in(event, "lastTimestamp") or text_in(event, "eventTime") or text_in(meta, "creationTimestamp")


async def _verdict(
    calls: ApiCalls, pod: PodView, known: tuple[Family, ...], settings: Settings
) -> SchedulingVerdict | Unavailable:
    """What the scheduler's own rules say of the cluster as it is."""
    try:
        cluster = await read_by(calls, pod.namespace)
    except ClusterError as error:
        return Unavailable.of(error)
    order = settings.scheduler
    inquiry = Inquiry(
        pod=pod,
        nodes=cluster.nodes,
        families=known,
        pods=tuple(one for one in cluster.pods if one.uid != pod.uid),
        hard=cluster.hard,
        order=order.device_order,
        node_order=order.node_order,
    )
    try:
        answer = await within(RULES_S, "rules", lambda: answer_inquiry(inquiry))
    except StuckError:
        return Unavailable(text=f"they take longer than {RULES_S:g} s")
    except HamiError as error:
        return SchedulingVerdict(failed={"admission": str(error)})
    return SchedulingVerdict(
        fitting=tuple(one.name for one in answer.choice.fitting),
        failed={one.node_info.node.name: one.why for one in answer.choice.failed},
    )


async def _used(pod: PodView, url: str) -> tuple[Json, ...] | Unavailable:
    """The pod's containers, by the daemon of this host."""
    found = await daemons_page(url, "debug/usage")
    if isinstance(found, Unavailable):
        return found
    if found.get("node") != pod.node:
        return Unavailable(text=f"the daemon at {url} serves node {found.get('node')}, and the pod is on {pod.node}")
    return tuple(
        one
        for device in items(found, "devices")
        for one in items(device, "containers")
        if (one.get("namespace"), one.get("pod")) == (pod.namespace, pod.name)
    )


async def _processes(pod: Json, hook: Path) -> tuple[LimitedProcess, ...] | Unavailable:
    names = {
        text_in(one, "containerID").rpartition("://")[2]: text_in(one, "name")
        for one in items(member(pod, "status"), "containerStatuses")
    }
    names.pop("", None)
    try:
        return await within(PROCESSES_S, "processes", lambda: tuple(processes_of(names, hook, PROC)))
    except StuckError:
        return Unavailable(text=f"/proc is not read within {PROCESSES_S:g} s")
    except OSError as error:
        return Unavailable(text=error.strerror or str(error))


def processes_of(containers: Mapping[str, str], hook: Path, proc: Path) -> Iterator[LimitedProcess]:
    """The processes of these containers, ids to names, and whether each has mapped a library of the limiter's.

    The loader brings it into every dynamic program, also into one that uses no device. Containers that were not given
    the library are left out: something else limits them, or nothing has to.
    """
    library = f"{hook}/vgpu/lib".encode()
    numbers = (entry for entry in proc.iterdir() if entry.name.isdecimal())
    for folder in islice(numbers, MAX_PROCESSES):
        with suppress(OSError):
            group = _begin(folder / "cgroup", MAX_CGROUP).decode(errors="replace")
            container = next((name for number, name in containers.items() if number in group), None)
            if container is not None and library in _begin(folder / "mountinfo", MAX_MAPS):
                mapped = _begin(folder / "maps", MAX_MAPS)
                yield LimitedProcess(
                    pid=int(folder.name),
                    name=_begin(folder / "comm", 64).decode(errors="replace").strip(),
                    container=container,
                    limited=library in mapped,
                    musl=b"/ld-musl" in mapped,
                )


def _begin(file: Path, most: int) -> bytes:
    with file.open("rb") as opened:
        return opened.read(most)


# -- the cluster


async def cluster_facts(options: Options, environment: Mapping[str, str]) -> ClusterFacts:
    """All that can be seen of the cluster with these credentials."""
    configuration = _cluster_configuration(options, environment)
    known = families(configuration)
    facts = ClusterFacts(
        families=known,
        scheduler=configuration.settings.scheduler.name,
        locks=Traces.of(known).locks,
        now=datetime.now(tz=UTC),
    )
    try:
        async with api_calls(options["kubeconfig"], environment) as calls:
            nodes, pods, webhooks, bindings = await asyncio.gather(
                _listed(calls, "nodes", NODES),
                _listed(calls, "pods", PODS),
                _listed(calls, "mutatingwebhookconfigurations", f"{ADMISSION}/mutatingwebhookconfigurations"),
                _listed(calls, "validatingadmissionpolicybindings", f"{ADMISSION}/validatingadmissionpolicybindings"),
            )
            endpoints = await asyncio.gather(*(_endpoints(calls, *one) for one in services(webhooks)))
    except ConfigError as error:
        problem = Unavailable(text=str(error))
        return replace(facts, nodes=problem)
    return replace(
        facts,
        nodes=nodes,
        pods=pods,
        webhooks=webhooks,
        bindings=bindings,
        endpoints=dict(zip(services(webhooks), endpoints, strict=True)),
    )


async def _listed(calls: ApiCalls, kind: str, path: str) -> tuple[Json, ...] | Unavailable:
    try:
        return await list_all(calls, kind, path)
    except ClusterError as error:
        return Unavailable.of(error)


async def _endpoints(calls: ApiCalls, namespace: str, name: str) -> int | Unavailable:
    """How many addresses of a service are ready."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/endpoints/{quote(name, safe='')}"
    try:
        found = await calls.json(ApiCall(verb="get", kind="endpoints", path=path, name=f"{namespace}/{name}"))
    except ClusterError as error:
        return 0 if error.not_found else Unavailable.of(error)
    return sum(len(list(items(subset, "addresses"))) for subset in items(found, "subsets"))
