"""A node in an enclosure: etcd, API server, scheduler, controllers, containerd and kubelet, all real.

Others may join it, each in an enclosure of its own, with a containerd and a kubelet.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.realnode import ground
from tests.realnode.api import Api, Network
from tests.realnode.commands import WORKERS, commands
from tests.realnode.ground import FIRST, KEYS, Place
from tests.realnode.install import Stack
from tests.realnode.servers import Server, until
from tests.realnode.versions import Kubernetes
from tests.runtimes import image
from tests.runtimes.enclosure import Enclosure, enclosed

SHORT_S, START_S = 30, 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """``servers`` by name. They are the node's own; the API server is the first node's."""

    place: Place = FIRST
    kubernetes: Kubernetes
    enclosure: Enclosure
    network: Network
    api: Api
    servers: Mapping[str, Server]

    def path(self, inside: str) -> Path:
        return self.enclosure.path(inside)

    @property
    def name(self) -> str:
        return self.place.name

    def run(self, *command: str, deadline_s: float = SHORT_S) -> str:
        """Run a program in the node's enclosure; return what it printed."""
        done = self.enclosure.run(*command, deadline_s=deadline_s)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
        return done.stdout

    def kubectl(self, *arguments: str, deadline_s: float = SHORT_S) -> str:
        return self.run("/programs/kubectl", f"--kubeconfig={KEYS}/admin.kubeconfig", *arguments, deadline_s=deadline_s)

    def answer(self, *arguments: str) -> str:
        """Return what kubectl says, whether it likes it or not: `auth can-i` fails with its "no"."""
        command = ("/programs/kubectl", f"--kubeconfig={KEYS}/admin.kubeconfig", *arguments)
        return self.enclosure.run(*command, deadline_s=SHORT_S).stdout.strip()

    def load(self, archive: bytes) -> None:
        """Give the container runtime an image."""
        self.enclosure.write("/run/image.tar", archive)
        how = ("import", "--snapshotter=overlayfs", "/run/image.tar")
        self.run("ctr", "--namespace=k8s.io", "images", *how, deadline_s=START_S)  # a loaded machine takes its time
        self.path("/run/image.tar").unlink()

    def allocatable(self, resource: str) -> int:
        return int(self.api.node(self.name)["status"]["allocatable"].get(resource, "0"))

    def annotation(self, key: str) -> str:
        return self.api.node(self.name)["metadata"].get("annotations", {}).get(key, "")

    def is_known(self) -> bool:
        """Whether the API server has an object of it."""
        return any(one["metadata"]["name"] == self.name for one in self.api.call("GET", "/api/v1/nodes")["items"])

    def is_ready(self) -> bool:
        return is_ready(self.api.node(self.name))


def is_ready(thing: Mapping[str, Any]) -> bool:
    """Whether a node, or a pod with all its containers, says that it is."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in thing["status"].get("conditions", ()))


@contextlib.contextmanager
def running(
    stack: Stack, *, others: Sequence[Place] = (), controllers: Sequence[str] = (), kubelet: str = ""
) -> Iterator[Node]:
    """Start all, wait until the node is ready, and end all. ``LackingError`` where the machine refuses.

    ``others`` may join it. ``controllers`` are further arguments, ``kubelet`` further settings of these servers.
    """
    with contextlib.ExitStack() as ends:
        enclosure = ends.enter_context(enclosed(stack.tree, machine=stack.machine))
        ground.lay(enclosure, stack.kubernetes, others, kubelet)
        network = Network(enclosure.first_pid)
        ends.callback(network.close)
        started = dict(commands(stack.kubernetes))
        started["controllers"] = (*started["controllers"], *controllers)
        servers = {name: Server(enclosure=enclosure, name=name, command=command) for name, command in started.items()}
        api = Api(network, enclosure.path(f"{KEYS}/ca.crt").read_text())
        node = Node(kubernetes=stack.kubernetes, enclosure=enclosure, network=network, api=api, servers=servers)
        for server in servers.values():
            ends.callback(_halt, server)
        try:
            yield _started(node)
        finally:
            _keep_logs(node)


@contextlib.contextmanager
def joined(first: Node, stack: Stack, place: Place, kubelet: str = "") -> Iterator[Node]:
    """Start one of the ``others`` of the first node, wait until it is ready, and end it."""
    with contextlib.ExitStack() as ends:
        enclosure = ends.enter_context(enclosed(stack.tree, machine=stack.machine))
        ground.link(first.enclosure, enclosure, place)
        ground.lay_beside(first.enclosure, enclosure, stack.kubernetes, place, kubelet)
        network = Network(enclosure.first_pid)
        ends.callback(network.close)
        started = commands(stack.kubernetes, place)
        servers = {name: Server(enclosure=enclosure, name=name, command=started[name]) for name in WORKERS}
        node = replace(first, place=place, enclosure=enclosure, network=network, servers=servers)
        for server in servers.values():
            ends.callback(_halt, server)
        try:
            servers["containerd"].start()
            yield _with_kubelet(node)
        finally:
            _keep_logs(node)


def _started(node: Node) -> Node:
    servers = node.servers
    for name in ("etcd", "containerd"):
        servers[name].start()
    servers["apiserver"].start()
    _await(servers["apiserver"], node.api.is_up)
    for name in ("scheduler", "controllers"):
        servers[name].start()
    _with_kubelet(node)
    until(lambda: _has_account(node), "the default service account", START_S)
    return node


def _with_kubelet(node: Node) -> Node:
    """Start it when containerd, which was started, is ready; and wait until the node is."""
    kubelet = node.servers["kubelet"]
    answers = partial(node.enclosure.run, "ctr", "version", deadline_s=SHORT_S)
    _await(node.servers["containerd"], lambda: answers().returncode == 0)
    for name in image.VARIABLES:
        node.load(image.archive(node.path("/bin/busybox"), name))
    kubelet.start()
    _await(kubelet, lambda: node.is_known() and node.is_ready())
    return node


def _await(server: Server, condition: Callable[[], object]) -> None:
    try:
        until(lambda: condition() or not server.runs(), server.name, START_S)
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{server.tail()}") from error
    assert server.runs(), f"{server.name} has ended: {server.tail()}"


def _has_account(node: Node) -> bool:
    """Without it no pod is admitted; on 1.20 it must have its token, too, which newer ones make for each pod."""
    accounts = node.api.call("GET", "/api/v1/namespaces/default/serviceaccounts")["items"]
    token = "secrets" if node.kubernetes.is_debians else "metadata"
    return any(account["metadata"]["name"] == "default" and account.get(token) for account in accounts)


def _halt(server: Server) -> None:
    with contextlib.suppress(ProcessLookupError):
        server.end(signal.SIGKILL)  # what it served ends with the first process anyway


def _keep_logs(node: Node) -> None:
    """Copy the logs to the folder ``CLUSTER_LOGS``, where one is named."""
    if folder := os.environ.get("CLUSTER_LOGS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        pods = [p for p in node.path("/var/log/pods").glob("hami-system_*/*/*.log") if p.is_file()]
        pods.append(node.path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"))
        for number, log in enumerate([node.path(server.log) for server in node.servers.values()] + pods):
            if log.exists():
                (Path(folder) / f"{node.name}-{number}-{log.parent.name}-{log.name}").write_bytes(log.read_bytes())
