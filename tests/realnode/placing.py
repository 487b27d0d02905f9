"""How pods reach the node: the chart's webhook, and its kube-scheduler with our process as its extender.

The one place that knows which scheduler decides; the cases ask for ``place`` only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.realnode.api import ApiError
from tests.realnode.node import Node, is_ready
from tests.realnode.release import NAMESPACE, SCHEDULER
from tests.realnode.servers import until

START_S = 90
ENDED = ("Succeeded", "Failed")
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{SCHEDULER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """``place`` is what a user does."""

    node: Node

    def place(self, asked: Mapping[str, Any]) -> None:
        """Create the pod. ``ApiError`` when it is not admitted."""
        self.node.api.create_pod(asked)

    def await_ready(self, replicas: int = 1) -> float:
        """Wait until there are so many pods and all are ready, and the kube-scheduler of one of them leads."""
        try:
            return until(lambda: self._is_ready(replicas), "the scheduler", START_S)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.log()[-3000:]}") from error

    def _is_ready(self, replicas: int) -> bool:
        pods = self.pods()
        ready = [name for name, pod in pods.items() if is_ready(pod)]
        return len(pods) == len(ready) == replicas and self.leader().partition("_")[0] in ready

    def pods(self) -> Mapping[str, Any]:
        """Its pods by their names, but for those that have ended: after a shutdown of the node these stay."""
        selector = f"labelSelector=app.kubernetes.io/name%3D{SCHEDULER}"
        found = self.node.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?{selector}")["items"]
        return {pod["metadata"]["name"]: pod for pod in found if pod["status"].get("phase") not in ENDED}

    def leader(self) -> str:
        """Which kube-scheduler leads: its pod's name, and after an underscore a word for its life."""
        try:
            return str(self.node.api.call("GET", LEASE)["spec"]["holderIdentity"])
        except ApiError:
            return ""

    def log(self) -> str:
        """What both containers have written."""
        logs = self.node.path("/var/log/pods").glob(f"{NAMESPACE}_{SCHEDULER}-*/*/*.log")
        return "\n".join(path.read_text(errors="replace") for path in logs)
