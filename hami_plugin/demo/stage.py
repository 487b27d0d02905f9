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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from cdi.edits import ContainerEdits
from hami_plugin.config.settings import VendorSettings
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.views import PodView, pod_view
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.hardware import SimulatedHardware, simulate
from hami_plugin.simulation.kubelet import FakeKubelet
from hami_plugin.simulation.scheduler import SimulatedScheduler
from hami_plugin.vendor import Family
from hami_plugin.wire.nodes import DeviceInfo

NODE = "demo-node"
LAUNCHER = ("-m", "hami_plugin")
# Recovery is a matter of minutes in production; here it is one of seconds.
CONFIGURATION = {"health": {"probeSeconds": 0.3, "cleanLooks": 2, "holdSeconds": 0.5}}


@dataclass(slots=True, kw_only=True)
class Stage:
    """Everything a step may touch. ``options`` are the daemon's; ``log`` is the name of its file."""

    directory: Path
    hardware: SimulatedHardware
    family: Family
    api: SimulatedApiServer
    kubelet: FakeKubelet
    scheduler: SimulatedScheduler
    options: Mapping[str, str]
    log: str = "daemon.log"
    daemon: asyncio.subprocess.Process | None = None
    started: float = 0.0
    received: dict[str, dict[str, ContainerEdits]] = field(default_factory=dict)

    @property
    def resource(self) -> str:
        return self.family.resources.count

    async def start_daemon(self, *launcher: str) -> None:
        """Start the production entry point, or ``launcher`` in its place. Its log goes to a file."""
        self.started = time.monotonic()
        words = [word for option in self.options.items() for word in option]
        with (self.directory / self.log).open("ab") as log:
            self.daemon = await asyncio.create_subprocess_exec(
                sys.executable, *(launcher or LAUNCHER), "run", *words, stdout=log, stderr=log, env=_environment()
            )

    def twin(self, name: str, **options: Path | str) -> Stage:
        """The same stage for a second daemon beside the first. ``options`` are written with underscores."""
        changed = {f"--{option.replace('_', '-')}": str(value) for option, value in options.items()}
        return replace(
            self,
            options={**self.options, "--http": f"127.0.0.1:{_free_port()}", **changed},
            log=f"{name}.log",
            daemon=None,
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
        _status, body = await self.get("/readyz")
        return dict(json.loads(body))

    async def get(self, path: str) -> tuple[int, str]:
        """Ask the daemon over HTTP: the status and the body."""
        url = f"http://{self.options['--http']}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()

    def log_lines(self) -> list[str]:
        """The daemon's log so far."""
        with suppress(OSError):
            return (self.directory / self.log).read_text(errors="replace").splitlines()
        return []

    def log_tail(self) -> str:
        """The last lines of the daemon's log."""
        return "\n".join(self.log_lines()[-12:])


@asynccontextmanager
async def staged(
    profile: str, *, keep: bool = False, configuration: Mapping[str, Any] = CONFIGURATION, seed: int = 1
) -> AsyncIterator[Stage]:
    """Build the stage in a temporary directory, and clear it away at the end. ``seed`` is the kubelet's chance."""
    directory = Path(tempfile.mkdtemp(prefix="hami-plugin-"))
    try:
        hardware = simulate(profile, directory / "machine")
        own = configuration.get("vendors", {}).get(hardware.vendor.name, {})
        settings = hardware.vendor.settings.model_validate({**own, **hardware.settings})
        family = _family(hardware, settings)
        _install_core(directory / "hook" / "vgpu")
        kubelet = FakeKubelet(directory / "device-plugins", directory / "pod-resources" / "kubelet.sock", seed=seed)
        (directory / "config.yaml").write_text(json.dumps(configuration), encoding="utf-8")
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
                options=_options(profile, directory, api),
            )
            try:
                yield stage
            finally:
                await stage.stop_daemon()
                await kubelet.stop()
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def _family(hardware: SimulatedHardware, settings: VendorSettings) -> Family:
    """The family of the machine's first device: a vendor may have one for each of its chips."""
    if hardware.vendor.open is None:
        raise HamiError(f"{hardware.vendor.title} have no node side yet", hint="choose another profile")
    driver = hardware.vendor.open(settings, HostPaths())
    try:
        word = driver.discover().sightings[0].device.family
    finally:
        driver.close()
    return next(family for family in hardware.vendor.families(settings) if family.word == word)


def _options(profile: str, directory: Path, api: SimulatedApiServer) -> dict[str, str]:
    return {
        "--config": str(directory / "config.yaml"),
        "--simulate": profile,
        "--simulation-dir": str(directory / "machine"),
        "--node-name": NODE,
        "--kubelet-dir": str(directory / "device-plugins"),
        "--pod-resources-socket": str(directory / "pod-resources" / "kubelet.sock"),
        "--state-dir": str(directory / "state"),
        "--hook-path": str(directory / "hook"),
        "--kubeconfig": str(api.write_kubeconfig(directory / "kubeconfig")),
        "--http": f"127.0.0.1:{_free_port()}",
        "--log-format": "json",
    }


def _install_core(directory: Path) -> None:
    """Stand-ins for the files of HAMi's limiters; nothing here loads them."""
    directory.mkdir(parents=True)
    for name in ("libvgpu.so", "ld.so.preload", "libamvgpu.so"):
        (directory / name).touch()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _environment() -> dict[str, str]:
    """The daemon must not pick up what happens to be set where the demonstration runs."""
    return {key: value for key, value in os.environ.items() if key not in ("NODE_NAME", "HOOK_PATH", "KUBECONFIG")}
