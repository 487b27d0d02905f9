"""The simulated scheduler: the families' own rules, on what a node says and its kubelet counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hami_plugin.demo.steps import container, pod
from hami_plugin.errors import HamiError
from hami_plugin.model.views import node_view
from hami_plugin.protocol import keys
from hami_plugin.protocol.nodes import encode_legacy, parse_lock
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.scheduler import SimulatedScheduler
from tests.support.rigs import NODE, rig


@pytest.fixture
async def api() -> AsyncIterator[SimulatedApiServer]:
    async with SimulatedApiServer() as server:
        server.create_node(NODE)
        yield server


async def test_devices_are_counted_where_no_annotation_tells_of_them(api: SimulatedApiServer, tmp_path: Path) -> None:
    machine = rig("cambricon-mlu590-8", tmp_path)
    family, counted = machine.family, {"cambricon.com/mlu.smlu.vcore": 200, "cambricon.com/mlu.smlu.vmemory": 640}
    scheduler = SimulatedScheduler(api, NODE, [family], lambda: counted)

    placed = scheduler.place(pod("one", [container("main", family.resources, memory=12, cores=30)]))

    assert [info.devmem for info in scheduler.devices()] == [320 * 256, 320 * 256]
    assert placed.annotations[family.rules.annotations.allocated] == f"{NODE}-cambricon-mlu-1,MLU,3072,30:;"
    assert placed.annotations["CAMBRICON_DSMLU_PROFILE"] == "1_30_12"
    assert (placed.node, placed.annotations[keys.BIND_PHASE]) == (NODE, keys.PHASE_ALLOCATING)


async def test_a_familys_lock_is_taken_in_its_own_words(api: SimulatedApiServer, tmp_path: Path) -> None:
    machine = rig("cambricon-mlu590-8", tmp_path)
    family, counted = machine.family, {"cambricon.com/mlu.smlu.vcore": 100, "cambricon.com/mlu.smlu.vmemory": 320}
    scheduler = SimulatedScheduler(api, NODE, [family], lambda: counted)

    scheduler.place(pod("one", [container("main", family.resources, memory=12, cores=30)]))

    annotations = node_view(api.node(NODE)).annotations
    assert family.rules.lock
    assert parse_lock(annotations[family.rules.lock.annotation]).pod == ""
    assert keys.NODE_LOCK not in annotations


async def test_no_device_is_granted_twice_and_the_reason_is_the_rules_own(
    api: SimulatedApiServer, tmp_path: Path
) -> None:
    machine = rig("kunlun-p800-8", tmp_path)
    scheduler = SimulatedScheduler(api, NODE, [machine.family], lambda: {machine.family.resources.count: 2})
    first = scheduler.place(pod("first", [container("main", machine.family.resources)]))
    second = scheduler.place(pod("second", [container("main", machine.family.resources)]))

    with pytest.raises(HamiError, match=r"pod demo/third does not fit: \d/2 \w+"):
        scheduler.place(pod("third", [container("main", machine.family.resources)]))

    key = machine.family.rules.annotations.allocated
    assert first.annotations[key] != second.annotations[key]
    assert keys.NODE_LOCK not in node_view(api.node(NODE)).annotations


async def test_a_register_of_hami_2_7_is_read_too(api: SimulatedApiServer, tmp_path: Path) -> None:
    machine = rig("mi300x-8", tmp_path)
    devices = [machine.family.node.register(device, True) for device in machine.snapshot().devices]
    api.annotate_node(NODE, {machine.family.rules.annotations.register: encode_legacy(devices)})

    known = SimulatedScheduler(api, NODE, [machine.family], dict).devices()

    assert [info.id for info in known] == [info.id for info in devices]
