"""A node that lacks nothing, for doctors: real sockets, files, driver and pages, all in this process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from hami_plugin.cli.doctor.findings import Finding, node_findings
from hami_plugin.cli.doctor.gathering import node_facts
from hami_plugin.daemon.startup import plan
from hami_plugin.demo.node import READ_ONCE, SimulatedNode, simulated_node
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.inventory.cdi_specs import SpecFiles
from hami_plugin.model.device import Snapshot
from hami_plugin.node_status.registration import Style, wanted_annotations
from hami_plugin.telemetry.http import Probes, TelemetryServer

PATHS = ("config", "simulation_dir", "kubeconfig", "kubelet_dir", "pod_resources_socket", "state_dir", "hook_path")


@dataclass(slots=True, kw_only=True)
class Patient:
    """``components``, ``in_force`` and ``usage`` are what the daemon's port serves. ``folder`` is the test's own."""

    stage: SimulatedNode
    options: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    components: dict[str, str] = field(default_factory=dict)
    in_force: dict[str, object] = field(default_factory=dict)
    usage: dict[str, object] = field(default_factory=lambda: {"devices": []})
    folder: Path = Path()
    port: TelemetryServer | None = None

    @property
    def root(self) -> Path:
        return self.stage.directory

    @property
    def node(self) -> Mapping[str, Any]:
        return self.stage.api.node(self.stage.node)

    def configure(self, **changes: Any) -> None:
        """Change the daemon's file, which the running daemon has not read."""
        file = self.root / "config.yaml"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    def annotate(self, **changes: str | None) -> None:
        self.stage.api.annotate_node(self.stage.node, changes)

    def status(self, **changes: Any) -> None:
        self.stage.api.store.patch(("nodes", "", self.stage.node), {"status": changes}, part="status")

    async def examined(self) -> tuple[Finding, ...]:
        return node_findings(await node_facts(self.options, self.environment))


@asynccontextmanager
async def patient(profile: str = "dgx-h100", **configuration: Any) -> AsyncIterator[Patient]:
    """A node as a daemon leaves it that serves all devices."""
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(simulated_node(profile, configuration=configuration))
        named = {key.removeprefix("--").replace("-", "_"): value for key, value in stage.options.items()}
        options: dict[str, Any] = {**dict.fromkeys((*READ_ONCE, "http")), **named}
        options |= {key: Path(named[key]) for key in PATHS}
        one = Patient(stage=stage, options=options)
        _settle(one)
        one.port = server = TelemetryServer(
            "127.0.0.1",
            int(named["http"].rpartition(":")[2]),
            Probes(
                registry=CollectorRegistry(),
                alive=list,
                ready=lambda: one.components,
                configuration=lambda: one.in_force,
                documents={"usage": lambda: one.usage},
            ),
        )
        await server.start()
        stack.push_async_callback(server.stop)
        yield one


def _settle(one: Patient) -> None:
    stage = one.stage
    Path(one.options["state_dir"]).mkdir()
    ready = plan(one.options, {})
    one.in_force = json.loads(json.dumps(ready.configuration.effective()))
    family, devices = stage.family, stage.devices
    snapshot = Snapshot(devices=devices, ready=True)
    one.annotate(
        **{key: text for key, text in wanted_annotations(family, snapshot, Style(scores=False)).items() if text}
    )
    if family.node.delivery.cdi:
        settings = ready.configuration.settings
        settings.cdi_dirs[-1].mkdir(parents=True, exist_ok=True)
        host = HostFiles(paths=HostPaths(hook=settings.hook_path, hook_view=settings.hook_path))
        SpecFiles(family, settings.cdi_dirs, host).publish(devices)
    counts = {resource: str(count) for resource, count in stage.counted(*devices).items()}
    info = {"kubeletVersion": "v1.34.4", "containerRuntimeVersion": "containerd://2.0.0"}
    conditions = [{"type": "Ready", "status": "True"}]
    one.status(capacity=counts, allocatable=counts, nodeInfo=info, conditions=conditions)
    one.components = {"api server": "", f"kubelet {stage.resource}": ""}
