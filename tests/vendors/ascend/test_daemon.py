"""The production daemon on a simulated Ascend node: chips of two kinds, each offered and registered alone."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from importlib import resources

import pytest
import yaml

from cdi.store import load
from hami_plugin.demo.node import CONFIGURATION, NODE, SimulatedNode, simulated_node
from hami_plugin.demo.play import play
from hami_plugin.demo.steps import container, pod
from hami_plugin.inventory.cdi_specs import file_name
from hami_plugin.protocol.nodes import decode_json
from hami_plugin.protocol.pods import decode_devices
from vendors.ascend.rules import families
from vendors.ascend.settings import AscendSettings

LARGE, SMALL = "Ascend910B3", "Ascend310P"


@pytest.fixture
async def running():
    """Start a daemon on a profile (a name or a file), and wait for its first offers."""
    async with AsyncExitStack() as stack:

        async def build(profile: str, **configuration) -> SimulatedNode:
            configuration = {**CONFIGURATION, **configuration}
            stage = await stack.enter_async_context(simulated_node(profile, configuration=configuration))
            await stage.start_daemon()
            await stage.until(lambda: stage.kubelet.allocatable(stage.resource) > 0, "the first offer")
            await stage.until(lambda: bool(stage.registered()), "the first register")
            return stage

        yield build


def annotations(stage) -> dict[str, str]:
    return stage.api.node(NODE)["metadata"].get("annotations", {})


def entries(stage, device_type) -> list[tuple[int, str, bool]]:
    text = annotations(stage).get(f"hami.io/node-register-{device_type}", "[]")
    return [(info.index, info.type, info.health) for info in decode_json(text)]


def mixed(directory) -> str:
    """The file of a machine whose last two NPUs are of another chip."""
    source = resources.files("hami_plugin.simulation") / "profiles" / "ascend-910b3-8.yaml"
    machine = yaml.safe_load(source.read_text(encoding="utf-8"))
    for device in machine["devices"][6:]:
        device["model"] = "310P3"
    (directory / "mixed.yaml").write_text(yaml.safe_dump(machine), encoding="utf-8")
    return str(directory / "mixed.yaml")


async def test_a_template_is_scheduled_handed_out_and_withdrawn_with_its_npu(running):
    stage = await running("ascend-910b3-8")
    assert stage.kubelet.allocatable(stage.resource) == 8 * 4
    demand = container("main", stage.family.resources, memory=16384)

    placed = await stage.run_pod(pod("quarter", [demand]))

    piece, *_ = decode_devices(placed.annotations[stage.family.rules.annotations.allocated])
    npu = next(device for device in stage.devices if device.uuid == piece[0].uuid)
    assert stage.received[placed.key]["main"].env == {
        "ASCEND_VISIBLE_DEVICES": str(npu.index),
        "ASCEND_VNPU_SPECS": "vir05_1c_16g",
    }
    stage.hardware.simulator.inject("unhealthy", 7)
    await stage.until(lambda: stage.kubelet.allocatable(stage.resource) == 7 * 4, "the loss at the kubelet")
    await stage.until(lambda: (7, LARGE, False) in entries(stage, LARGE), "the loss in the annotation")
    stage.hardware.simulator.inject("back", 7)
    await stage.until(lambda: stage.kubelet.allocatable(stage.resource) == 8 * 4, "the recovery")


@pytest.mark.full
async def test_each_family_is_told_of_its_own_npus_alone(running, tmp_path):
    directories = [tmp_path / "etc", tmp_path / "run"]
    for directory in directories:
        directory.mkdir()
    stage = await running(
        mixed(tmp_path),
        cdiDirs=[str(directory) for directory in directories],
        vendors={"ascend": {"deviceListStrategy": "cdi-annotations"}},
    )
    small = next(one for one in families(AscendSettings()) if one.resources.device_type == SMALL)

    await stage.until(lambda: stage.kubelet.allocatable(small.resources.count) == 2 * 7, "the other chip's offer")

    assert stage.kubelet.allocatable(stage.resource) == 6 * 4
    await stage.until(lambda: len(entries(stage, SMALL)) == 2, "the other chip's register")
    assert entries(stage, LARGE) == [(n, LARGE, True) for n in range(6)]
    assert entries(stage, SMALL) == [(n, SMALL, True) for n in (6, 7)]
    assert sorted(key for key in annotations(stage) if "register" in key) == [
        f"hami.io/node-register-{SMALL}",
        f"hami.io/node-register-{LARGE}",
    ]
    found = load(directories, yaml=yaml.safe_load)
    assert {(name.kind.cls, name.device) for name in found.names if name.device.isdigit()} == {
        *(("npu-910b3", str(n)) for n in range(6)),
        *(("npu-310p", str(n)) for n in (6, 7)),
    }
    assert sorted(path.name for path in directories[1].iterdir()) == [
        file_name(f"hami.io/npu-{chip}") for chip in ("310p", "910b3")
    ]


@pytest.mark.full
async def test_chips_that_a_node_lacks_hold_up_no_readiness(running):
    stage = await running("ascend-310p-8")

    async with asyncio.timeout(60):
        while not (said := await stage.readiness())["ready"]:  # noqa: ASYNC110  # it is asked over HTTP
            await asyncio.sleep(0.05)

    assert [n for n in said["components"] if "Ascend" in n] == [
        "host huawei.com/Ascend310P",
        "kubelet huawei.com/Ascend310P",
    ]
    _status, metrics = await stage.get("/metrics")
    assert "Ascend310P" in metrics
    assert LARGE not in metrics


@pytest.mark.full
async def test_the_demonstration_runs_through_on_modules_of_two(capsys):
    held = await play("ascend-910c-16", as_json=True, keep=False)

    assert held, capsys.readouterr().out
