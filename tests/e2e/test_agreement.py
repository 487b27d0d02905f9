"""``fit`` says yes exactly where the real processes take a pod all the way: a sample, over HTTP and sockets.

``tests/vendors/test_agreement.py`` asks many more of the same parts without processes.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from hami_plugin.errors import HamiError
from hami_plugin.fitting.inquiry import Inquiry, answered
from hami_plugin.model.views import node_view, pod_view
from hami_plugin.scheduling.offered import lacking
from tests.support.agreement import Questions, every_family, ground
from tests.support.live import Live, live
from tests.support.machines import Case, Way

SAMPLE = 16


def fits(node: Live, manifest: dict) -> bool:
    pods = tuple(pod for pod in map(pod_view, node.api.pods()) if not pod.terminal)
    inquiry = Inquiry(
        pod=pod_view(manifest), nodes=(node_view(node.api.node(node.node)),), families=every_family(), pods=pods
    )
    try:
        return answered(inquiry).choice.best is not None
    except HamiError:
        return False


@pytest.mark.parametrize("profile", ["dgx-1v", "cambricon-mlu590-8", "enflame-s60-8-drs", "ascend-910b3-8"])
async def test_a_pod_that_fits_is_served_by_the_processes_and_no_other_is(profile: str, tmp_path: Path) -> None:
    told: Counter[bool] = Counter()
    place = ground(Case(profile=profile, way=Way()), tmp_path / "ground")
    questions = Questions(place, random.Random(4))
    async with live(profile, node="n1") as node:
        for number in range(SAMPLE):
            asked = questions.pod()
            meta = {**asked["metadata"], "name": f"p{number}", "namespace": "default"}
            manifest = {**asked, "metadata": meta}
            if lacking(pod_view(manifest), node_view(node.api.node("n1")), every_family()):
                continue  # kube-scheduler itself refuses it, and is no part of this
            expected = fits(node, manifest)

            ended = await node.run(manifest)

            assert (bool(ended.node), expected) == (expected, bool(ended.node)), (manifest, ended)
            assert expected or ended.refused_at in ("webhook", "filter"), (manifest, ended)
            told[expected] += 1
    assert min(told[True], told[False]) >= 2, told
