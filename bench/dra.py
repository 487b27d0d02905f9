"""Claims: Prepare beside a bare gRPC echo, its calls to the API server, slices after a wipe, and the memory."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from bench.echo import METHOD
from bench.figures import Figure, Spread, median
from bench.processes import Memory, memory, running
from hami_plugin.demo.node import CONFIGURATION, SimulatedNode, simulated_node
from hami_plugin.kubelet.api import dra_v1_pb2 as v1
from hami_plugin.model.views import PodView, pod_view
from hami_plugin.simulation.dra import ClaimManager, allocate, deallocate

PROFILE, DRIVER, NAMESPACE = "hgx-a100-4gpu", "nvidia.hami.io", "bench"
BOTH, BY_CLAIMS = "l40s-4-pcie,mi300x-8", "amd"
READS, WRITES = 1.0, 0.0
TIMES = 20.0
"""A Prepare beside an echo, at most: it reads the claim, flushes two entries and a spec, and writes directories."""
AGAIN = 5.0
"""The same of one that is prepared already: its files are compared, and nothing is asked or written."""
MORE_MIB = 12.0
_WRITES = r"(POST|PUT|PATCH|DELETE) "


class _Node:
    """A node whose cards go by claims, with a scheduler and a kubelet."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node, self.api = node, node.api
        self.kubelet = ClaimManager(node.directory, node.api, node.node)
        self._number = 0

    def devices(self) -> int:
        return sum(len(one["spec"].get("devices", ())) for one in self.api.slices())

    async def place(self) -> PodView:
        self._number += 1
        name = f"pod-{self._number}"
        exactly = {"deviceClassName": DRIVER, "capacity": {"requests": {"memory": "3000Mi", "cores": "30"}}}
        request = {"name": "gpu", "exactly": exactly}
        claim = self.api.create_claim(
            {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"devices": {"requests": [request]}}}
        )
        spec = {
            "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        }
        pod = self.api.create_pod({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
        allocate(self.api, claim, pod, self.node.node)
        bound = pod_view(self.api.bind(NAMESPACE, name, self.node.node))
        await asyncio.sleep(0.02)  # the watch brings the pod before the kubelet has mounted its volumes
        return bound

    def end(self, pod: PodView) -> None:
        deallocate(self.api, NAMESPACE, pod.name)
        self.api.delete_claim(NAMESPACE, pod.name)
        self.api.delete_pod(NAMESPACE, pod.name)

    def answer(self, pod: PodView) -> bytes:
        """What the driver has answered for the pod's claim, as it goes over the socket."""
        message = v1.NodePrepareResourcesResponse()
        message.claims["uid"].devices.extend(self.kubelet.devices(pod.name))
        return message.SerializeToString()


async def measure(*, rounds: int, wipes: int, settle_s: float = 3.0, slack: float = 1.0) -> list[Figure]:
    """All figures of claims. With few rounds the ratios need some ``slack``."""
    async with _claiming() as one:
        figures = await _calls(one, rounds, slack)
        figures += await _wiped(one, wipes)
    return [*figures, *await _memory(settle_s)]


@asynccontextmanager
async def _claiming() -> AsyncIterator[_Node]:
    with tempfile.TemporaryDirectory(prefix="hami-bench-cdi-") as specs:
        configuration = {**CONFIGURATION, "cdiDirs": [specs], "vendors": {"nvidia": {"frontEnd": "dra"}}}
        async with simulated_node(PROFILE, configuration=configuration) as node:
            one = _Node(node)
            await one.kubelet.start()
            try:
                await node.start_daemon()
                await node.until(lambda: one.devices() > 0 and one.kubelet.registered(DRIVER), "the driver")
                yield one
            finally:
                await one.kubelet.stop()


async def _calls(one: _Node, rounds: int, slack: float) -> list[Figure]:
    """One claim after the other; an echo of the same size takes turns with each."""
    warm = await one.place()
    await one.kubelet.prepare(warm)
    answer = one.answer(warm)
    await one.kubelet.unprepare(warm)
    one.end(warm)
    prepare, again, unprepare, echo = list[float](), list[float](), list[float](), list[float]()
    reads = one.api.count(r"GET .*/resourceclaims/")
    writes = one.api.count(_WRITES)
    with tempfile.TemporaryDirectory(prefix="hami-bench-") as name:
        directory = Path(name)
        (directory / "answer").write_bytes(answer)
        socket = directory / "echo.sock"
        async with (
            running("-m", "bench.echo", socket, directory / "answer"),
            grpc.aio.insecure_channel(f"unix://{socket}") as channel,
        ):
            call = channel.unary_unary(METHOD, None, None)
            for _ in range(rounds):
                pod = await one.place()
                echo.append(await _timed(call(answer, wait_for_ready=True, timeout=10)))
                prepare.append(await _timed(one.kubelet.prepare(pod)))
                for known in one.kubelet._claims.values():  # noqa: SLF001  # a restart would delete the slices too
                    known.ready = False
                again.append(await _timed(one.kubelet.prepare(pod)))
                unprepare.append(await _timed(one.kubelet.unprepare(pod)))
                one.end(pod)
    base = median(echo)
    return [
        Figure(name="A bare echo", value=round(1000 * base, 3), unit="ms", note=str(Spread.of(echo))),
        Figure(name="Prepare", value=round(1000 * median(prepare), 3), unit="ms", note=str(Spread.of(prepare))),
        Figure(name="Unprepare", value=round(1000 * median(unprepare), 3), unit="ms", note=str(Spread.of(unprepare))),
        Figure(name="Prepare p50 beside the echo", value=median(prepare) / base, unit="x", limit=TIMES * slack),
        Figure(name="Prepared again p50 beside the echo", value=median(again) / base, unit="x", limit=AGAIN * slack),
        Figure(
            name="API reads per Prepare",
            value=(one.api.count(r"GET .*/resourceclaims/") - reads) / rounds,
            limit=READS,
        ),
        Figure(name="API writes per Prepare", value=(one.api.count(_WRITES) - writes) / rounds, limit=WRITES),
    ]


async def _timed(call: Any) -> float:
    started = time.perf_counter()
    await call
    return time.perf_counter() - started


async def _wiped(one: _Node, wipes: int) -> list[Figure]:
    """All slices of the node are deleted, as by a kubelet that starts."""
    slices, devices = len(one.api.slices()), one.devices()
    before, seconds = one.api.count(_WRITES + "/apis/resource.k8s.io/"), []
    for _ in range(wipes):
        one.kubelet.wipe()
        seconds.append(await one.node.until(lambda: one.devices() == devices, "the slices"))
        await asyncio.sleep(0.2)  # what would be written twice is written by now
    writes = one.api.count(_WRITES + "/apis/resource.k8s.io/") - before
    return [
        Figure(
            name="Slices back after a wipe",
            value=round(1000 * median(seconds), 1),
            unit="ms",
            note=f"{devices} devices; {Spread.of(seconds)}",
        ),
        Figure(name="Writes per wiped slice", value=writes / (wipes * slices), limit=1.0),
    ]


async def _memory(settle_s: float) -> list[Figure]:
    """Two vendors by the device plugin, and the same with one of them by claims."""
    plain, both = await asyncio.gather(_resident({}, settle_s), _resident({BY_CLAIMS: {"frontEnd": "dra"}}, settle_s))
    more = both.resident - plain.resident
    return [
        Figure(name="Memory, all by the device plugin", value=round(plain.resident, 1), unit="MiB"),
        Figure(
            name="More with both front ends",
            value=round(more, 1),
            unit="MiB",
            limit=MORE_MIB,
            note=f"anonymous {both.anonymous - plain.anonymous:+.1f} MiB",
        ),
    ]


async def _resident(vendors: Mapping[str, Mapping[str, object]], settle_s: float) -> Memory:
    with tempfile.TemporaryDirectory(prefix="hami-bench-cdi-") as specs:
        configuration = {**CONFIGURATION, "cdiDirs": [specs], "vendors": vendors}
        async with simulated_node(BOTH, configuration=json.loads(json.dumps(configuration))) as node:
            kubelet = ClaimManager(node.directory, node.api, node.node)
            await kubelet.start()
            try:
                await node.start_daemon()
                await node.until(lambda: node.kubelet.allocatable(node.resource) > 0, "the list of devices")
                if vendors:
                    await node.until(lambda: bool(node.api.slices()), "the slices")
                await asyncio.sleep(settle_s)
                assert node.daemon
                return memory(node.daemon.pid)
            finally:
                await kubelet.stop()
