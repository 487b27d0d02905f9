"""What the scheduler is told of an NVIDIA card, and the names of its family."""

from __future__ import annotations

from typing import Any

import pytest

from hami_plugin.model.device import Device, Health
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.sdk import load_vendor
from vendors.nvidia import VENDOR
from vendors.nvidia.injection import card_type
from vendors.nvidia.settings import NvidiaSettings


def card(**changes: Any) -> Device:
    facts = {"uuid": "GPU-aaaa", "family": "NVIDIA", "index": 1, "model": "NVIDIA A100-SXM4-80GB", "memory": 81920}
    return Device(**{**facts, **changes})


def registered(device: Device, *, legacy: bool = False, **settings: Any) -> DeviceInfo:
    (family,) = VENDOR.families(NvidiaSettings.model_validate(settings))
    return family.node.register(device, legacy)


def test_a_card_registers_as_hami_does() -> None:
    info = registered(card(numa=1))

    assert info == DeviceInfo(
        id="GPU-aaaa",
        index=1,
        count=10,
        devmem=81920,
        devcore=100,
        type="NVIDIA A100-SXM4-80GB",
        numa=1,
        mode="hami-core",
        health=True,
    )


@pytest.mark.parametrize(
    ("model", "legacy", "expected"),
    [
        ("NVIDIA H20-3e", False, "NVIDIA H20-3e"),
        ("NVIDIA H20-3e", True, "NVIDIA-NVIDIA H20-3e"),
        ("Tesla P4", False, "NVIDIA-Tesla P4"),
        ("Tesla P4", True, "NVIDIA-Tesla P4"),
    ],
)
def test_a_model_is_prefixed_as_the_scheduler_expects(model: str, legacy: bool, expected: str) -> None:
    assert card_type(model, legacy=legacy) == expected
    assert registered(card(model=model), legacy=legacy).type == expected


@pytest.mark.parametrize(("scaling", "memory"), [(1, 81559), (1.5, 122338), (0.5, 40779), (1.1, 89714)])
def test_scaled_memory_is_cut_off_not_rounded(scaling: float, memory: int) -> None:
    assert registered(card(memory=81559), deviceMemoryScaling=scaling).devmem == memory


def test_scaled_cores_are_percent() -> None:
    assert registered(card(), deviceCoreScaling=1.5).devcore == 150


@pytest.mark.parametrize(("numa", "expected"), [(None, 0), (-1, 0), (0, 0), (5, 5)])
def test_an_unknown_numa_node_registers_as_0(numa: int | None, expected: int) -> None:
    assert registered(card(numa=numa)).numa == expected


@pytest.mark.parametrize(
    ("health", "offered"),
    [(Health.HEALTHY, True), (Health.SUSPECT, True), (Health.UNHEALTHY, False), (Health.PROBATION, False)],
)
def test_only_an_offered_card_registers_as_healthy(health: Health, offered: bool) -> None:
    assert registered(card(health=health)).health is offered


def test_the_family_carries_hamis_names() -> None:
    (family,) = VENDOR.families(NvidiaSettings(deviceSplitCount=4, enableNumaTopology=True, memoryFactor=256))

    assert family.resources.device_type == "NVIDIA"
    assert family.resources.count == "nvidia.com/gpu"
    assert family.rules.annotations.register == "hami.io/node-nvidia-register"
    assert family.rules.annotations.handshake == "hami.io/node-handshake"
    assert family.rules.annotations.to_allocate == "hami.io/vgpu-devices-to-allocate"
    assert family.rules.annotations.allocated == "hami.io/vgpu-devices-allocated"
    assert family.rules.annotations.score == "hami.io/node-nvidia-score"
    assert family.node.replicas(card()) == 4
    assert family.node.numa_hints
    assert family.resources.memory_factor == 256


def test_the_vendor_is_found_by_its_name() -> None:
    vendor = load_vendor("nvidia")

    assert vendor.settings is NvidiaSettings
    assert vendor.families(vendor.settings())[0].resources.device_type == "NVIDIA"


def test_mps_is_accepted_and_registered_as_such() -> None:
    settings = NvidiaSettings(operatingMode="mps")

    assert settings.operating_mode == "mps"
