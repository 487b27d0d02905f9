"""What a node stands on: its name and address, keys, settings, a network, and a parent of its control groups."""

from pathlib import Path

from tests.debian.commands import LackingError
from tests.realnode.versions import Kubernetes
from tests.runtimes.enclosure import CGROUPS, Enclosure

NAME, ADDRESS = "node-1", "192.0.2.10"
KEYS = "/etc/kubernetes"
HERE = Path(__file__).parent
SHORT_S = 30


def lay(enclosure: Enclosure, kubernetes: Kubernetes) -> None:
    """Write it all into an enclosure. ``LackingError`` where the machine refuses."""
    for name, target in {
        f"containerd-{1 if kubernetes.is_debians else 2}.toml": "/etc/containerd/config.toml",
        "bridge.conflist": "/etc/cni/net.d/10-bridge.conflist",
        "ground.sh": "/run/ground.sh",
        "credentials.sh": "/run/credentials.sh",
    }.items():
        enclosure.write(target, (HERE / name).read_bytes())
    settings = (HERE / "kubelet.yaml").read_text().replace("CGROUP", enclosure.cgroup)
    more = "" if kubernetes.is_debians else (HERE / "kubelet-newer.yaml").read_text()
    enclosure.write(f"{KEYS}/kubelet.yaml", settings + more)
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
