"""A node on which only the daemon is real: its production entry point runs as a process."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.cluster import NODE, Cluster, cluster
from bench.machines import BASE, write_profile
from bench.processes import cpu_seconds, end, spawn
from bench.shipped import packages
from hami_plugin.demo.node import reserved_port
from hami_plugin.errors import HamiError
from hami_plugin.sdk import Family
from hami_plugin.simulation.hardware import SimulatedHardware, simulate
from hami_plugin.simulation.kubelet import FakeKubelet


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """How large the node is: ``gpus``, each shared ``split`` ways."""

    gpus: int = 8
    split: int = 10

    def __str__(self) -> str:
        return f"{self.gpus} x {self.split}"


@dataclass(slots=True, kw_only=True)
class Testbed:
    """A node. ``uuids`` are its GPUs, in order."""

    node: Node
    directory: Path
    hardware: SimulatedHardware
    family: Family
    uuids: tuple[str, ...]
    cluster: Cluster
    kubelet: FakeKubelet
    command: tuple[str | Path, ...]
    packages: Path
    daemon: asyncio.subprocess.Process | None = None
    start_cpu: float = 0.0
    """Seconds of a CPU that the daemon had used when it was registered."""

    @property
    def resource(self) -> str:
        return self.family.resources.count

    @property
    def pid(self) -> int:
        if self.daemon is None:
            raise HamiError("the daemon does not run")
        return self.daemon.pid

    @property
    def socket(self) -> Path:
        return self.kubelet.plugin(self.resource).socket

    async def start_daemon(self) -> float:
        """Start it and wait until it is registered. Answers the seconds from exec to the kubelet's Register."""
        seen, started = len(self.kubelet.registrations), time.monotonic()
        self.daemon = await spawn(*self.command, log=self.directory / "daemon.log", packages=self.packages)
        await self.until(lambda: len(self.kubelet.registrations) > seen, "a registration")
        seconds, self.start_cpu = time.monotonic() - started, cpu_seconds(self.pid)
        await self.until(lambda: self.kubelet.allocatable(self.resource) > 0, "a list of healthy devices")
        return seconds

    async def stop_daemon(self) -> None:
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            await end(daemon)

    async def restart_kubelet(self, pause: float) -> float:
        """Answers the seconds from the start of a new kubelet to its first Register."""
        await self.kubelet.stop()
        self.kubelet.ledger.forget_lists()
        await asyncio.sleep(pause)
        seen, started = len(self.kubelet.registrations), time.monotonic()
        await self.kubelet.start()
        await self.until(lambda: len(self.kubelet.registrations) > seen, "a registration")
        seconds = time.monotonic() - started
        await self.until(lambda: self.kubelet.allocatable(self.resource) > 0, "a list of healthy devices")
        return seconds

    async def published(self) -> None:
        """Wait until the node's annotation is written: the daemon has then nothing left to do."""
        async with asyncio.timeout(20):
            while self.family.rules.annotations.register not in await self.cluster.node_annotations():  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.05)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            await self.kubelet.until(condition, within=20)
        except TimeoutError:
            raise HamiError(f"{what} did not come within 20 s", hint=self._log_tail()) from None

    def log_lines(self) -> int:
        """How many lines the daemon has logged."""
        with (self.directory / "daemon.log").open("rb") as log:
            return sum(1 for _ in log)

    def _log_tail(self) -> str:
        with suppress(OSError):
            return "\n".join((self.directory / "daemon.log").read_text(errors="replace").splitlines()[-12:])
        return ""


@asynccontextmanager
async def open_testbed(
    node: Node,
    configuration: Mapping[str, object] | None = None,
    *,
    vendor: Mapping[str, object] | None = None,
    within: Path | None = None,
) -> AsyncIterator[Testbed]:
    """A node in a temporary directory; the daemon is not started yet. ``configuration`` is by the daemon's keys, and
    ``vendor`` by its vendor's.

    The directory is made ``within`` another one than the usual: on a disk, each Allocate waits until the kubelet's
    checkpoint is replaced.
    """
    with (
        tempfile.TemporaryDirectory(prefix="hami-bench-", dir=within) as name,
        reserved_port() as port,
    ):
        directory, kubelet_dir = Path(name), Path(name) / "kubelet"
        profile = BASE if node == Node(split=node.split) else str(write_profile(directory / "machine.yaml", node.gpus))
        hardware = simulate(profile, directory / "machine")
        settings = {**hardware.settings, "deviceSplitCount": node.split, **(vendor or {})}
        family = hardware.vendor.families(hardware.vendor.settings.model_validate(settings))[0]
        kubelet = FakeKubelet(kubelet_dir, directory / "pod-resources" / "kubelet.sock")
        async with cluster(directory / "kubeconfig", family) as api:
            await kubelet.start()
            testbed = Testbed(
                node=node,
                directory=directory,
                hardware=hardware,
                family=family,
                uuids=tuple(device.uuid for device in hardware.machine.devices),
                cluster=api,
                kubelet=kubelet,
                command=_command(
                    directory, kubelet_dir, {**(configuration or {}), "vendors": {hardware.vendor.name: settings}}, port
                ),
                packages=packages(directory / "packages"),
            )
            try:
                yield testbed
            finally:
                await testbed.stop_daemon()
                await kubelet.stop()


def _command(
    directory: Path, kubelet_dir: Path, configuration: Mapping[str, object], port: int
) -> tuple[str | Path, ...]:
    """The simulated driver is reached as a real one is, by its settings: nothing of the simulation is in the daemon."""
    config = directory / "config.yaml"
    config.write_text(json.dumps(configuration), encoding="utf-8")
    options: dict[str, str | Path] = {
        "--config": config,
        "--node-name": NODE,
        "--kubelet-dir": kubelet_dir,
        "--pod-resources-socket": directory / "pod-resources" / "kubelet.sock",
        "--state-dir": directory / "state",
        "--hook-path": directory / "hook",
        "--kubeconfig": directory / "kubeconfig",
        "--http": f"127.0.0.1:{port}",
        "--log-format": "json",
    }
    return ("-m", "hami_plugin", "run", *(argument for option in options.items() for argument in option))
