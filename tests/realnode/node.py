"""A cluster of one node in an enclosure: etcd, API server, scheduler, controllers, containerd and kubelet, all real."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.realnode import ground
from tests.realnode.api import Api, Network
from tests.realnode.commands import commands
from tests.realnode.ground import KEYS, NAME
from tests.realnode.install import Stack
from tests.realnode.servers import Server, until
from tests.realnode.versions import Kubernetes
from tests.runtimes import image
from tests.runtimes.enclosure import Enclosure, enclosed

SHORT_S, START_S = 30, 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """``servers`` by name; ``times`` tell after how many seconds each was ready."""

    kubernetes: Kubernetes
    enclosure: Enclosure
    network: Network
    api: Api
    servers: Mapping[str, Server]
    times: Mapping[str, float]

    def path(self, inside: str) -> Path:
        return self.enclosure.path(inside)

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
        self.run("ctr", "--namespace=k8s.io", "images", "import", "--snapshotter=overlayfs", "/run/image.tar")
        self.path("/run/image.tar").unlink()

    def allocatable(self, resource: str) -> int:
        return int(self.api.node(NAME)["status"]["allocatable"].get(resource, "0"))

    def annotation(self, key: str) -> str:
        return self.api.node(NAME)["metadata"].get("annotations", {}).get(key, "")

    def is_ready(self) -> bool:
        return is_ready(self.api.node(NAME))


def is_ready(thing: Mapping[str, Any]) -> bool:
    """Whether a node, or a pod with all its containers, says that it is."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in thing["status"].get("conditions", ()))


@contextlib.contextmanager
def running(stack: Stack) -> Iterator[Node]:
    """Start all, wait until the node is ready, and end all. ``LackingError`` where the machine refuses."""
    with contextlib.ExitStack() as ends:
        enclosure = ends.enter_context(enclosed(stack.tree, machine=stack.machine))
        ground.lay(enclosure, stack.kubernetes)
        network = Network(enclosure.first_pid)
        ends.callback(network.close)
        started = commands(stack.kubernetes).items()
        servers = {name: Server(enclosure=enclosure, name=name, command=command) for name, command in started}
        api = Api(network, enclosure.path(f"{KEYS}/ca.crt").read_text())
        node = Node(
            kubernetes=stack.kubernetes, enclosure=enclosure, network=network, api=api, servers=servers, times={}
        )
        for server in servers.values():
            ends.callback(_halt, server)
        try:
            yield _started(node)
        finally:
            _keep_logs(node)


def _started(node: Node) -> Node:
    start, times = time.monotonic(), dict[str, float]()
    api, servers = node.api, node.servers

    def ready(name: str, condition) -> None:
        try:
            until(lambda: condition() or not servers[name].runs(), name, START_S)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{servers[name].tail()}") from error
        assert servers[name].runs(), f"{name} has ended: {servers[name].tail()}"
        times[name] = round(time.monotonic() - start, 1)

    for name in ("etcd", "containerd"):
        servers[name].start()
    servers["apiserver"].start()
    ready("apiserver", api.is_up)
    for name in ("scheduler", "controllers"):
        servers[name].start()
    ready("containerd", lambda: node.enclosure.run("ctr", "version", deadline_s=SHORT_S).returncode == 0)
    for name in image.VARIABLES:
        node.load(image.archive(node.path("/bin/busybox"), name))
    servers["kubelet"].start()
    ready("kubelet", lambda: api.call("GET", "/api/v1/nodes")["items"] and node.is_ready())
    until(lambda: _has_account(node), "the default service account", START_S)
    return replace(node, times=times)


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
                (Path(folder) / f"{number}-{log.parent.name}-{log.name}").write_bytes(log.read_bytes())
