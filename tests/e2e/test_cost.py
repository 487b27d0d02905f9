"""What pods cost, from the hardware's counter to Prometheus."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.e2e.manifests import asking, manifest, small
from tests.e2e.steps import WITHIN_S, bring_up
from tests.support.promql import series


def labelled(text: str, name: str, label: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for labels, value in series(text, f"hami_plugin_{name}").items():
        key = dict(labels)[label]
        found[key] = found.get(key, 0.0) + value
    return found


async def test_energy_and_time_of_pods_and_idle_cards_add_up_to_the_cards_own(running: Any) -> None:
    stage = await running(rescanSeconds=0.2, costLabels=["team"])
    resources = stage.family.resources
    half = manifest("half", [asking("main", resources, count=1, memory=40000, cores=50)])
    half["metadata"]["labels"] = {"team": "red"}
    await bring_up(stage, half)
    await bring_up(stage, small("small", resources, memory=2000, cores=5))
    cards = len(stage.hardware.machine.devices)

    async def drew(joules: float) -> str:
        """The metrics, once each card's counter was read, and all have drawn as much."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                _status, text = await stage.get("/metrics")
                drawn = labelled(text, "card_energy_joules_total", "uuid")
                if len(drawn) == cards and sum(drawn.values()) >= joules:
                    return text
                await asyncio.sleep(0.05)

    await drew(0)
    stage.hardware.simulator.inject("energy", None, 3000)
    text = await drew(3000 * cards)

    for what in ("energy_joules", "seconds"):
        whole = sum(labelled(text, f"card_{what}_total", "uuid").values())
        idle = sum(labelled(text, f"card_idle_{what}_total", "uuid").values())
        of = "energy_joules" if what == "energy_joules" else "card_seconds"
        pods = labelled(text, f"pod_{of}_total", "pod")
        assert set(pods) == {"half", "small"}
        assert pods["half"] > pods["small"] > 0
        assert idle + sum(pods.values()) == pytest.approx(whole, rel=0.01)
        spaces = labelled(text, f"namespace_{of}_total", "namespace")
        assert sum(spaces.values()) == pytest.approx(sum(pods.values()), rel=0.01)
        teams = labelled(text, f"label_{of}_total", "value")
        assert teams["red"] == pytest.approx(pods["half"])


@pytest.mark.full
async def test_costs_can_be_left_out(running: Any) -> None:
    stage = await running(costMetrics=False)

    _status, text = await stage.get("/metrics")

    assert not series(text, "hami_plugin_card_seconds_total")
