"""The stage of the demonstration: a node with everything around the daemon simulated, and the daemon itself real."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from cdi.edits import ContainerEdits
from hami_plugin.errors import HamiError
from hami_plugin.model.views import PodView, pod_view
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.hardware import SimulatedHardware, simulate
from hami_plugin.simulation.kubelet import FakeKubelet
from hami_plugin.simulation.scheduler import SimulatedScheduler
from hami_plugin.vendor import Family
from hami_plugin.wire.nodes import DeviceInfo

NODE = "demo-node"
# Recovery is a matter of minutes in production; here it is one of seconds.
CONFIGURATION = {"health": {"probeSeconds": 0.3, "cleanLooks": 2, "holdSeconds": 0.5}}


@dataclass(slots=True, kw_only=True)
class Stage:
    """Everything a step may touch."""

    directory: Path
    hardware: SimulatedHardware
    family: Family
    api: SimulatedApiServer
    kubelet: FakeKubelet
    scheduler: SimulatedScheduler
    command: tuple[str, ...]
    http: str
    daemon: asyncio.subprocess.Process | None = None
    started: float = 0.0
    received: dict[str, dict[str, ContainerEdits]] = field(default_factory=dict)

    @property
    def resource(self) -> str:
        return self.family.resources.count

    async def start_daemon(self) -> None:
        """Start the production entry point. Its log goes to a file."""
        self.started = time.monotonic()
        with (self.directory / "daemon.log").open("ab") as log:
            self.daemon = await asyncio.create_subprocess_exec(
                *self.command, stdout=log, stderr=log, env=_environment()
            )

    async def stop_daemon(self, *, kill: bool = False) -> None:
        """End it, politely or not."""
        daemon, self.daemon = self.daemon, None
        if daemon is None or daemon.returncode is not None:
            return
        daemon.kill() if kill else daemon.terminate()
        try:
            async with asyncio.timeout(5):
                await daemon.wait()
        except TimeoutError:
            daemon.kill()
            await daemon.wait()

    def registered(self) -> tuple[DeviceInfo, ...]:
        """What the node's annotation says."""
        return self.scheduler.devices()

    async def until(self, condition: Callable[[], bool], what: str, within: float = 10.0) -> float:
        """Wait for ``condition``; answers after how many seconds it held. ``HamiError`` names what did not happen."""
        start = time.monotonic()
        while not condition():
            if self.daemon is not None and self.daemon.returncode is not None:
                raise HamiError(f"the daemon ended with status {self.daemon.returncode}", hint=self.log_tail())
            if time.monotonic() - start > within:
                raise HamiError(f"{what} did not happen within {within:g} s", hint=self.log_tail())
            await asyncio.sleep(0.005)
        return time.monotonic() - start

    async def run_pod(self, manifest: Mapping[str, Any]) -> PodView:
        """Schedule, admit and start a pod; what its containers received is kept in ``received``."""
        pod = self.scheduler.place(manifest)
        await self.kubelet.admit(pod)
        containers: dict[str, ContainerEdits] = {}
        for container in pod.containers:
            response = await self.kubelet.start_container(pod.uid, container.name)
            containers[container.name] = response.edits
        self.received[pod.key] = containers
        self.api.set_phase(pod.namespace, pod.name, "Running")
        return pod_view(self.api.pod(pod.namespace, pod.name))

    async def readiness(self) -> Mapping[str, Any]:
        """What the daemon says of itself."""
        async with aiohttp.ClientSession() as session, session.get(f"http://{self.http}/readyz") as answer:
            return dict(await answer.json())

    def log_tail(self) -> str:
        """The last lines of the daemon's log."""
        with suppress(OSError):
            return "\n".join((self.directory / "daemon.log").read_text(errors="replace").splitlines()[-12:])
        return ""


@asynccontextmanager
async def staged(profile: str, *, keep: bool) -> AsyncIterator[Stage]:
    """Build the stage in a temporary directory, and clear it away at the end."""
    directory = Path(tempfile.mkdtemp(prefix="hami-plugin-"))
    try:
        hardware = simulate(profile, directory / "machine")
        settings = hardware.vendor.settings.model_validate(dict(hardware.settings))
        family = hardware.vendor.families(settings)[0]
        _install_core(directory / "hook" / "vgpu")
        kubelet = FakeKubelet(directory / "device-plugins", directory / "pod-resources" / "kubelet.sock")
        http = f"127.0.0.1:{_free_port()}"
        async with SimulatedApiServer() as api:
            api.create_node(NODE)
            await kubelet.start()
            stage = Stage(
                directory=directory,
                hardware=hardware,
                family=family,
                api=api,
                kubelet=kubelet,
                scheduler=SimulatedScheduler(api, NODE, family),
                command=_command(profile, directory, api, http),
                http=http,
            )
            try:
                yield stage
            finally:
                await stage.stop_daemon()
                await kubelet.stop()
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def _command(profile: str, directory: Path, api: SimulatedApiServer, http: str) -> tuple[str, ...]:
    config = directory / "config.yaml"
    config.write_text(json.dumps(CONFIGURATION), encoding="utf-8")
    options = {
        "--config": config,
        "--simulate": profile,
        "--simulation-dir": directory / "machine",
        "--node-name": NODE,
        "--kubelet-dir": directory / "device-plugins",
        "--pod-resources-socket": directory / "pod-resources" / "kubelet.sock",
        "--state-dir": directory / "state",
        "--hook-path": directory / "hook",
        "--kubeconfig": api.write_kubeconfig(directory / "kubeconfig"),
        "--http": http,
        "--log-format": "json",
    }
    words = [word for option, value in options.items() for word in (option, str(value))]
    return (sys.executable, "-m", "hami_plugin", "run", *words)


def _install_core(directory: Path) -> None:
    """Stand-ins for HAMi-core's files; nothing here loads them."""
    directory.mkdir(parents=True)
    for name in ("libvgpu.so", "ld.so.preload"):
        (directory / name).touch()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _environment() -> dict[str, str]:
    """The daemon must not pick up what happens to be set where the demonstration runs."""
    return {key: value for key, value in os.environ.items() if key not in ("NODE_NAME", "HOOK_PATH", "KUBECONFIG")}
