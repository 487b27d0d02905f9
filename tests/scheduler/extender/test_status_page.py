"""The cluster's status page on the scheduler's port: what it shows, to whom, and how much of a large cluster."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.cluster.client import connect_wide
from hami_plugin.scheduler.extender import app
from hami_plugin.scheduler.extender.extender import Extender
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.telemetry.http import page
from tests.scheduler.extender.test_reload import placed
from tests.support.scheduler_process import Running, started
from tests.support.scheduling import FAMILIES, add_node, ask, daemons, manifest
from tests.telemetry.test_status_page import HOSTILE, Checked

WHOLE = {
    "version": "1",
    "time": 0.0,
    "components": {},
    "configuration": {"generation": 1, "refused": "", "problem": ""},
}


async def browsed(running: Running, **headers: str) -> tuple[int, str]:
    address = f"http://127.0.0.1:{running.plain}/"
    async with running.session.get(address, headers={"Accept": "text/html", **headers}) as answer:
        return answer.status, await answer.text()


async def test_the_page_shows_nodes_devices_holders_and_what_is_refused(tmp_path: Path) -> None:
    async with SimulatedApiServer() as server, daemons(server):
        add_node(server, "n1", 2, counted=20)
        async with started(server, tmp_path) as running:
            await running.ready()
            await placed(server, running, "holds", memory=3000)
            refused = server.create_pod(manifest("too-large", memory=900_000))
            assert (await running.post("/filter", ask(server, refused)))["NodeNames"] == []

            code, text = await browsed(running)

            assert code == 200
            read = Checked(text)
            assert len(read.ids) == len(set(read.ids))
            for words in (
                "toy-scheduler",
                "n1",
                "team/holds",
                "1 of 10 shares",
                "free",
                "FilteringFailed",
                "too-large",
            ):
                assert words in read.text, words
            found = json.loads((await running.get("/status.json"))[1])
            assert found["sums"]["NVIDIA"]["sharesTaken"] == 1
            assert [one["name"] for one in found["nodes"]] == ["n1"]


async def test_who_may_see_the_page_changes_while_the_scheduler_runs(tmp_path: Path) -> None:
    async with SimulatedApiServer() as server:
        add_node(server, "n1", 2, counted=20)
        async with started(server, tmp_path, statusPage="off") as running:
            await running.ready()
            assert (await running.get("/status.json"))[0] == 403
            code, text = await browsed(running)
            assert (code, "<html" in text) == (200, False)


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_nodes_devices_and_pods_are_called_the_page_is_whole(name: str) -> None:
    device = {
        "deviceType": name, "uuid": name, "index": 0, "model": name, "healthy": True, "shares": 1, "sharesTaken": 0,
        "memory": 1, "memoryTaken": 0, "unit": name, "cores": 1, "coresTaken": 0, "holders": [name], "moreHolders": 3,
    }  # fmt: skip
    sums = {name: dict.fromkeys(("devices", "healthy", "shares", "sharesTaken", "memory", "memoryTaken"), 1)}
    document: dict[str, Any] = {
        "scheduler": name, "nodes": [{"name": name, "devices": [device]}], "more": 1, "sums": sums, "refused": [],
        "events": [], **WHOLE,
    }  # fmt: skip

    read = Checked(page(document))

    assert "img" not in read.elements
    assert not {one for one in read.attributes if one.startswith("on")}


async def test_of_a_large_cluster_the_first_nodes_are_shown_and_the_others_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_NODES", 3)
    async with SimulatedApiServer() as server:
        for number in range(5):
            add_node(server, f"n{number}", 1, counted=10)
        config = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with connect_wide("s", kubeconfig=config, environ={}) as cluster:
            extender, stop = Extender(cluster, FAMILIES), asyncio.Event()
            task = asyncio.create_task(extender.run(stop))
            async with asyncio.timeout(60):
                while extender.problems():  # noqa: ASYNC110  # nothing tells of it
                    await asyncio.sleep(0.01)
            found = app.cluster_status(extender, name="s")
            stop.set()
            await task

    assert ([one["name"] for one in found["nodes"]], found["more"]) == (["n0", "n1", "n2"], 2)
    assert found["sums"]["NVIDIA"]["devices"] == 3
    assert "2 more nodes are not shown" in page({**found, **WHOLE})
