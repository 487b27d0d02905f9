"""The kubelet with other settings, another name, or another machine below it: changed as an administrator would, and
taken back.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from tests.realnode import shares
from tests.realnode.commands import commands
from tests.realnode.daemon import Daemon
from tests.realnode.ground import KEYS
from tests.realnode.node import Node
from tests.realnode.servers import until

ACCOUNT = """
cd "$1"
openssl req -new -key kubelet.key -subj "/O=system:nodes/CN=system:node:$2" -out "$2.csr"
openssl x509 -req -in "$2.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3 -out "$2.crt"
sed "s#{token: .*}}#{client-certificate: $1/$2.crt, client-key: $1/kubelet.key}}#" kubelet.kubeconfig >"$2.kubeconfig"
"""
"""A kubelet's account is that of one node."""

SETTINGS = f"{KEYS}/kubelet.yaml"
CPU_STATE = "/var/lib/kubelet/cpu_manager_state"
"""Which CPUs are whose. A kubelet does not start with that of another policy."""
NUMA = "/sys/devices/system/node"
RESOURCE = "nvidia.com/gpu"
BACK_S = 60


@contextlib.contextmanager
def configured(node: Node, daemon: Daemon, **settings: Any) -> Iterator[None]:
    """Run the kubelet with more settings, and then without them again."""
    before = node.path(SETTINGS).read_text()
    try:
        _restart(node, daemon, yaml.safe_dump({**yaml.safe_load(before), **settings}))
        yield
    finally:
        _restart(node, daemon, before)


def _restart(node: Node, daemon: Daemon, settings: str) -> None:
    kubelet = node.servers["kubelet"]
    kubelet.end()
    node.path(CPU_STATE).unlink(missing_ok=True)
    node.enclosure.write(SETTINGS, settings)
    restarted(node, daemon)


def restarted(node: Node, daemon: Daemon) -> None:
    """Start the kubelet, now if it has ended; wait until it offers the daemon's shares again."""
    kubelet, registered = node.servers["kubelet"], daemon.registrations()
    if kubelet.runs():
        kubelet.end()
    kubelet.start()
    until(lambda: daemon.registrations() > registered, "another registration", BACK_S)
    until(lambda: node.allocatable(RESOURCE) > 0, "the shares", BACK_S)
    until(node.is_ready, "the node", BACK_S)


def restarted_before_pods(node: Node, count: int) -> None:
    """Start the kubelet, now if it has ended; it sees no pod before it has ``count`` of the daemon's shares. Until
    then the API server stands still.
    """
    kubelet = node.servers["kubelet"]
    if kubelet.runs():
        kubelet.end()
    with node.servers["apiserver"].stopped():
        kubelet.start()
        until(lambda: shares.offered(node, RESOURCE) == count, "the daemon's shares at the kubelet", BACK_S)
    until(lambda: node.allocatable(RESOURCE) == count, "the shares", BACK_S)
    until(node.is_ready, "the node", BACK_S)


@contextlib.contextmanager
def renamed(node: Node, name: str) -> Iterator[Node]:
    """Run the kubelet with another name for its node, and then with its own again. Its state and its containers stay,
    and so does the API object of the name that it has left.
    """
    kubelet, other = node.servers["kubelet"], replace(node, place=replace(node.place, given=name))
    before = kubelet.command
    node.run("sh", "-ec", ACCOUNT, "account", KEYS, name)
    own = f"--kubeconfig={KEYS}/{name}.kubeconfig"

    def run(one: Node, command: Sequence[str]) -> None:
        kubelet.end()
        kubelet.command = command
        kubelet.start()
        until(lambda: one.is_known() and one.is_ready(), f"the node {one.name}", BACK_S)

    try:
        run(other, (*commands(node.kubernetes, other.place)["kubelet"], own))
        yield other
    finally:
        run(node, before)


@contextlib.contextmanager
def numa_nodes(node: Node, count: int = 2) -> Iterator[None]:
    """Let a kubelet that starts find so many NUMA nodes, with an equal part of the machine's CPUs each."""
    cpus = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*"))
    made = node.path("/run/numa")
    for number in range(count):
        folder = made / f"node{number}"
        folder.mkdir(parents=True, exist_ok=True)
        for cpu in cpus[number::count]:
            (folder / cpu.name).symlink_to(f"../../cpu/{cpu.name}")
        lines = (Path(NUMA) / "node0/meminfo").read_text().replace("Node 0 ", f"Node {number} ")
        (folder / "meminfo").write_text(lines)
        (folder / "distance").write_text(" ".join("10" if other == number else "20" for other in range(count)))
    node.run("mount", "--bind", "/run/numa", NUMA)
    try:
        yield
    finally:
        node.run("umount", NUMA)
