"""Where a MIG instance goes, asked by HTTP as kube-scheduler asks: what comes later still finds a place."""

from __future__ import annotations

import json

import pytest

from bench.fragmentation import profiles_of
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.extender import listening
from tests.support.scheduling import add_node, annotations, ask, manifest, serving, until, written
from vendors.nvidia.rules import ALLOCATIONS

PROFILES = tuple(one for one in profiles_of("a100-40gb") if one.name != "1g.10gb")


@pytest.mark.difference("D-114")
async def test_two_small_instances_leave_room_for_a_large_one(tmp_path):
    placed = []
    async with SimulatedApiServer() as server:
        add_node(server, memory=40960, mode="mig", mig_profiles=PROFILES)
        async with serving(server, tmp_path) as service, listening(service) as rig:
            await until(lambda: service.cache.nodes.node_infos)
            for name, memory in (("a", 4000), ("b", 9000), ("c", 19000)):
                pod = server.create_pod(manifest(name, memory=memory))
                status, answer = await rig.post("/filter", ask(server, pod))
                assert (status, answer["NodeNames"], answer["Error"]) == (200, ["n1"], "")
                await written(service, pod)
                (place,) = json.loads(annotations(server.pod("team", name))[ALLOCATIONS])
                placed.append((place["profile"], place["placement"]["start"]))

    assert placed == [("1g.5gb", 6), ("2g.10gb", 4), ("3g.20gb", 0)]
