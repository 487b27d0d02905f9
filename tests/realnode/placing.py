"""How pods reach the node: a kube-scheduler of its own with `hami-plugin scheduler` as its extender, and the webhook.

The one place that knows which scheduler decides; the cases ask for ``place`` only.
"""

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.realnode import images, manifest
from tests.realnode.node import KEYS, Node
from tests.realnode.servers import until

HERE = Path(__file__).parent
START_S = 60
PROBE = "http://127.0.0.1:9395/readyz"
KUBE_PROBE = "http://127.0.0.1:10351/healthz"
CONFIGURATION = f"{KEYS}/extender.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """``install`` is what an administrator would type; ``place`` is what a user does."""

    node: Node

    def install(self) -> None:
        """Apply the process, its account and the webhook; start the kube-scheduler that asks it."""
        self.node.enclosure.write(CONFIGURATION, (HERE / "extender.yaml").read_bytes())
        self.node.enclosure.write("/run/scheduler.yaml", yaml.safe_dump_all(self._documents()))
        self.node.kubectl("apply", "--filename=/run/scheduler.yaml")
        try:
            until(self.is_ready, "the scheduler process", START_S)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.log()[-3000:]}") from error
        server = self.node.servers["extended"]
        server.start()
        until(lambda: self._asks() or not server.runs(), "the kube-scheduler that asks it", START_S)
        assert server.runs(), server.tail()

    def place(self, asked: Mapping[str, Any]) -> None:
        """Create the pod. ``ApiError`` when it is not admitted."""
        self.node.api.create_pod(asked)

    def is_ready(self) -> bool:
        try:
            return bool(json.loads(self.node.network.get(PROBE))["ready"])
        except (OSError, ValueError, KeyError):
            return False

    def _asks(self) -> bool:
        try:
            return self.node.network.get(KUBE_PROBE) == "ok"
        except OSError:
            return False

    def log(self) -> str:
        """What the process has written."""
        logs = self.node.path("/var/log/pods").glob(f"{manifest.NAMESPACE}_hami-scheduler-*/*/*.log")
        return "\n".join(path.read_text(errors="replace") for path in logs)

    def _documents(self) -> list[dict[str, Any]]:
        keys = {"<certificate>": "apiserver.crt", "<key>": "apiserver.key", "<authority>": "ca.crt"}
        text = (HERE / "scheduler.yaml").read_text()
        for place, name in keys.items():
            text = text.replace(place, b64encode(self.node.path(f"{KEYS}/{name}").read_bytes()).decode())
        found = list(yaml.safe_load_all(text))
        for document in found:
            if document["kind"] == "Deployment":
                manifest.stand_on(document["spec"]["template"]["spec"], images.directories())
        return found
