"""The whole daemon with cards that it switches into the mode in which they are cut, and back once they are idle."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hami_plugin.demo.node import CONFIGURATION, NODE, SimulatedNode
from tests.e2e.steps import WITHIN_S
from tests.support.live import all_offered, live
from vendors.cambricon.cndev import Cndev
from vendors.cambricon.settings import CambriconSettings
from vendors.enflame.on_demand import DrsModes
from vendors.enflame.settings import EnflameSettings


def in_smlu_mode(stage: SimulatedNode) -> int:
    library = Cndev(CambriconSettings.model_validate(stage.hardware.settings).cndev)
    return sum(library.divisible(number) for number in range(8))


def in_drs_mode(stage: SimulatedNode) -> int:
    modes = DrsModes(EnflameSettings.model_validate(stage.hardware.settings))
    return sum(modes.mode(f"{NODE}-enflame-{number}").current for number in range(8))


def manifest(limits: Mapping[str, int]) -> dict[str, Any]:
    container = {"name": "main", "image": "i", "resources": {"limits": {key: str(n) for key, n in limits.items()}}}
    return {"metadata": {"name": "a"}, "spec": {"containers": [container], "schedulerName": "hami-scheduler"}}


CASES = {
    "cambricon": (
        "cambricon-mlu590-8",
        {"mode": "dynamic-smlu", "smluMode": "enabled"},
        {"mode": "default", "smluMode": "disabled"},
        in_smlu_mode,
        {"cambricon.com/vmlu": 1, "cambricon.com/mlu.smlu.vmemory": 12, "cambricon.com/mlu.smlu.vcore": 30},
    ),
    "enflame": (
        "enflame-s60-8",
        {"drsMode": "enabled"},
        {"drsMode": "disabled"},
        in_drs_mode,
        {"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 30},
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("vendor", CASES)
async def test_cards_are_switched_at_the_start_cut_for_a_pod_and_switched_back_when_it_has_ended(vendor: str) -> None:
    profile, on, off, count, limits = CASES[vendor]
    counted: Callable[[SimulatedNode], int] = count
    async with live(profile, vendors={vendor: on}) as one:
        stage = one.stage
        await stage.until(lambda: counted(stage) == 8, "the mode that pods need", WITHIN_S)
        kubelet, resource = stage.kubelet, next(iter(limits))
        await stage.until(lambda: kubelet.allocatable(resource) == kubelet.capacity(resource) > 0, "all", WITHIN_S)
        one.count()
        pod = await one.created(manifest(limits))
        await one.chosen(pod)  # the scheduler hears a moment later than the kubelet that cards are well
        await one.bound(pod)
        await one.served(pod)

        one.end("a")
        await stage.stop_daemon()
        (stage.directory / "config.yaml").write_text(json.dumps({**CONFIGURATION, "vendors": {vendor: off}}))
        await stage.start_daemon()
        await stage.until(lambda: counted(stage) == 0, "the mode that was asked for", WITHIN_S)
        await stage.until(lambda: all_offered(stage), "whole cards")
