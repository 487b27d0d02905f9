"""``fit`` says yes exactly where the real processes take a pod all the way: a sample, over HTTP and sockets.

``tests/vendors/test_agreement.py`` asks many more of the same parts without processes.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from hami_plugin.cli.fit.inquiry import Inquiry, answer_inquiry
from hami_plugin.demo.node import NODE
from hami_plugin.errors import HamiError
from hami_plugin.model.views import node_view, pod_view
from hami_plugin.protocol.nodes import refuses_key
from hami_plugin.scheduler.engine.node_info import insufficient_other
from tests.support.agreement import Questions, every_family, ground
from tests.support.live import Ended, Live, live
from tests.support.machines import Case, Way
from tests.support.scale import spread
from tests.support.scheduling import until

SAMPLE = 16


def fits(node: Live, manifest: dict) -> bool:
    pods = tuple(pod for pod in map(pod_view, node.api.pods()) if not pod.terminal)
    inquiry = Inquiry(
        pod=pod_view(manifest), nodes=(node_view(node.api.node(NODE)),), families=every_family(), pods=pods
    )
    try:
        return answer_inquiry(inquiry).choice.best is not None
    except HamiError:
        return False


@pytest.mark.parametrize(
    "profile", spread(["dgx-1v", "cambricon-mlu590-8", "enflame-s60-8-drs", "ascend-910b3-8"], part=4)
)
async def test_a_pod_that_fits_is_served_by_the_processes_and_no_other_is(profile: str, tmp_path: Path) -> None:
    told: Counter[bool] = Counter()
    place = ground(Case(profile=profile, way=Way()), tmp_path / "ground")
    questions = Questions(place, random.Random(4))
    async with live(profile) as node:
        for number in range(SAMPLE):
            asked = questions.pod()
            meta = {**asked["metadata"], "name": f"p{number}", "namespace": "default"}
            manifest = {**asked, "metadata": meta}
            if insufficient_other(pod_view(manifest), node_view(node.api.node(NODE)), every_family()):
                continue  # kube-scheduler itself refuses it, and is no part of this
            expected = fits(node, manifest)

            ended = await node.tried(manifest)

            assert (bool(ended.node), expected) == (expected, bool(ended.node)), (manifest, ended)
            assert expected or ended.refused_at in ("webhook", "filter"), (manifest, ended)
            told[expected] += 1
    assert min(told[True], told[False]) >= 2, told


async def test_a_part_that_nothing_would_limit_is_refused_while_it_is_so_and_served_once_the_limiter_is_there() -> None:
    """The host's file goes and comes while the daemon runs."""
    limits = {"amd.com/gpu": "1", "amd.com/gpumem": "16384"}
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    said = refuses_key("AMD")
    async with live("mi300x-8", rescanSeconds=0.5) as node:

        async def known(name: str, *, fitting: bool) -> None:
            """The scheduler's watch has shown it what the node says."""
            asked = node.api.create_pod({"metadata": {"name": name, "namespace": "default"}, "spec": spec})
            offer = {"Pod": asked, "Nodes": None, "NodeNames": [NODE]}
            async with asyncio.timeout(60):
                while bool((await node.scheduler.post("/filter", offer))["NodeNames"]) is not fitting:  # noqa: ASYNC110  # it is another process
                    await asyncio.sleep(0.05)
            node.api.delete_pod("default", name)

        async def run(name: str) -> Ended:
            manifest = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
            expected, ended = fits(node, manifest), await node.tried(manifest)
            assert bool(ended.node) is expected, ended
            return ended

        library = node.stage.directory / "hook" / "vgpu" / "libamvgpu.so"
        library.unlink()
        await until(lambda: "there is no" in node.written(said))
        await known("first", fitting=False)
        refused = await run("early")
        library.touch()
        await until(lambda: not node.written(said))
        await known("second", fitting=True)

        assert (refused.refused_at, "CardServedWholeOnly" in refused.why) == ("filter", True)
        assert (await run("later")).answers["main"].edits.env["HIP_DEVICE_MEMORY_LIMIT"] == "16384m"
