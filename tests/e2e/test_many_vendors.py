"""A node with three vendors at once: three sockets, pods on each, and what happens to one is nothing to the others."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import pytest

from hami_plugin.demo.node import NODE, SimulatedNode
from hami_plugin.model.views import NodeView
from tests.e2e.steps import WITHIN_S, reported, take_down
from tests.e2e.test_neighbours import GUARD_S, child, component
from tests.e2e.test_other_vendors import node, run

PROFILES = {"nvidia": "dgx-h100", "ascend": "ascend-910b3-8", "awsneuron": "aws-inf2-24xlarge"}


@pytest.fixture
async def three(set_up: Any) -> dict[str, SimulatedNode]:
    """A running daemon, and for each vendor the stage as its own. The second vendor's driver has its own process."""
    stage = await set_up(",".join(PROFILES.values()))
    await stage.start_daemon()
    stages = {each.hardware.vendor.name: each for each in stage.each()}
    for each in stages.values():
        await offered(each)
    return stages


async def offered(stage: SimulatedNode) -> None:
    await stage.until(lambda: stage.kubelet.allocatable(stage.resource) > 0, f"the offer of {stage.resource}", WITHIN_S)


async def until_driver(stage: SimulatedNode, vendor: str, *, well: bool) -> str:
    end = time.monotonic() + WITHIN_S
    while bool(said := await component(stage, f"driver {vendor}")) is well:
        assert time.monotonic() < end, said
    return str(said)


def view(stage: SimulatedNode) -> NodeView:
    return node(stage, stage.resource, *(units.resource for units in stage.family.resources.units))


async def allocations(stage: SimulatedNode, name: str, count: int = 10) -> None:
    """Pods with a device each, one after the other."""
    async with asyncio.timeout(GUARD_S):
        for number in range(count):
            pod, answer = await run(stage, f"{name}-{number}", view(stage), **{stage.resource: 1})
            assert answer.edits.env
            take_down(stage, pod)


async def test_each_vendor_has_its_socket_its_annotations_and_its_pods(three: dict[str, SimulatedNode]) -> None:
    registered = {one.resource_name for one in three["nvidia"].kubelet.registrations}
    registers = {three[name].family.rules.annotations.register for name in ("nvidia", "ascend")}

    def annotations() -> set[str]:
        return set(three["nvidia"].api.node(NODE)["metadata"].get("annotations", {}))

    assert {stage.resource for stage in three.values()} <= registered
    await three["nvidia"].until(lambda: registers <= annotations(), "the registers", WITHIN_S)
    for vendor, stage in three.items():
        pod, answer = await run(stage, f"on-{vendor}", view(stage), **{stage.resource: 1})
        assert answer.edits.env, pod.key
    assert {vendor: await component(stage, f"driver {vendor}") for vendor, stage in three.items()} == dict.fromkeys(
        PROFILES, ""
    )


@pytest.mark.full
@pytest.mark.parametrize("victim", PROFILES)
async def test_a_driver_that_goes_away_takes_nobody_along(three: dict[str, SimulatedNode], victim: str) -> None:
    gone = three[victim]

    gone.hardware.simulator.inject("driver-gone")
    await until_driver(gone, victim, well=False)
    for vendor, stage in three.items():
        if vendor != victim:
            await allocations(stage, f"{vendor}-meanwhile")
            assert await component(stage, f"driver {vendor}") == ""

    assert await component(gone, f"driver {victim}"), "it is away all the while"
    assert gone.kubelet.allocatable(gone.resource) == 0
    gone.hardware.simulator.inject("driver-back")
    await until_driver(gone, victim, well=True)
    await gone.until(lambda: gone.kubelet.allocatable(gone.resource) > 0, "the return", WITHIN_S)


@pytest.mark.full
async def test_a_driver_whose_process_is_killed_takes_nobody_along(three: dict[str, SimulatedNode]) -> None:
    gone = three["ascend"]

    os.kill(child(gone), signal.SIGKILL)
    said = await reported(gone, "DriverCrashed")  # a second later it may be back
    for vendor in ("nvidia", "awsneuron"):
        await allocations(three[vendor], f"{vendor}-meanwhile")

    assert "SIGKILL" in said
    await until_driver(gone, "ascend", well=True)
    await gone.until(lambda: gone.kubelet.allocatable(gone.resource) > 0, "the return", WITHIN_S)
