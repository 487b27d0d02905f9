"""The chart on a real node, installed by Helm itself. Here stands all that a test sets in it, as values alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tests.charts import helm
from tests.charts.stand_in import kubeconfig
from tests.realnode.api import ADMIN
from tests.realnode.ground import KEYS
from tests.realnode.node import Node
from tests.realnode.versions import Kubernetes
from tests.runtimes import project_image
from tools.debian.commands import tool

NAMESPACE, NAME = helm.NAMESPACE, helm.RELEASE
DAEMON, SCHEDULER = NAME, f"{NAME}-scheduler"
SIMULATION = "/var/lib/simulation"
IMAGE = f"/{project_image.NAME}"
NAMESPACE_OF_PODS = "--namespace=k8s.io"
CLEAN_S = 180
QUICK = {"probeSeconds": 0.3, "cleanLooks": 2, "holdSeconds": 1.0}
"""Recovery is a matter of minutes in production; here it is one of seconds."""


NOTHING: Mapping[str, Any] = MappingProxyType({})


def values(
    profile: str,
    plugin: Mapping[str, Any] = NOTHING,
    scheduler: Mapping[str, Any] = NOTHING,
    policies: Mapping[str, Any] = NOTHING,
) -> dict[str, Any]:
    """Return the chart's values: the daemon simulates the machine ``profile`` in a directory that the test reaches
    too, and heals in seconds; ``plugin`` goes over the values of ``devicePlugin``, ``scheduler`` and ``policies`` over
    those of their own.
    """
    simulated = {
        "extraArgs": [f"--simulate={profile}", f"--simulation-dir={SIMULATION}", "--log-format=json"],
        "hostPaths": [{"path": SIMULATION, "readOnly": False}],
        "config": {"health": QUICK},
    }
    return {
        "devicePlugin": {**simulated, **plugin},
        "scheduler": {"extraArgs": ["--log-format=json"], **scheduler},
        "admissionPolicies": dict(policies),
    }


def switched_on(given: Mapping[str, Any], kubernetes: Kubernetes) -> Mapping[str, Any]:
    """The values, with the cluster's feature gates for the chart's own kube-scheduler, too."""
    if not kubernetes.switches:
        return given
    scheduler = given.get("scheduler", {})
    own = scheduler.get("kubeScheduler", {})
    arguments = [*own.get("extraArgs", ()), *kubernetes.switches]
    return {**given, "scheduler": {**scheduler, "kubeScheduler": {**own, "extraArgs": arguments}}}


def clean(node: Node, *arguments: str) -> tuple[int, str]:
    """Run `hami-plugin node clean` out of the project's image, as an administrator; return status and words."""
    (image,) = [name for name in node.run("ctr", NAMESPACE_OF_PODS, "images", "ls", "-q").split() if IMAGE in name]
    keys = f"--mount=type=bind,src={KEYS},dst={KEYS},options=rbind:ro"
    how = ("run", "--rm", "--net-host", f"--cgroup={node.enclosure.cgroup}/clean", keys, image, "clean")
    command = ("hami-plugin", "node", "clean", *arguments, f"--kubeconfig={KEYS}/admin.kubeconfig")
    done = node.enclosure.run("ctr", NAMESPACE_OF_PODS, *how, *command, deadline_s=CLEAN_S)
    return done.returncode, done.stdout + done.stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Helm's part of an administrator's work. What it remembers is in the cluster."""

    node: Node

    def install(self, given: Mapping[str, Any]) -> str:
        """`helm install --create-namespace`. Return the notes that Helm prints."""
        return self._run({"verb": "install", "values": given, "options": helm.CREATE_NAMESPACE})

    def upgrade(self, given: Mapping[str, Any]) -> str:
        """`helm upgrade`. Return the notes that Helm prints."""
        return self._run({"verb": "upgrade", "values": given})

    def uninstall(self) -> None:
        """`helm uninstall`, and wait until all is gone."""
        self._run({"verb": "uninstall"})

    def _run(self, step: dict[str, Any]) -> str:
        if "values" in step:
            step["values"] = switched_on(step["values"], self.node.kubernetes)
        authority = self.node.path(f"{KEYS}/ca.crt").read_bytes()
        config = kubeconfig("https://127.0.0.1:443", authority=authority, token=ADMIN)
        (answer,) = helm.run([step], config, NAME, entering=self._entering(), storage="secret")
        return str(answer.get("info", {}).get("notes", ""))

    def _entering(self) -> Sequence[str]:
        return (tool("nsenter"), f"--net=/proc/{self.node.enclosure.first_pid}/ns/net", "--")
