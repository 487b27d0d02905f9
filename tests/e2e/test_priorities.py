"""The priority loop: who waits in the files that HAMi-core reads, and that nobody waits for a daemon that is gone."""

from __future__ import annotations

import asyncio
import json
import lzma
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.manifests import asking, manifest
from tests.e2e.steps import WITHIN_S, bring_up, start
from tests.e2e.test_alignment import USE
from tests.e2e.test_restarted_containers import begin
from tests.support.promql import series

REGION = Path(__file__).parents[1] / "vectors/regions/v1.2-two-cards.bin.xz"
SWITCH, RECENT, LAST = 2_008_900, 2_008_904, 2_008_912
WAITS, GOES_ON = (1, -1), (1, 0)


@dataclass
class Region:
    path: Path

    @property
    def switches(self) -> tuple[int, int]:
        return struct.unpack_from("<ii", self.path.read_bytes(), SWITCH)

    def works(self, seconds_ago: float = 0.0) -> None:
        """As HAMi-core says that a kernel was started."""
        with self.path.open("r+b") as file:
            file.seek(LAST)
            file.write(struct.pack("<Q", int(time.time() - seconds_ago)))


async def shared(stage: Any) -> tuple[Region, Region]:
    """Two containers on one card, of priorities 0 and 1, that have used it; the second one works."""
    card = stage.registered()[0].id
    regions = []
    for priority in (0, 1):
        asks = asking("main", stage.family.resources, memory=4096, cores=30)
        asks["resources"]["limits"][stage.family.resources.priority] = str(priority)
        pod = await bring_up(stage, manifest(f"p{priority}", [asks], annotations={USE: card}))
        region = Region(await begin(stage, pod, "main"))
        region.path.write_bytes(lzma.decompress(REGION.read_bytes()))
        region.works(seconds_ago=3600)
        regions.append(region)
    return regions[0], regions[1]


async def waits(stage: Any, high: Region, low: Region) -> None:
    async def look() -> None:
        high.works()
        low.works()

    await look()
    await stage.until(lambda: low.switches == WAITS, "the lower priority's wait", WITHIN_S)
    assert high.switches[1] != -1


def configure(stage: Any, **changes: Any) -> None:
    file = Path(stage.options["--config"])
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


CONFIGURED = {"usageSeconds": 0.05, "priorityLoop": True}


async def test_the_lower_priority_waits_while_the_higher_one_works(running: Any) -> None:
    stage = await running(**CONFIGURED)
    high, low = await shared(stage)
    await waits(stage, high, low)
    _status, text = await stage.get("/metrics")
    assert [dict(labels)["pod"] for labels in series(text, "hami_plugin_container_held_back")] == ["p1"]

    high.works(seconds_ago=60)

    await stage.until(lambda: low.switches[1] >= 0, "the lower priority goes on", WITHIN_S)


@pytest.mark.full
@pytest.mark.parametrize("end", ["stopped", "api server away"])
async def test_nobody_waits_for_a_daemon_that_decides_no_more(end: str, running: Any) -> None:
    stage = await running(**CONFIGURED)
    high, low = await shared(stage)
    await waits(stage, high, low)
    high.works(seconds_ago=-30)  # for as long as the test takes

    if end == "stopped":
        await stage.stop_daemon()
    else:
        await stage.api.refuse()

    await stage.until(lambda: low.switches == GOES_ON, "the release", WITHIN_S)


@pytest.mark.full
async def test_a_daemon_that_was_killed_leaves_its_release_to_the_next_one(running: Any) -> None:
    stage = await running(**CONFIGURED)
    high, low = await shared(stage)
    await waits(stage, high, low)
    await stage.stop_daemon(kill=True)
    assert low.switches == WAITS

    configure(stage, priorityLoop=False)
    await start(stage)

    await stage.until(lambda: low.switches == GOES_ON, "the release", WITHIN_S)


@pytest.mark.full
async def test_without_the_loop_nothing_is_written_to_a_region(running: Any) -> None:
    stage = await running(usageSeconds=0.05)
    high, low = await shared(stage)
    high.works()
    low.works()
    before = high.path.read_bytes(), low.path.read_bytes()

    async with asyncio.timeout(WITHIN_S):
        while len(series((await stage.get("/metrics"))[1], "hami_plugin_container_last_kernel_timestamp_seconds")) < 2:
            pass  # both are read, and written if they ever are

    assert (high.path.read_bytes(), low.path.read_bytes()) == before
