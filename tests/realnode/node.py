"""A cluster of one node in an enclosure: etcd, API server, scheduler, controllers, containerd and kubelet, all real."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.debian.commands import LackingError
from tests.realnode.api import Api, Network
from tests.realnode.install import Stack
from tests.realnode.servers import Server, until
from tests.runtimes import image
from tests.runtimes.enclosure import CGROUPS, Enclosure, enclosed

NAME, ADDRESS = "node-1", "192.0.2.10"
KEYS = "/etc/kubernetes"
RUNTIME = "unix:///run/containerd/containerd.sock"
HERE = Path(__file__).parent
SHORT_S, START_S = 30, 120
CONTROLLERS = (
    *("serviceaccount", "serviceaccount-token", "root-ca-cert-publisher", "namespace", "daemonset"),
    *("garbagecollector", "podgc", "nodelifecycle", "replicaset", "deployment", "endpoint"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """``servers`` by name; ``times`` tell after how many seconds each was ready."""

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
        enclosure = ends.enter_context(enclosed(stack.tree, machine={stack.programs: "/programs"}))
        _lay_ground(enclosure)
        network = Network(enclosure.first_pid)
        ends.callback(network.close)
        servers = {name: Server(enclosure=enclosure, name=name, command=c) for name, c in _commands().items()}
        api = Api(network, enclosure.path(f"{KEYS}/ca.crt").read_text())
        node = Node(enclosure=enclosure, network=network, api=api, servers=servers, times={})
        for server in servers.values():
            ends.callback(_halt, server)
        try:
            yield _started(node)
        finally:
            _keep_logs(node)


def _lay_ground(enclosure: Enclosure) -> None:
    for name, target in {
        "containerd.toml": "/etc/containerd/config.toml",
        "bridge.conflist": "/etc/cni/net.d/10-bridge.conflist",
        "ground.sh": "/run/ground.sh",
        "credentials.sh": "/run/credentials.sh",
    }.items():
        enclosure.write(target, (HERE / name).read_bytes())
    settings = (HERE / "kubelet.yaml").read_text().replace("CGROUP", enclosure.cgroup)
    enclosure.write(f"{KEYS}/kubelet.yaml", settings)
    _make_cgroups(enclosure.cgroup)
    for script in (("/run/ground.sh", ADDRESS), ("/run/credentials.sh", KEYS, NAME, ADDRESS)):
        done = enclosure.run("sh", *script, deadline_s=SHORT_S)
        if done.returncode:
            raise LackingError(f"a node's ground cannot be laid here ({script[0]}): {done.stderr.strip()[-600:]}")


def _make_cgroups(name: str) -> None:
    """The parent of all pods' control groups, in every hierarchy; the kubelet wants it to be there."""
    tops = [path.parent for path in CGROUPS.glob("*/cgroup.procs")]
    for top in tops or [CGROUPS]:
        group = top / name.lstrip("/")
        group.mkdir(exist_ok=True)
        for inherited in ("cpuset.cpus", "cpuset.mems"):
            if (group / inherited).exists() and tops:
                (group / inherited).write_text((top / inherited).read_text())


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
    until(lambda: _has_account(api), "the default service account", START_S)
    return Node(enclosure=node.enclosure, network=node.network, api=api, servers=servers, times=times)


def _has_account(api: Api) -> bool:
    accounts = api.call("GET", "/api/v1/namespaces/default/serviceaccounts")["items"]
    return any(account["metadata"]["name"] == "default" and account.get("secrets") for account in accounts)


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


def _commands() -> dict[str, tuple[str, ...]]:
    """The command line of each server, in the order in which they may start."""
    return {
        "etcd": ("etcd", "--data-dir=/var/lib/etcd", "--unsafe-no-fsync"),
        "containerd": ("containerd", "--config=/etc/containerd/config.toml"),
        "apiserver": (
            *("/programs/kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--endpoint-reconciler-type=none"),
            *("--bind-address=0.0.0.0", f"--advertise-address={ADDRESS}", "--secure-port=443", "--insecure-port=0"),
            *(f"--tls-cert-file={KEYS}/apiserver.crt", f"--tls-private-key-file={KEYS}/apiserver.key"),
            *(f"--client-ca-file={KEYS}/ca.crt", f"--token-auth-file={KEYS}/tokens.csv"),
            *("--authorization-mode=Node,RBAC", "--service-cluster-ip-range=10.96.0.0/24", "--allow-privileged=true"),
            *("--enable-admission-plugins=NodeRestriction", "--kubelet-preferred-address-types=InternalIP"),
            "--service-account-issuer=https://kubernetes.default.svc",
            *(f"--service-account-{use}key-file={KEYS}/accounts.key" for use in ("signing-", "")),
            "--enable-aggregator-routing=true",  # it finds webhooks by their pods' addresses: no kube-proxy runs here
            *(f"--kubelet-client-certificate={KEYS}/client.crt", f"--kubelet-client-key={KEYS}/client.key"),
        ),
        "scheduler": (
            *("/programs/kube-scheduler", f"--kubeconfig={KEYS}/scheduler.kubeconfig", "--leader-elect=false"),
            *("--port=0", "--cert-dir=/run/scheduler"),
        ),
        "controllers": (
            *("/programs/kube-controller-manager", f"--kubeconfig={KEYS}/controllers.kubeconfig", "--port=0"),
            *("--leader-elect=false", "--cert-dir=/run/controllers", f"--controllers={','.join(CONTROLLERS)}"),
            *(f"--service-account-private-key-file={KEYS}/accounts.key", f"--root-ca-file={KEYS}/ca.crt"),
        ),
        "kubelet": (
            *("/programs/kubelet", f"--config={KEYS}/kubelet.yaml", f"--kubeconfig={KEYS}/kubelet.kubeconfig"),
            *(f"--hostname-override={NAME}", "--container-runtime=remote", "--v=2"),
            *(f"--container-runtime-endpoint={RUNTIME}", f"--image-service-endpoint={RUNTIME}"),
            f"--pod-infra-container-image={image.PLAIN}",
        ),
    }
