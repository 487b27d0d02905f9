"""A whole daemon in this process that serves two vendors: one that behaves, and one that a test breaks."""

import asyncio
import tempfile
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from hami_plugin.config.load import Configuration
from hami_plugin.config.settings import Settings
from hami_plugin.config.vendors import VendorSettings
from hami_plugin.daemon.app import Daemon
from hami_plugin.daemon.node import DaemonProcess
from hami_plugin.daemon.startup import ServedVendor
from hami_plugin.daemon.takeover import NodeClaim
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Discovery, Sighting
from hami_plugin.process.concurrency import cancel
from hami_plugin.protocol.keys import ASSIGNED_NODE, BIND_PHASE, PHASE_ALLOCATING
from hami_plugin.protocol.pods import encode_devices
from hami_plugin.sdk import AnnotationKeys, Resources, Vendor
from hami_plugin.simulation.kubelet import FakeKubelet
from hami_plugin.telemetry.metrics import Metrics
from hami_plugin.vendor_boundary.guard import CheckedDriver

from .builders import COUNT, FAMILY, NODE, REGISTER, changed, container, device, grant, pod
from .cluster import FakeCluster
from .hardware import ScriptedDriver
from .node import until

ODD = "odd.io/card"
ODD_KEYS = AnnotationKeys.of_agent("odd")
ODD_FAMILY = changed(FAMILY, resources=Resources(device_type="ODD", count=ODD), annotations=ODD_KEYS)


class OddDriver(ScriptedDriver):
    """Its devices have names of their own. ``change`` is what becomes of its sightings, at each look."""

    def __init__(self, *numbers, change=lambda sightings: sightings):
        super().__init__(*numbers)
        self.change = change

    def discover(self):
        found = super().discover()
        seen = [Sighting(device=odd(one.device.index), fault=one.fault) for one in found.sightings]
        return Discovery(sightings=self.change(tuple(seen)), facts=found.facts)


def odd(number, **changes):
    return device(number, **{"uuid": f"odd-{number}", "family": "ODD", **changes})


class Api(FakeCluster):
    def refresh_pods(self):
        return False  # its news are never late

    async def follow_pods(self, feed):
        self._table = type("Table", (), {"feed": feed})
        feed.replace(list(self._pods.values()))
        await asyncio.Event().wait()

    async def follow_node(self, deliver):
        self._live = type("Live", (), {"deliver": staticmethod(deliver)})
        deliver(self._node)
        await asyncio.Event().wait()


@dataclass
class Beside:
    """``odd`` is the driver of the vendor that is broken."""

    daemon: Daemon
    api: Api
    kubelet: FakeKubelet
    odd: OddDriver
    task: asyncio.Task
    registry: CollectorRegistry

    def problem(self, component: str) -> str:
        return self.daemon.readiness().get(component, "")

    async def says(self, component: str, words: str, within: float = 60.0) -> None:
        """Wait until a component of the readiness tells these words."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while words not in self.problem(component):  # it is asked, as a probe does
                    assert not self.task.done(), self.task.exception()
                    await asyncio.sleep(0.01)
        assert words in self.problem(component), self.daemon.readiness()

    async def odd_offered(self, count: int) -> None:
        await self.kubelet.until(lambda: self.kubelet.allocatable(ODD) == count, within=60)

    @property
    def odd_inventory(self):
        (odd,) = [one for one in self.daemon.node.serving.vendors if one.discovery.vendor == "odd"]
        return odd.inventory

    def odd_device(self, uuid: str):
        return self.odd_inventory.found.device(uuid)

    def forget_odd_devices(self) -> None:
        """From now on, those that are gone are forgotten at the next discovery."""
        self.odd_inventory._forget = 0.0

    def metrics(self) -> str:
        return generate_latest(self.registry).decode()

    async def the_other_is_served(self, name: str = "p1") -> None:
        """The vendor that behaves is offered, registered, gives a pod its device, and shows in the metrics."""
        await self.kubelet.until(lambda: self.kubelet.allocatable(COUNT) == 8, within=60)
        await until(lambda: REGISTER in self.api.node.annotations)
        waiting = self.api.add(pod(name, pieces=[[grant(0)]]))
        await self.kubelet.admit(waiting)
        await self.kubelet.start_container(waiting.uid, "main")
        assert self.problem("driver toy") == self.problem(f"kubelet {COUNT}") == ""
        assert 'vendor="toy"' in self.metrics()
        assert not self.task.done(), self.task.exception()
        assert self.daemon.node.stalled() == []

    async def odd_pod(self, name: str = "odd-pod"):
        """A pod with a decision for a device of the broken vendor. ``HamiError`` where it is not admitted."""
        text = encode_devices([(replace(grant(0), uuid="odd-0", device_type="ODD"),)])
        decided = {ODD_KEYS.to_allocate: text, ODD_KEYS.allocated: text}
        asks = replace(container(), limits={ODD: "1"})
        annotations = {**decided, ASSIGNED_NODE: NODE, BIND_PHASE: PHASE_ALLOCATING}
        await self.kubelet.admit(self.api.add(pod(name, containers=[asks], annotations=annotations)))


@asynccontextmanager
async def beside(family=ODD_FAMILY, driver=None, *, families=None, opening=None, predecessor=None, **settings):
    """Run the daemon; ``families`` and ``opening`` replace what the broken vendor exports."""
    with tempfile.TemporaryDirectory(prefix="beside-") as folder:
        root = Path(folder)
        plain = {"probeSeconds": 0.05, "holdSeconds": 0.05, "cleanLooks": 1, "suspectLooks": 1}
        own = Settings.model_validate(
            {
                "nodeName": NODE,
                "kubeletDir": str(root / "k"),
                "stateDir": str(root / "state"),
                "hookPath": str(root / "hook"),
                "podResourcesSocket": str(root / "r" / "s"),
                "cdiDirs": [str(root / "cdi")],
                "decisionWaitSeconds": 0.3,
                "rescanSeconds": 0.05,
                "health": {**plain, **settings},
            }
        )
        driver = driver or OddDriver(0, 1)
        kubelet, api, registry = FakeKubelet(root / "k", root / "r" / "s"), Api(), CollectorRegistry()
        toy = ScriptedDriver(0, 1)
        vendors = (
            _served("odd", families or (lambda _settings: (family,)), opening or (lambda: driver)),
            _served("toy", lambda _settings: (FAMILY,), lambda: toy),
        )
        configuration = Configuration(settings=own, sections={})
        host = HostPaths(hook=root / "hook", hook_view=root / "hook", proc=root)
        metrics = Metrics(registry, version="")
        process = DaemonProcess(configuration=configuration, vendors=lambda _now: vendors, host=host)
        daemon = Daemon(process, api, metrics, NodeClaim(own.state_dir), predecessor=predecessor)
        for collector in daemon.shown():
            registry.register(collector)
        await kubelet.start()
        stop = asyncio.Event()
        task = asyncio.create_task(daemon.run(stop))
        try:
            yield Beside(daemon=daemon, api=api, kubelet=kubelet, odd=driver, task=task, registry=registry)
            stop.set()
            async with asyncio.timeout(60):
                await task
        finally:
            driver.release()
            await cancel(task)
            await kubelet.stop()


def _served(name, families, opening):
    vendor = Vendor(name=name, title=name, settings=VendorSettings, families=families, open=lambda *_: opening())
    return ServedVendor(vendor=vendor, settings=VendorSettings(), driver=CheckedDriver(opening))
