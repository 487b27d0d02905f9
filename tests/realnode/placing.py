"""How pods reach the node: the chart's webhook, and its kube-scheduler with our process as its extender.

The one place that knows which scheduler decides; the cases ask for ``place`` only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.realnode.api import ApiError
from tests.realnode.node import Node
from tests.realnode.release import NAMESPACE, SCHEDULER
from tests.realnode.servers import until

START_S = 90
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{SCHEDULER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """``place`` is what a user does."""

    node: Node

    def place(self, asked: Mapping[str, Any]) -> None:
        """Create the pod. ``ApiError`` when it is not admitted."""
        self.node.api.create_pod(asked)

    def await_ready(self) -> float:
        """Wait until the only pod is ready, and its kube-scheduler leads."""
        try:
            return until(self._is_ready, "the scheduler", START_S)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.log()[-3000:]}") from error

    def _is_ready(self) -> bool:
        selector = f"labelSelector=app.kubernetes.io/name%3D{SCHEDULER}"
        pods = self.node.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?{selector}")["items"]
        if len(pods) != 1 or not all(
            one["ready"] for one in pods[0]["status"].get("containerStatuses", [{"ready": 0}])
        ):
            return False
        return self._leader().startswith(f"{pods[0]['metadata']['name']}_")

    def _leader(self) -> str:
        try:
            return str(self.node.api.call("GET", LEASE)["spec"]["holderIdentity"])
        except ApiError:
            return ""

    def log(self) -> str:
        """What both containers have written."""
        logs = self.node.path("/var/log/pods").glob(f"{NAMESPACE}_{SCHEDULER}-*/*/*.log")
        return "\n".join(path.read_text(errors="replace") for path in logs)
