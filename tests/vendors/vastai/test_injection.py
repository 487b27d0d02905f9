"""What a container of Vastai receives, and what the scheduler and the kubelet are told of its devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hami_plugin.errors import HamiError
from hami_plugin.protocol.nodes import decode_json
from tests.support.rigs import Rig, golden

GOLDEN = Path(__file__).parent / "golden"
SERIALS = ("SN-A", "SN-B")
PROFILE = str(Path(__file__).parents[1] / "machines/vastai-two-cards.yaml")


@pytest.mark.parametrize("strategy", ["card", "die"])
def test_hamis_scheduler_reads_the_same_devices_from_the_annotation(build: Any, strategy: str) -> None:
    machine = build(deviceStrategy=strategy)
    snapshot = machine.snapshot()
    node = machine.node(snapshot)

    decoded = machine.family.rules.node_devices(node)

    assert decoded == tuple(machine.family.node.register(device, False) for device in snapshot.devices)
    assert decoded == decode_json(node.annotations["hami.io/node-va-register"])
    assert {info.custom["DeviceStrategy"] for info in decoded} == {strategy}
    assert {info.custom["AIC"] for info in decoded} == set(SERIALS)
    assert machine.family.node.reports


@pytest.mark.parametrize(("strategy", "count"), [("card", 2), ("die", 3)])
def test_a_decided_pod_receives_its_dies(build: Any, strategy: str, count: int) -> None:
    machine = build(deviceStrategy=strategy)
    golden(GOLDEN / f"{strategy}-{count}.json", machine.received({"vastaitech.com/va": count}))


def test_a_die_without_nodes_cannot_be_handed_over(single: Rig) -> None:
    snapshot = single.snapshot()
    for name in ("vacc0", "va0_ctl"):
        (single.root / "dev" / name).unlink()

    with pytest.raises(HamiError, match="has a die without nodes"):
        single.answer(single.decided(single.node(snapshot), {"vastaitech.com/va": 8}), snapshot.devices)
