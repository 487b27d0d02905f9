"""Processes that map a region of each layout and count in it as HAMi-core does: seen, resized, dead amid a write."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.manifests import NAMESPACE, asking, manifest
from tests.e2e.steps import WITHIN_S, bring_up
from tests.e2e.test_restarted_containers import begin
from tests.e2e.test_usage import ran
from tests.support.promql import series
from tests.support.region_writer import LAYOUTS, built
from tests.support.scale import spread

MIB = 1 << 20


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("writer"))


@asynccontextmanager
async def process(program: Path, layout: str, region: Path, mib: int, card: str, *more: str) -> Any:
    environment = {**os.environ, "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m"}
    started = await asyncio.create_subprocess_exec(
        program, layout, region, str(mib), card, *more, stdout=asyncio.subprocess.PIPE, env=environment
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.terminate()
        await started.wait()


async def limit(writer: asyncio.subprocess.Process) -> int:
    """What the process has read in its own mapping, as it changes."""
    assert writer.stdout
    async with asyncio.timeout(WITHIN_S):
        return int((await writer.stdout.readline()).split()[1])


async def seen(stage: Any) -> dict[str, Any]:
    """What the page, ``top`` and the metrics say that the one container uses, in bytes."""
    status, out, _err = await ran(stage, "--json")
    assert status == 0
    page = json.loads((await stage.get("/status.json"))[1])
    text = (await stage.get("/metrics"))[1]

    def of(document: Any) -> list[Any]:
        return [one["memoryUsed"] for device in document["devices"] for one in device["containers"]]

    return {
        "top": of(json.loads(out)),
        "page": of(page),
        "metrics": list(series(text, "hami_plugin_container_memory_used_bytes").values()),
        "hami": list(series(text, "hami_vgpu_memory_used_bytes").values()),
    }


async def until_seen(stage: Any, mib: int) -> None:
    """All of them agree."""
    async with asyncio.timeout(WITHIN_S):
        while (found := await seen(stage)) != {place: [mib * MIB] for place in found}:
            pass


@pytest.mark.parametrize("layout", spread(LAYOUTS, part=5))
async def test_a_process_of_each_layout_is_seen_and_sees_its_new_limit(
    layout: str, program: Path, running: Any
) -> None:
    stage = await running(usageSeconds=0.05, hamiMetrics=True)
    pod = await bring_up(stage, manifest("busy", [asking("main", stage.family.resources, memory=4096, cores=100)]))
    region, card = await begin(stage, pod, "main"), stage.registered()[0].id

    async with process(program, layout, region, 1000, card) as writer:
        assert await limit(writer) == 4096
        await until_seen(stage, 1000)
        status, _out, err = await ran(stage, f"{NAMESPACE}/busy", "--gpumem", "8000", command="resize")
        assert (status, err) == (0, "")
        assert await limit(writer) == 8000

        async with process(program, layout, region, 300, card, "crash") as second:
            assert await second.wait() == -signal.SIGKILL
        await until_seen(stage, 1300)  # until another process of the container takes the slot away
        status, _out, err = await ran(stage, f"{NAMESPACE}/busy", "--gpumem", "1299", command="resize")
        assert "ask for 1300 MiB or more" in err
        status, _out, err = await ran(stage, f"{NAMESPACE}/busy", "--gpumem", "1300", command="resize")
        assert (status, err) == (0, "")
        assert await limit(writer) == 1300
