"""Three nodes with cards of different vendors, and two schedulers of which one leads: the chart on all of them."""

import base64
import contextlib
import json
import os
import signal
import ssl
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Barrier
from types import MappingProxyType
from typing import Any

import yaml

from tests.realnode import images
from tests.realnode import node as nodes
from tests.realnode.api import Network, Object
from tests.realnode.ground import Place
from tests.realnode.install import Stack
from tests.realnode.node import Node, is_ready
from tests.realnode.placing import Scheduler
from tests.realnode.processes import pid_of
from tests.realnode.release import DAEMON, NAMESPACE, SCHEDULER, SIMULATION, Release, values
from tests.realnode.servers import until
from tests.realnode.shares import Whole, capacity
from tests.runtimes.enclosure import children

PROFILES: Mapping[str, str] = MappingProxyType(
    {"node-1": "dgx-h100", "node-2": "l40s-4-pcie,ascend-910b3-8", "node-3": "aws-inf2-24xlarge"}
)
"""The simulated machines of each node. The first two have NVIDIA's, so that one can stand in for the other."""
OFFERS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "node-1": {"nvidia.com/gpu": 80},
        "node-2": {"nvidia.com/gpu": 40, "huawei.com/Ascend910B3": 32},
        "node-3": {"aws.amazon.com/neuron": 6, "aws.amazon.com/neuroncore": 12},
    }
)
LABELS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "node-1": {"schedulers": "on"},
        "node-2": {"schedulers": "on"},
        "node-3": {"node.kubernetes.io/instance-type": "inf2.24xlarge"},
    }
)
GRACE_S, LEASE_S = 15, 6
"""After so many seconds of silence a node is lost, and the lead of a scheduler over; by default 50 and 15."""
CONTROLLERS = (f"--node-monitor-grace-period={GRACE_S}s", "--node-monitor-period=1s")
ELECTION = (
    f"--leader-elect-lease-duration={LEASE_S}s",
    f"--leader-elect-renew-deadline={LEASE_S - 2}s",
    "--leader-elect-retry-period=500ms",
)
START_S, END_S = 120, 20
NEURON_MAJOR = 239


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A scheduler's extender, over TLS on its pod's loopback."""

    network: Network
    context: ssl.SSLContext

    def filter(self, pod: Object, *names: str) -> list[str]:
        """The nodes that are left for the pod."""
        answer = self._post("filter", {"Pod": pod, "Nodes": None, "NodeNames": names})
        assert not answer["Error"], answer
        return list(answer["NodeNames"] or ())

    def bind(self, pod: Object, node: str) -> str:
        """Why it is not bound; empty when it is."""
        meta = pod["metadata"]
        names = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        return str(self._post("bind", names)["Error"])

    def _post(self, verb: str, body: object) -> Any:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"https://127.0.0.1:9398/{verb}", json.dumps(body).encode(), headers)
        status, answer = self.network.ask(request, self.context)
        assert status == 200, answer
        return json.loads(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One of the schedulers: its pod as it was when it was looked for, and the node that it is on."""

    pod: Object
    node: Node
    authority: str

    def pids(self, *containers: str) -> list[int]:
        """The processes of its containers, of all where none is named, as the machine sees them."""
        statuses = {one["name"]: one["containerID"] for one in self.pod["status"]["containerStatuses"]}
        return [pid_of(self.node, statuses[name]) for name in containers or statuses]

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Its processes stand still."""
        pids = self.pids()
        send(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            send(pids, signal.SIGCONT)

    @contextlib.contextmanager
    def asked(self) -> Iterator[Asked]:
        """Ask our process as the kube-scheduler beside it does."""
        (pid,) = self.pids("hami-plugin")
        network = Network(pid)
        try:
            yield Asked(network=network, context=ssl.create_default_context(cadata=self.authority))
        finally:
            network.close()


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """``nodes`` by their names; the first one runs the servers of all."""

    nodes: Mapping[str, Node]

    @property
    def first(self) -> Node:
        return next(iter(self.nodes.values()))

    @property
    def scheduler(self) -> Scheduler:
        return Scheduler(node=self.first)

    @property
    def leader(self) -> str:
        """The pod of the scheduler that leads."""
        return self.scheduler.leader().partition("_")[0]

    def replica(self, name: str) -> Replica:
        """The scheduler of this pod."""
        pod = self.scheduler.pods()[name]
        return Replica(pod=pod, node=self.nodes[pod["spec"]["nodeName"]], authority=self._authority)

    @cached_property
    def _authority(self) -> str:
        secret = self.first.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{SCHEDULER}-tls")
        return base64.b64decode(secret["data"]["ca.crt"]).decode()

    @cached_property
    def capacity(self) -> Mapping[str, Mapping[str, Whole]]:
        """What each node has, by device."""
        return {name: capacity(name, PROFILES[name]) for name in self.nodes}

    def webhooks(self) -> Collection[str]:
        """The nodes whose schedulers the API server asks about new pods."""
        query = f"labelSelector=kubernetes.io/service-name%3D{SCHEDULER}"
        path = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices?{query}"
        ends = [end for one in self.first.api.call("GET", path)["items"] for end in one["endpoints"] or ()]
        return {end["nodeName"] for end in ends if end["conditions"]["ready"]}

    def daemon(self, name: str) -> Mapping[str, Any] | None:
        """The pod of a node's daemon that is not ending, if there is one."""
        pods = self.first.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?fieldSelector=spec.nodeName%3D{name}")
        own = [pod for pod in pods["items"] if pod["metadata"]["name"].startswith(f"{DAEMON}-{name}-")]
        return next((pod for pod in own if "deletionTimestamp" not in pod["metadata"]), None)

    def serves(self, name: str) -> bool:
        """Whether the node is ready, its daemon too, and offers all that it has."""
        node, pod = self.nodes[name], self.daemon(name)
        offered = {resource: node.allocatable(resource) for resource in OFFERS[name]}
        return node.is_ready() and bool(pod) and is_ready(pod) and offered == OFFERS[name]

    def await_serving(self, *names: str) -> float:
        wanted = names or tuple(self.nodes)
        try:
            return until(lambda: all(map(self.serves, wanted)), "all nodes' daemons", START_S, every_s=0.2)
        except TimeoutError as error:
            found = {
                name: (
                    self.nodes[name].is_ready(),
                    {resource: self.nodes[name].allocatable(resource) for resource in OFFERS[name]},
                    (self.daemon(name) or {}).get("status"),
                )
                for name in wanted
            }
            raise TimeoutError(f"{error}: {found}"[:6000]) from error

    def cut(self, name: str) -> None:
        """Pull the node's cable: its processes run on, and reach nobody."""
        self.first.run("ip", "link", "set", name, "down")

    def mend(self, name: str) -> None:
        """Plug it in again."""
        self.first.run("ip", "link", "set", name, "up")

    def kill(self, name: str) -> None:
        """End every process of the node at once. Its disk stays."""
        node = self.nodes[name]
        for server in reversed(node.servers.values()):
            server.end(signal.SIGKILL)

        def ended() -> bool:
            left = [pid for pid in children(node.enclosure.first_pid) if not _guards(pid)]
            send(left, signal.SIGKILL)
            return not left

        until(ended, f"the end of all that runs on {name}", END_S)

    def start(self, name: str) -> None:
        """Start its servers again."""
        node = self.nodes[name]
        node.servers["containerd"].start()
        until(lambda: node.enclosure.run("ctr", "version", deadline_s=END_S).returncode == 0, "containerd", START_S)
        node.servers["kubelet"].start()


def send(pids: Sequence[int], what: signal.Signals) -> None:
    """Send processes a signal; those that are gone do not mind."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)


def _guards(pid: int) -> bool:
    """Whether it is the process that the enclosure lives by; one that is gone is not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes() == b"busybox\0cat\0"
    return False


@contextlib.contextmanager
def running(stack: Stack) -> Iterator[Cluster]:
    """Start all, install the chart, and wait until every node offers what it has, and one scheduler leads."""
    places = [Place(number=number) for number in range(1, len(PROFILES) + 1)]
    with contextlib.ExitStack() as ends:
        kubelet = yaml.safe_dump(dict(stack.kubernetes.quick_restarts))  # schedulers are killed often
        first = ends.enter_context(nodes.running(stack, others=places[1:], controllers=CONTROLLERS, kubelet=kubelet))
        joining = [nodes.joined(first, stack, place, kubelet) for place in places[1:]]
        others = at_once([partial(ends.enter_context, one) for one in joining])
        cluster = Cluster(nodes={node.name: node for node in (first, *others)})
        _load(cluster, stack)
        for name, node in cluster.nodes.items():
            node.path(SIMULATION).mkdir()
            labels = [f"{key}={value}" for key, value in LABELS[name].items()]
            first.kubectl("label", "--overwrite", "node", name, "gpu=on", *labels)
        Release(node=first).install(chart())
        cluster.await_serving()
        _make_nodes(cluster.nodes["node-3"])
        cluster.scheduler.await_ready(2)
        yield cluster


def chart() -> dict[str, Any]:
    """The chart's values: a pool of daemons for each node, and two schedulers on different nodes."""
    pools = [
        {
            "name": name,
            "nodeSelector": {"gpu": "on", "kubernetes.io/hostname": name},
            "extraArgs": [f"--simulate={profile}", f"--simulation-dir={SIMULATION}", "--log-format=json"],
        }
        for name, profile in PROFILES.items()
    ]
    apart = {
        "labelSelector": {"matchLabels": {"app.kubernetes.io/name": SCHEDULER}},
        "topologyKey": "kubernetes.io/hostname",
    }
    scheduler = {
        "replicas": 2,
        "nodeSelector": {"schedulers": "on"},
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "kubeScheduler": {"extraArgs": list(ELECTION)},
    }
    may_lock = {"exemptUsers": ["admin"]}  # a test takes a node's lock, which only a scheduler may
    return values(PROFILES["node-1"], {"pools": pools}, scheduler, may_lock)


def _load(cluster: Cluster, stack: Stack) -> None:
    busybox = cluster.first.path("/bin/busybox")
    everywhere = (stack.image.read_bytes(), images.core(busybox))
    scheduler = images.scheduler(stack.programs / "kube-scheduler", stack.kubernetes.version)

    def load(node: Node) -> None:
        for archive in (*everywhere, *((scheduler,) if "schedulers" in LABELS[node.name] else ())):
            node.load(archive)

    at_once([partial(load, node) for node in cluster.nodes.values()])


def _make_nodes(node: Node) -> None:
    """A container gets Neuron devices as nodes; the simulated ones are plain files, which no runtime takes."""
    for path in sorted(node.path(f"{SIMULATION}/dev").glob("neuron*")):
        path.unlink()
        number = int(path.name.removeprefix("neuron"))
        node.enclosure.make_node(f"{SIMULATION}/dev/{path.name}", NEURON_MAJOR, number)


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What they return, called at the same moment."""
    barrier = Barrier(len(calls))

    def called(call: Callable[[], Any]) -> Any:
        barrier.wait(START_S)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(called, call) for call in calls]]
