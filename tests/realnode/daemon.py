"""The daemon on a real node, as the chart's DaemonSet runs it."""

import json
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.realnode.node import Node, is_ready
from tests.realnode.processes import pid_of
from tests.realnode.release import DAEMON, NAMESPACE, SCHEDULER, SIMULATION, Release, values
from tests.realnode.servers import until
from tests.runtimes.inside import OPENED
from tests.runtimes.simulated import HOOK, HOOK_SCRIPT
from vendors.nvidia.simulation import NvmlSimulator

START_S = 180  # the controller waits longer and longer after pods that failed
PORT = 9394
MACHINES = f"{SIMULATION}/machines"
NO_DRIVER = 239
"""A major: a container that may open such a node is told that there is no device, and not that it may not."""
PERMITTED = {OPENED, "No such device or address"}
"""What is told of a node that a container may open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """``configure`` and ``replace`` are what an administrator would type; the rest looks at the running pod."""

    node: Node
    profile: str

    def configure(self, **plugin: Any) -> None:
        """Upgrade the release to these values of ``devicePlugin``, and wait for the pod that has them."""
        before = self.pod()
        Release(node=self.node).upgrade(values(self.profile, plugin))
        self._await_another(before)

    def serve(self, profiles: Sequence[str], limiters: Sequence[str] = (), **plugin: Any) -> None:
        """``configure`` it for other simulated machines, of different vendors, whose nodes containers can be given.

        A profile is a name, or the path of a file. Each machine is in ``MACHINES`` under its name. ``limiters`` are
        directories of the node with limiters that no image of ours has.
        """
        names = [Path(one).stem for one in profiles]
        for one in profiles:
            if "/" in one:
                self.node.enclosure.write(f"{MACHINES}/{Path(one).name}", Path(one).read_bytes())
        told = ",".join(f"{MACHINES}/{Path(one).name}" if "/" in one else one for one in profiles)
        folder = MACHINES if len(names) > 1 else f"{MACHINES}/{names[0]}"  # a single one is in the directory itself
        arguments = [f"--simulate={told}", f"--simulation-dir={folder}", "--log-format=json"]
        paths = [{"path": SIMULATION, "readOnly": False}, *({"path": one} for one in limiters)]
        # No limit of memory: there are many machines.
        self.configure(extraArgs=arguments, hostPaths=paths, resources={}, **plugin)
        for name in names:
            self.make_nodes(f"{MACHINES}/{name}")
        until(lambda: self.pods_there() == 1, "the end of the former daemon", START_S)

    def make_nodes(self, folder: str) -> None:
        """Put device nodes in place of a machine's plain files, and a hook that the node can run."""
        top = self.node.path(f"{folder}/dev")
        for number, path in enumerate(sorted(one for one in top.rglob("*") if one.is_file())):
            path.unlink()
            self.node.enclosure.make_node(f"{folder}/dev/{path.relative_to(top)}", NO_DRIVER, number)
        if (hook := self.node.path(folder) / HOOK).exists():
            hook.write_bytes(HOOK_SCRIPT.read_bytes())

    def pod(self) -> dict[str, Any] | None:
        """The newest pod that is not ending, if there is one."""
        pods = self._pods()
        living = [pod["metadata"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        newest = max(living, key=lambda meta: meta["creationTimestamp"], default=None)
        return next((pod for pod in pods if pod["metadata"] is newest), None)

    def pods_there(self) -> int:
        """How many pods of the daemon there are, those that are ending too."""
        return len(self._pods())

    def _pods(self) -> list[dict[str, Any]]:
        selector = f"labelSelector=app.kubernetes.io/name%3D{DAEMON}"
        return list(self.node.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?{selector}")["items"])

    def is_ready(self) -> bool:
        pod = self.pod()
        return bool(pod) and is_ready(pod)

    def await_ready(self) -> float:
        try:
            return until(self.is_ready, "the daemon", START_S)
        except TimeoutError as error:
            status = json.dumps((self.pod() or {}).get("status", {}))[:3000]
            raise TimeoutError(f"{error}\n{status}\n{self.log()[-3000:]}") from error

    def log(self) -> str:
        """What it and its predecessors have written, the oldest first."""
        found = self.node.path("/var/log/pods").glob(f"{NAMESPACE}_{DAEMON}-*/{DAEMON}/*.log")
        own = [path for path in found if SCHEDULER not in path.parts[-3]]
        return "\n".join(path.read_text(errors="replace") for path in sorted(own, key=lambda p: p.stat().st_mtime))

    def metrics(self) -> Mapping[str, float]:
        """Every sample by its name with its labels."""
        lines = self._get("/metrics").splitlines()
        return {
            name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line and line[0] != "#")
        }

    def _get(self, path: str) -> str:
        pod = self.pod()
        if pod is None:
            raise LookupError("the daemon has no pod")
        return self.node.network.get(f"http://{pod['status']['podIP']}:{PORT}{path}")

    def kill(self) -> None:
        """End its process as a crash would, without a word."""
        os.kill(self.pid(), signal.SIGKILL)

    def pid(self) -> int:
        """Its process id, as the machine sees it."""
        pod = self.pod()
        assert pod
        (status,) = pod["status"]["containerStatuses"]
        return pid_of(self.node, status["containerID"])

    def start_s(self) -> float:
        """How many seconds after its process, as the runtime started it, it had registered with the kubelet."""
        ticks = int(Path(f"/proc/{self.pid()}/stat").read_text().rpartition(")")[2].split()[19])
        began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
        lines = [json.loads(line) for line in re.findall(r"^\S+ stderr F (\{.*\})$", self.log(), re.MULTILINE)]
        times = [datetime.fromisoformat(one["timestamp"]).timestamp() for one in lines if one["event"] == "registered"]
        return min(at for at in times if at > began) - began

    def pid_or_none(self) -> int | None:
        """The same, and None while there is no process."""
        try:
            return self.pid()
        except (LookupError, ValueError, StopIteration):
            return None

    def restarts(self) -> int:
        pod = self.pod()
        return sum(one["restartCount"] for one in pod["status"].get("containerStatuses", ())) if pod else 0

    def registrations(self) -> float:
        """How often it has registered with the kubelet; 0 while it does not answer."""
        try:
            found = self.metrics()
        except (OSError, LookupError):
            return 0.0
        return sum(value for name, value in found.items() if name.startswith("hami_plugin_registrations_total"))

    def replace(self) -> None:
        """Roll it out anew, as `kubectl rollout restart` does, and wait for the new pod."""
        before = self.pod()
        self.node.kubectl("-n", NAMESPACE, "rollout", "restart", f"daemonset/{DAEMON}")
        self._await_another(before)

    def await_successor(self) -> None:
        """Wait until the container of a second pod runs, beside that of the first."""

        def beside() -> bool:
            states = [one["state"] for pod in self._pods() for one in pod["status"].get("containerStatuses", ())]
            return sum("running" in state for state in states) > 1

        until(beside, "the successor's container", START_S)

    def _await_another(self, before: Mapping[str, Any] | None) -> None:
        until(lambda: self._is_another(before), "another pod", START_S)
        self.await_ready()

    def _is_another(self, before: Mapping[str, Any] | None) -> bool:
        now = self.pod()
        return bool(now) and (not before or now["metadata"]["uid"] != before["metadata"]["uid"])

    def machine(self) -> NvmlSimulator:
        """The simulated machine, for faults."""
        return NvmlSimulator.attach(self.node.path(SIMULATION))
