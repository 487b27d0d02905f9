"""The pods of a case: made, awaited, looked into, and deleted at its end."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hami_plugin.protocol import keys
from tests.realnode.api import Object
from tests.realnode.asked import NAMESPACE, container, manifest
from tests.realnode.node import Node
from tests.realnode.processes import pid_of
from tests.realnode.servers import until
from tests.runtimes import inside
from tests.runtimes.inside import Inside

RUN_S = 40
BARE = manifest("bare", container(), schedulerName="default-scheduler")


@dataclass(slots=True, kw_only=True)
class Pods:
    """The pods of one test; ``place`` is the scheduler's part. What is made here is deleted at the end."""

    node: Node
    place: Callable[..., None]
    bare: Inside | None = None
    names: list[str] = field(default_factory=list)

    def submit(self, asked: Object, **how: Any) -> str:
        """Have it scheduled, without waiting for it."""
        name = asked["metadata"]["name"]
        self.names.append(name)
        self.place(asked, **how)
        return name

    def create(self, asked: Object) -> str:
        """Only create it: whoever its spec names schedules it."""
        self.names.append(asked["metadata"]["name"])
        self.node.api.create_pod(asked)
        return asked["metadata"]["name"]

    def run(self, asked: Object, within_s: float = RUN_S) -> str:
        """Have it scheduled, and wait until it runs."""
        name = self.submit(asked)
        self.await_running(name, within_s=within_s)
        return name

    def get(self, name: str) -> Object:
        return self.node.api.pod(NAMESPACE, name)

    def phase(self, name: str) -> str:
        return self.get(name)["status"].get("phase", "")

    def await_running(self, *names: str, within_s: float = RUN_S) -> float:
        def all_run() -> bool:
            pods = {pod["metadata"]["name"]: pod for pod in self.node.api.pods()}
            phases = {name: pods[name]["status"].get("phase") for name in names}
            failed = [name for name, phase in phases.items() if phase == "Failed"]
            assert not failed, [(name, pods[name]["status"]) for name in failed]
            return all(phase == "Running" and _all_ready(pods[name]) for name, phase in phases.items())

        try:
            return until(all_run, f"pods {', '.join(names)} to run", within_s)
        except TimeoutError as error:
            told = {name: self.told(name) for name in names if self.phase(name) != "Running"}
            raise TimeoutError(f"{error}: {json.dumps(told, indent=1)[:4000]}") from error

    def await_settled(self, *names: str, within_s: float = RUN_S) -> float:
        """Wait until their phase says success and the node lock is free."""

        def settled() -> bool:
            done = all(self.annotation(name, keys.BIND_PHASE) == keys.PHASE_SUCCESS for name in names)
            return done and not self.node.annotation(keys.NODE_LOCK)

        return until(settled, f"the settlement of {', '.join(names)}", within_s)

    def annotation(self, name: str, key: str) -> str:
        return self.get(name)["metadata"].get("annotations", {}).get(key, "")

    def report(self, name: str, container: str = "main") -> Inside:
        """Return what the container sees."""
        said = ""

        def complete() -> bool:
            nonlocal said
            said = self.node.api.log(NAMESPACE, name, container)
            return said.endswith("== end\n")

        until(complete, f"the report of {name}/{container}", RUN_S)
        return inside.parse(said)

    def granted(self, name: str, container: str = "main") -> Inside:
        """Return what the container has beyond one that asks for nothing."""
        if self.bare is None:
            self.await_running(self.create(BARE))
            self.bare = self.report("bare")
        more = self.report(name, container).beyond(self.bare)
        return replace(more, env={k: v for k, v in more.env.items() if k != "HOSTNAME"})

    def told(self, name: str) -> list[str]:
        """The Events about a pod, as lines."""
        events = self.node.api.events(NAMESPACE, name)
        return [f"{e['type']} {e['reason']} {e.get('message', '')}" for e in events]

    def containers(self, name: str) -> Mapping[str, str]:
        """The runtime's ids of the pod's containers, by name."""
        status = self.get(name)["status"]
        both = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
        return {one["name"]: one.get("containerID", "") for one in both}

    def pid(self, name: str, container: str = "main") -> int:
        return pid_of(self.node, self.containers(name)[container])

    def restarts(self, name: str) -> int:
        return sum(one["restartCount"] for one in self.get(name)["status"].get("containerStatuses", ()))

    def delete(self, *names: str) -> None:
        api = self.node.api
        for name in names:
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}?gracePeriodSeconds=0"
            if api.find_pod(NAMESPACE, name):
                api.call("DELETE", path)
        for name in names:
            until(lambda name=name: api.find_pod(NAMESPACE, name) is None, f"the end of pod {name}", RUN_S)
            if name in self.names:
                self.names.remove(name)

    def clear(self) -> None:
        self.delete(*dict.fromkeys(self.names))


def _all_ready(pod: Object) -> bool:
    return all(one["ready"] for one in pod["status"].get("containerStatuses", ()))
