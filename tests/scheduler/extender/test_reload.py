"""The scheduler takes up a changed configuration while it decides, as a whole or not at all."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.scheduler.extender.app import configured
from hami_plugin.scheduler.extender.extender import scheduler_change
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.scheduler.extender.test_two_schedulers import check
from tests.support.promql import series
from tests.support.scale import sized
from tests.support.scheduler_process import QUICK, Running, started
from tests.support.scheduling import FAMILIES, add_node, ask, binding, daemons, manifest

WITHIN_S = 60


@pytest.fixture
async def server() -> AsyncIterator[SimulatedApiServer]:
    async with SimulatedApiServer() as server:
        add_node(server, "n1", 8, counted=80)
        add_node(server, "n2", 8, counted=80)
        yield server


def written(folder: Path, vendors: Any = None, **section: Any) -> None:
    """Another configuration in place of the one that is there, in one step."""
    content = {"scheduler": {**QUICK["scheduler"], "reloadSeconds": 0.1, **section}, "vendors": vendors or {}}
    new = folder / "config.new"
    new.write_text(json.dumps(content))
    new.replace(folder / "config.json")


async def shown(running: Running) -> dict[str, Any]:
    return dict(json.loads((await running.get("/readyz"))[1])["configuration"])


async def reached(running: Running, **wanted: Any) -> dict[str, Any]:
    async with asyncio.timeout(WITHIN_S):
        while not wanted.items() <= (found := await shown(running)).items():  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.05)
    return found


async def placed(server: SimulatedApiServer, running: Running, name: str, **asking: Any) -> str:
    """Where a pod is placed and bound."""
    pod = server.create_pod(manifest(name, **asking))
    answer = await running.post("/filter", ask(server, pod))
    assert answer["Error"] == ""
    assert answer["NodeNames"], answer
    (node,) = answer["NodeNames"]
    assert await running.post("/bind", binding(pod, node)) == {"Error": ""}
    return str(node)


async def test_an_order_that_is_changed_counts_from_the_next_pod_on_without_a_restart(
    server: SimulatedApiServer, tmp_path: Path
) -> None:
    async with daemons(server), started(server, tmp_path, reloadSeconds=0.1, nodeSchedulerPolicy="binpack") as running:
        await running.ready()
        first = await placed(server, running, "a", memory=3000)
        assert await placed(server, running, "b", memory=3000) == first
        pid = running.process.pid

        written(tmp_path, nodeSchedulerPolicy="spread")
        await reached(running, generation=2, refused="")

        assert await placed(server, running, "c", memory=3000) != first
        assert running.process.pid == pid
        scrape = (await running.get("/metrics"))[1]
        assert sum(series(scrape, "hami_plugin_config_generation").values()) == 2
        assert json.loads((await running.get("/debug/config"))[1])["scheduler"]["nodeSchedulerPolicy"] == "spread"
        assert await running.ended() == 0


@pytest.mark.full
async def test_a_vendors_resource_that_is_renamed_is_decided_about_under_its_new_name(
    server: SimulatedApiServer, tmp_path: Path
) -> None:
    async with daemons(server), started(server, tmp_path, reloadSeconds=0.1) as running:
        await running.ready()
        written(tmp_path, vendors={"nvidia": {"resourceMemoryName": "corp.example/memory"}})
        await reached(running, generation=2)

        pod = manifest("a", gpus=1)
        pod["spec"]["containers"][0]["resources"]["limits"]["corp.example/memory"] = "90000000"
        answer = await running.post("/filter", ask(server, server.create_pod(pod)))

        assert answer["NodeNames"] == []
        assert "CardInsufficientMemory" in str(answer["FailedNodes"])


@pytest.mark.parametrize(
    ("content", "reason", "says"),
    [
        ({"nodeSchedulerPolicy": "sideways"}, "invalid", "nodeSchedulerPolicy"),
        ({"answerSeconds": 5.0}, "restart", "needs a restart of the scheduler: scheduler.answerSeconds"),
    ],
)
async def test_what_cannot_be_in_force_is_refused_as_a_whole_and_the_last_good_one_stays(
    server: SimulatedApiServer, tmp_path: Path, content: dict[str, Any], reason: str, says: str
) -> None:
    async with daemons(server), started(server, tmp_path, reloadSeconds=0.1) as running:
        await running.ready()
        first = await placed(server, running, "a", memory=3000)

        written(tmp_path, gpuSchedulerPolicy="binpack", **content)
        found = await reached(running, refused=reason)

        assert says in found["problem"]
        assert found["generation"] == 1
        assert (await running.get("/readyz"))[0] == 200
        assert await placed(server, running, "b", memory=3000) == first
        scrape = (await running.get("/metrics"))[1]
        refusals = series(scrape, "hami_plugin_config_refusals_total")
        assert {dict(labels)["reason"]: value for labels, value in refusals.items()}[reason] == 1

        written(tmp_path)
        await reached(running, refused="", problem="")


async def test_no_call_is_lost_and_no_share_given_twice_while_configurations_change(
    server: SimulatedApiServer, tmp_path: Path
) -> None:
    changes, pods = sized(3, 60), sized(8, 150)
    chance = random.Random(16)
    async with daemons(server), started(server, tmp_path, reloadSeconds=0.05) as running:
        await running.ready()

        async def change() -> None:
            for number in range(changes):
                written(tmp_path, nodeSchedulerPolicy=("spread", "binpack")[number % 2], reloadSeconds=0.05)
                await asyncio.sleep(chance.uniform(0.1, 0.3))

        async def place(number: int) -> str:
            await asyncio.sleep(chance.uniform(0, 0.2 * changes))
            return await placed(server, running, f"p{number}", memory=1000)

        _changed, *nodes = await asyncio.gather(change(), *(place(number) for number in range(pods)))

        for number, node in enumerate(nodes):
            assert server.pod("team", f"p{number}")["spec"]["nodeName"] == node
        assert check(server.store, FAMILIES) == pods
        async with asyncio.timeout(WITHIN_S):
            while (await shown(running))["generation"] < 2:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.05)


def test_keys_are_told_apart_by_what_it_takes_to_have_them_in_force(tmp_path: Path) -> None:
    def of(content: Any) -> Any:
        file = tmp_path / "c.json"
        file.write_text(json.dumps(content))
        return configured({"config": file}, {})

    before = of({})
    after = of(
        {
            "logLevel": "debug",
            "registerFormat": "legacy",
            "scheduler": {"refuseImpossible": False, "listenPort": 1234},
            "vendors": {"amd": {"enabled": False}},
        }
    )
    found = scheduler_change(before, after)

    assert found.live == ("logLevel",)
    assert found.restart == ("scheduler.listenPort",)
    assert found.swapped == ("scheduler.refuseImpossible", "vendors.amd")
    assert scheduler_change(before, before) == scheduler_change(after, after)
