"""What a container of MetaX receives, and what the scheduler and the kubelet are told of its devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.model.delivery import ANSWERED_FOR
from hami_plugin.model.device import Snapshot
from hami_plugin.node_status.registration import Style, wanted_annotations
from tests.support.rigs import golden
from tests.vendors.metax.machines import machine
from vendors.metax import VENDOR
from vendors.metax.rules import FORECASTS, forecast

GOLDEN = Path(__file__).parent / "golden"
NATIVE, SHARED = {"mode": "native"}, {"mode": "sgpu"}


@pytest.mark.parametrize(
    ("name", "mode", "limits"),
    [
        ("whole", NATIVE, {"metax-tech.com/gpu": 2}),
        ("zone", SHARED, {"metax-tech.com/sgpu": 4}),
    ],
)
def test_a_decided_pod_receives_its_devices(
    name: str, mode: dict[str, str], limits: dict[str, int], tmp_path: Path
) -> None:
    made = machine("metax-c500-8", tmp_path, **mode)

    golden(GOLDEN / f"{name}.json", made.received(limits))


def test_the_kinds_of_whole_and_shared_gpus_differ_and_what_images_lack_is_mounted(tmp_path: Path) -> None:
    made = machine("metax-c500-8", tmp_path, deviceListStrategy="cdi-cri", driverMounts="/opt/mxdriver")
    snapshot = made.snapshot()
    pod = made.decided(made.node(snapshot), {"metax-tech.com/sgpu": 1})

    assert made.answer(pod, snapshot.devices) == {
        "ids": [snapshot.devices[7].uuid],
        "cdiDevices": [f"hami.io/metax-sgpu={snapshot.devices[7].uuid}"],
        "annotations": {ANSWERED_FOR: "u1/main"},
    }
    assert VENDOR.families(made.settings)[0].node.delivery.kind == "hami.io/metax-gpu"


def test_a_gpu_is_shared_by_nobody_since_nothing_would_hold_the_tenants_apart(tmp_path: Path) -> None:
    made = machine("metax-c500-8", tmp_path)
    device = made.snapshot().devices[0]

    assert (made.family.node.replicas(device), made.family.node.register(device, False).count) == (1, 1)


def test_the_node_says_what_so_many_gpus_would_be_worth(tmp_path: Path) -> None:
    made = machine("metax-c500-8", tmp_path, **NATIVE)
    node = made.node(made.snapshot())

    golden(GOLDEN / "forecasts.json", {key: node.annotations[key] for key in sorted(FORECASTS.values())})
    assert forecast(node.annotations[FORECASTS["spread"]], 4) == 60
    assert forecast(node.annotations[FORECASTS["binpack"]], 2) == 40


def test_forecasts_are_about_gpus_that_are_free_and_well(tmp_path: Path) -> None:
    made = machine("metax-c500-8", tmp_path, **NATIVE)
    snapshot = made.snapshot()
    taken = {f"n1-metax-{number}" for number in (0, 1)}

    told = wanted_annotations(made.family, snapshot, Style(), taken)

    assert forecast(told[FORECASTS["binpack"]] or "", 2) == 0
    assert forecast(told[FORECASTS["spread"]] or "", 7) is None
    own = ("hami-plugin.io/refuses-Metax-GPU", "hami-plugin.io/unhealthy-Metax-GPU")
    assert wanted_annotations(made.family, Snapshot(ready=True), Style()) == dict.fromkeys((*FORECASTS.values(), *own))
