"""What a node stands on: its name and address, keys, settings, a network, and a parent of its control groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.realnode.versions import Kubernetes
from tests.runtimes.enclosure import CGROUPS, Enclosure
from tools.debian.commands import LackingError, output, tool

KEYS = "/etc/kubernetes"
OWN_KEYS = ("ca.crt", "kubelet.crt", "kubelet.key", "kubelet.kubeconfig")
HERE = Path(__file__).parent
SHORT_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which node of the cluster it is: its ``number`` is in its name, its address, and the ones of its pods.

    One that was named anew has a name that is ``given``.
    """

    number: int
    given: str = ""

    @property
    def name(self) -> str:
        return self.given or f"node-{self.number}"

    @property
    def address(self) -> str:
        return f"192.0.2.{9 + self.number}"

    @property
    def pods(self) -> str:
        """The network of its pods."""
        return f"10.244.{6 + self.number}.0/24"


FIRST = Place(number=1)
NAME, ADDRESS = FIRST.name, FIRST.address


def lay(enclosure: Enclosure, kubernetes: Kubernetes, others: Sequence[Place] = (), kubelet: str = "") -> None:
    """Write it all into the first node's enclosure, with keys for ``others``. ``LackingError`` where the machine
    refuses. ``kubelet`` are further settings of the kubelet.
    """
    _lay(enclosure, kubernetes, FIRST, kubelet)
    enclosure.write("/run/credentials.sh", (HERE / "credentials.sh").read_bytes())
    _run(enclosure, "/run/ground.sh", ADDRESS)
    if others:
        _enter(enclosure, "ip link add bridge type bridge && ip link set bridge up && ip link set nodes master bridge")
    _run(enclosure, "/run/credentials.sh", KEYS, NAME, ADDRESS, *(f"{one.name}={one.address}" for one in others))


def lay_beside(first: Enclosure, enclosure: Enclosure, kubernetes: Kubernetes, place: Place, kubelet: str) -> None:
    """The same for another node, which is linked to the network of the ``first`` one and has its keys from there."""
    _lay(enclosure, kubernetes, place, kubelet)
    for key in OWN_KEYS:
        own = f"{place.name}/{key}" if key.startswith("kubelet") else key
        enclosure.write(f"{KEYS}/{key}", first.path(f"{KEYS}/{own}").read_bytes())
    _run(enclosure, "/run/ground.sh", place.address, ADDRESS)


def link(first: Enclosure, enclosure: Enclosure, place: Place) -> None:
    """Put another node's enclosure on the bridge in the ``first`` one, which gets a route to its pods."""
    _enter(first, f"ip link add {place.name} type veth peer name uplink netns {enclosure.first_pid}")
    _enter(first, f"ip link set {place.name} master bridge up")
    _enter(first, f"ip route add {place.pods} via {place.address} dev uplink")


def _enter(enclosure: Enclosure, command: str) -> None:
    """Run a command in an enclosure, but for its process ids, which are the machine's."""
    inside = [tool("nsenter"), f"--target={enclosure.first_pid}", "--mount", "--net", "--"]
    output([*inside, "sh", "-ec", command], deadline_s=SHORT_S)


def _lay(enclosure: Enclosure, kubernetes: Kubernetes, place: Place, kubelet: str) -> None:
    for name, target in {
        f"containerd-{1 if kubernetes.is_debians else 2}.toml": "/etc/containerd/config.toml",
        "ground.sh": "/run/ground.sh",
    }.items():
        enclosure.write(target, (HERE / name).read_bytes())
    network = (HERE / "bridge.conflist").read_text().replace("PODS", place.pods)
    enclosure.write("/etc/cni/net.d/10-bridge.conflist", network)
    settings = (HERE / "kubelet.yaml").read_text().replace("CGROUP", enclosure.cgroup)
    more = "" if kubernetes.is_debians else (HERE / "kubelet-newer.yaml").read_text()
    enclosure.write(f"{KEYS}/kubelet.yaml", settings + more + kubelet)
    _make_cgroups(enclosure.cgroup)


def _run(enclosure: Enclosure, script: str, *arguments: str) -> None:
    done = enclosure.run("sh", script, *arguments, deadline_s=SHORT_S)
    if done.returncode:
        raise LackingError(f"a node's ground cannot be laid here ({script}): {done.stderr.strip()[-600:]}")


def _make_cgroups(name: str) -> None:
    """The parent of all pods' control groups, in every hierarchy; the kubelet wants it to be there."""
    tops = [path.parent for path in CGROUPS.glob("*/cgroup.procs")]
    for top in tops or [CGROUPS]:
        group = top / name.lstrip("/")
        group.mkdir(exist_ok=True)
        for inherited in ("cpuset.cpus", "cpuset.mems"):
            if (group / inherited).exists() and tops:
                (group / inherited).write_text((top / inherited).read_text())
