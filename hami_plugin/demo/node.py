"""The node of the demonstration: everything around the daemon simulated, and the daemon itself real, as a process."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from cdi.spec import ContainerEdits
from hami_plugin.allocation.ledger import Journal, JournalWriter, Ledger
from hami_plugin.cli.snapshot import snapshot_of
from hami_plugin.daemon.startup import StartPlan, decide_handover, plan
from hami_plugin.errors import ConfigError, HamiError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device, physical_counts
from hami_plugin.model.views import PodView, pod_view
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.sdk import Family
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.hardware import SimulatedHardware
from hami_plugin.simulation.kubelet import FakeKubelet
from hami_plugin.simulation.scheduler import SimulatedScheduler

NODE = "demo-node"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
LAUNCHER = ("-m", "hami_plugin")
GUARD_S = 60.0
"""The timeout of a condition, long enough for any machine."""
# Recovery takes minutes in production, and seconds here.
CONFIGURATION = {"health": {"probeSeconds": 0.3, "cleanLooks": 2, "holdSeconds": 0.5}}
CLOSE_TIMEOUT_S = 20.0
"""How long the daemon may take to end before it is killed: less than the kubelet gives it."""
READ_ONCE = ("config", "device_config", "node_config", "nvml_library", "simulate", "simulation_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedMachine:
    """One simulated machine as the daemon serves it: the family of its first device, and that family's devices.

    ``ailing`` are those that are unhealthy from the start, such as a card in another mode.
    """

    hardware: SimulatedHardware
    family: Family
    devices: tuple[Device, ...]
    ailing: tuple[Device, ...] = ()


def served(options: Mapping[str, str]) -> tuple[ServedMachine, ...]:
    """What a daemon with these options serves, one for each simulated machine."""
    named = {name.removeprefix("--").replace("-", "_"): value for name, value in options.items()}
    paths = {name: Path(named[name]) for name in ("config", "simulation_dir")}
    ready = plan({**dict.fromkeys(READ_ONCE), **named, **paths}, {})
    if not ready.simulated:
        raise ConfigError(["no machine is named; `hami-plugin discover --list-profiles` prints the names"])
    return tuple(_served(ready, hardware) for hardware in ready.simulated)


def _served(ready: StartPlan, hardware: SimulatedHardware) -> ServedMachine:
    vendor = hardware.vendor
    if vendor.open is None:
        raise HamiError(f"{vendor.title} have no node side yet", hint="choose another profile")
    own_settings = ready.configuration.settings
    settings, _ = decide_handover(ready.configuration.vendors[vendor.name], own_settings)
    hook = own_settings.hook_path
    driver = vendor.open(settings, HostPaths(node=own_settings.node_name, hook=hook, hook_view=hook))
    try:
        found = snapshot_of(driver).devices
    finally:
        driver.close()
    families = {family.resources.device_type: family for family in vendor.families(settings)}
    device_type = next((device.family for device in found if device.family in families), found[0].family)
    if device_type not in families and vendor.further:
        families[device_type] = vendor.further(settings, device_type)
    family = families[device_type]
    own = [device for device in found if device.family == family.resources.device_type]
    return ServedMachine(
        hardware=hardware,
        family=family,
        devices=tuple(device for device in own if device.health.offered),
        ailing=tuple(device for device in own if not device.health.offered),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One device as the kubelet sees it at the moment; ``listed`` is whether its plugin offers it at all."""

    name: str
    listed: bool
    well: bool
    used: bool


class StartedDaemon(Protocol):
    """A daemon as its node sees it: asyncio's ``Process``, or one that was started in another way."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def send_signal(self, number: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    async def wait(self) -> int: ...


async def execute(launcher: Sequence[str], arguments: Sequence[str], log: Path) -> StartedDaemon:
    """Run ``launcher`` with these arguments in an interpreter of its own, which writes to the end of ``log``."""
    with log.open("ab") as end:
        return await asyncio.create_subprocess_exec(
            sys.executable, *launcher, *arguments, stdout=end, stderr=end, env=environment()
        )


@dataclass(slots=True, kw_only=True)
class SimulatedNode:
    """A node with a simulated machine, kubelet and API server, and the real daemon. ``options`` are the daemon's.

    ``devices`` are the healthy ones of ``family``, ``ailing`` the others; ``machines`` are all of the node, this one
    included. The steps set ``refused``, why the family serves no shares; ``loose``, whether nothing enforces the limits
    of shares; and ``written``, the annotations of decisions. ``show`` is called with a caption to draw the devices.
    ``launch`` starts a daemon.
    """

    directory: Path
    hardware: SimulatedHardware
    family: Family
    devices: tuple[Device, ...]
    ailing: tuple[Device, ...]
    machines: tuple[ServedMachine, ...]
    api: SimulatedApiServer
    kubelet: FakeKubelet
    scheduler: SimulatedScheduler
    options: Mapping[str, str]
    ports: ExitStack
    log: str = "daemon.log"
    launch: Callable[[Sequence[str], Sequence[str], Path], Awaitable[StartedDaemon]] = execute
    daemon: StartedDaemon | None = None
    started: float = 0.0
    received: dict[str, dict[str, ContainerEdits]] = field(default_factory=dict)
    refused: str = ""
    loose: bool = False
    written: set[str] = field(default_factory=set)
    show: Callable[[str], None] = lambda _caption: None

    @property
    def node(self) -> str:
        return self.options["--node-name"]

    @property
    def resource(self) -> str:
        return self.family.resources.count

    def counted(self, *devices: Device) -> dict[str, int]:
        """The expected capacity of each of the family's resources when only these devices are healthy."""
        counts = {self.resource: sum(map(self.family.node.replicas, devices))}
        return counts | {units.resource: sum(map(units.of_device, devices)) for units in self.family.resources.units}

    def report_counts(self) -> None:
        """Tell the API server what the kubelet counts now, as a kubelet does beside everything else."""
        counts = {name: str(self.kubelet.allocatable(name)) for name in self.kubelet.ledger.resources}
        status = {"capacity": counts, "allocatable": counts, "conditions": [{"type": "Ready", "status": "True"}]}
        self.api.store.patch(("nodes", "", self.node), {"status": status}, part="status")

    def name(self, uuid: str) -> str:
        """The device's name, as the vendor's users say it."""
        indices = {device.uuid: device.index for device in (*self.devices, *self.ailing)}
        return f"{self.hardware.vendor.noun}{indices[uuid]}"

    def tiles(self) -> tuple[Tile, ...]:
        """The devices that were healthy at the start, as the kubelet sees them now."""
        ledger = self.kubelet.ledger
        listed = physical_counts(offer.id for offer in ledger.offers(self.resource))
        well = physical_counts(ledger.healthy(self.resource))
        used = physical_counts(ledger.taken(self.resource))
        return tuple(
            Tile(
                name=self.name(device.uuid),
                listed=bool(listed[device.uuid]),
                well=bool(well[device.uuid]),
                used=bool(used[device.uuid]),
            )
            for device in self.devices
        )

    def each(self) -> tuple[SimulatedNode, ...]:
        """The same node for each of its vendors."""
        return tuple(
            replace(
                self,
                hardware=one.hardware,
                family=one.family,
                devices=one.devices,
                ailing=one.ailing,
                scheduler=_scheduler(self.api, self.kubelet, self.node, one.family),
                received={},
                written=set(),
            )
            for one in self.machines
        )

    async def start_daemon(self, *launcher: str) -> None:
        """Start the production entry point, or ``launcher`` in its place. Its log goes to a file."""
        self.started = time.monotonic()
        arguments = ["run", *(argument for option in self.options.items() for argument in option)]
        self.daemon = await self.launch(launcher or LAUNCHER, arguments, self.directory / self.log)

    def twin(self, name: str, **options: Path | str) -> SimulatedNode:
        """The same node for a second daemon beside the first. ``options`` are written with underscores."""
        changed = {f"--{option.replace('_', '-')}": str(value) for option, value in options.items()}
        return replace(
            self,
            options={**self.options, "--http": f"127.0.0.1:{self.ports.enter_context(reserved_port())}", **changed},
            log=f"{name}.log",
            daemon=None,
        )

    async def stop_daemon(self, *, kill: bool = False) -> None:
        """Stop the daemon, with SIGTERM or SIGKILL."""
        daemon, self.daemon = self.daemon, None
        if daemon is None or daemon.returncode is not None:
            return
        daemon.kill() if kill else daemon.terminate()
        ended = asyncio.ensure_future(daemon.wait())
        # Not asyncio.timeout: while a cancelled task cleans up, it raises CancelledError, and nothing would be killed.
        await asyncio.wait({ended}, timeout=CLOSE_TIMEOUT_S)
        if not ended.done():
            daemon.kill()
        await ended

    def registered(self) -> tuple[DeviceInfo, ...]:
        """The devices that a scheduler knows of, by the node's annotation or by what the kubelet counts."""
        return self.scheduler.devices()

    async def until(self, condition: Callable[[], bool], what: str, within: float = GUARD_S) -> float:
        """Wait for ``condition``, and return after how many seconds it held. ``HamiError`` names what did not
        happen.
        """
        start = time.monotonic()
        while not condition():
            if self.daemon is not None and self.daemon.returncode is not None:
                raise HamiError(f"the daemon ended with status {self.daemon.returncode}", hint=self.log_tail())
            if time.monotonic() - start > within:
                raise HamiError(f"{what} did not happen within {within:g} s", hint=self.log_tail())
            await asyncio.sleep(0.005)
        return time.monotonic() - start

    async def run_pod(self, manifest: Mapping[str, Any]) -> PodView:
        """Schedule, admit and start a pod, and keep the edits of its containers in ``received``."""
        pod = self.scheduler.place(manifest)
        self.written |= pod.annotations.keys() - manifest["metadata"].get("annotations", {}).keys()
        await self.kubelet.admit(pod)
        containers: dict[str, ContainerEdits] = {}
        for container in pod.containers:
            response = await self.kubelet.start_container(pod.uid, container.name)
            containers[container.name] = response.edits
        self.received[pod.key] = containers
        self.api.set_phase(pod.namespace, pod.name, "Running")
        return pod_view(self.api.pod(pod.namespace, pod.name))

    async def end_pod(self, pod: PodView) -> None:
        """End and delete the pod, and wait until the daemon has freed its devices."""
        self.kubelet.remove(pod.uid)
        self.api.delete_pod(pod.namespace, pod.name)
        await self.until(lambda: pod.uid not in self._holders(), f"the release of the devices of {pod.key}")

    def annotation(self, key: str) -> str:
        """One of the node's annotations; empty if it is not set."""
        return str(self.api.node(self.node)["metadata"].get("annotations", {}).get(key, ""))

    async def readiness(self) -> Mapping[str, Any]:
        """The daemon's readiness."""
        _status, body = await self.get("/readyz")
        return dict(json.loads(body))

    async def get(self, path: str, accept: str = "*/*") -> tuple[int, str]:
        """A GET to the daemon: status and body."""
        url = f"http://{self.options['--http']}{path}"
        async with aiohttp.ClientSession() as session, session.get(url, headers={"Accept": accept}) as answer:
            return answer.status, await answer.text()

    def found_broken(self, uuid: str) -> bool:
        """Whether the daemon has asked the unhealthy device, and it failed; by what the daemon remembers of it."""
        with suppress(OSError, ValueError):
            memory = json.loads((Path(self.options["--state-dir"]) / "health.json").read_text(encoding="utf-8"))
            return any(noted.get(uuid, {}).get("broken", False) for noted in memory["vendors"].values())
        return False

    def _holders(self) -> set[str]:
        """UIDs of the pods that the daemon's journal has shares of."""
        ledger = Ledger(JournalWriter(Journal(Path(self.options["--state-dir"]) / "journal")))
        ledger.load()
        return {held.uid for held in ledger.held.values()}

    def log_lines(self) -> list[str]:
        """The daemon's log so far."""
        with suppress(OSError):
            return (self.directory / self.log).read_text(errors="replace").splitlines()
        return []

    def log_tail(self) -> str:
        """The last lines of the daemon's log."""
        return "\n".join(self.log_lines()[-12:])


@asynccontextmanager
async def simulated_node(
    profile: str,
    *,
    keep: bool = False,
    configuration: Mapping[str, Any] = CONFIGURATION,
    seed: int = 1,
    node: str = NODE,
) -> AsyncIterator[SimulatedNode]:
    """Run a simulated node in a temporary directory, which is removed at the end. ``seed`` is for the kubelet's
    choices.

    Several profiles, separated by commas, make one node; the result is for the first, and ``each`` has them all.
    """
    directory = Path(tempfile.mkdtemp(prefix="hami-plugin-"))
    ports = ExitStack()
    try:
        install_core(directory / "hook" / "vgpu")
        kubelet = FakeKubelet(directory / "device-plugins", directory / "pod-resources" / "kubelet.sock", seed=seed)
        (directory / "config.yaml").write_text(json.dumps(configuration), encoding="utf-8")
        async with SimulatedApiServer() as api:
            port = ports.enter_context(reserved_port())
            options = daemon_options(profile, node, directory, api.write_kubeconfig(directory / "kubeconfig"), port)
            machines = served(options)
            api.create_node(node, labels=_labels(machines))
            await kubelet.start()
            first = machines[0]
            sim = SimulatedNode(
                directory=directory,
                hardware=first.hardware,
                family=first.family,
                devices=first.devices,
                ailing=first.ailing,
                machines=machines,
                api=api,
                kubelet=kubelet,
                scheduler=_scheduler(api, kubelet, node, first.family),
                options=options,
                ports=ports,
            )
            try:
                yield sim
            finally:
                await sim.stop_daemon()
                await kubelet.stop()
    finally:
        ports.close()
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def _scheduler(api: SimulatedApiServer, kubelet: FakeKubelet, node: str, family: Family) -> SimulatedScheduler:
    def counted() -> dict[str, int]:
        return {resource: kubelet.capacity(resource) for resource in kubelet.ledger.resources}

    return SimulatedScheduler(api, node, [family], counted)


def _labels(machines: Sequence[ServedMachine]) -> dict[str, str]:
    """The instance type, which a cloud's kubelet sets, if the profile has one."""
    kinds = (str(machine.hardware.machine.extra.get("instance_type", "")) for machine in machines)
    kind = next(filter(None, kinds), "")
    return {INSTANCE_TYPE: kind} if kind else {}


def daemon_options(profile: str, node: str, directory: Path, kubeconfig: Path, port: int) -> dict[str, str]:
    """The command line of a daemon whose node is all in ``directory``; ``port`` is for its probes and metrics."""
    return {
        "--config": str(directory / "config.yaml"),
        "--simulate": profile,
        "--simulation-dir": str(directory / "machine"),
        "--node-name": node,
        "--kubelet-dir": str(directory / "device-plugins"),
        "--pod-resources-socket": str(directory / "pod-resources" / "kubelet.sock"),
        "--state-dir": str(directory / "state"),
        "--hook-path": str(directory / "hook"),
        "--kubeconfig": str(kubeconfig),
        "--http": f"127.0.0.1:{port}",
        "--log-format": "json",
    }


def install_core(directory: Path) -> None:
    """Stand-ins for the files of HAMi's limiters; nothing here loads them."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("libvgpu.so", "libamvgpu.so"):
        (directory / name).touch()
    (directory / "ld.so.preload").write_text(f"{directory / 'libvgpu.so'}\n", encoding="utf-8")


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port of this host for the daemon, across its restarts.

    The port stays bound to a socket that does not listen. The kernel then gives it to no other program, and lets a
    server with SO_REUSEADDR bind it by number.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def environment() -> dict[str, str]:
    """The environment without variables that configure the daemon."""
    return {key: value for key, value in os.environ.items() if key not in ("NODE_NAME", "HOOK_PATH", "KUBECONFIG")}
