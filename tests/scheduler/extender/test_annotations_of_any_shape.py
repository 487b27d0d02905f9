"""What anybody can write to a pod, and a node's owner to a node: whatever it is, the next pod is scheduled."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_plugin.protocol.keys import ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME, NODE_LOCK
from hami_plugin.scheduler.engine.policy import consulted_annotations
from hami_plugin.sdk import load_vendor, vendor_names
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.scale import examples, spread
from tests.support.scheduling import add_node, cards, manifest, schedule, serving, until

FAMILIES = tuple(
    family
    for vendor in map(load_vendor, vendor_names())
    for family in vendor.families(vendor.settings.model_validate({}))
)
OF_PODS = sorted(
    {
        *(family.rules.annotations.allocated for family in FAMILIES),
        *(key for family in FAMILIES if family.rules.policy
          for key in consulted_annotations(family.rules.policy.serves)),
        *("hami.io/vgpu-mig-allocations", "nvidia.com/numa-bind", "metax-tech.com/app-class"),
        *(ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME),
        *("hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy", "hami.io/device-scoring-weights"),
    }
)  # fmt: skip
OF_NODES = sorted(
    {
        key
        for family in FAMILIES
        for key in (
            family.rules.annotations.register,
            family.rules.annotations.handshake,
            family.rules.annotations.score,
            family.rules.lock.annotation if family.rules.lock else "",
        )
        if key
    }
    | {"hami.io/device-cordon", "hami.io/node-nvidia-score"}
)
HOSTILE = (
    "", " ", ":" * 60_000, "," * 60_000, ";" * 60_000, ":,;" * 20_000, "[" * 30_000, '{"a":' * 3000, "9" * 10_000,
    "1e999", "NaN", "null", "true", "[]", "{}", "[null]", "[[]]", '[{"id":null}]', '[{"id":{}}]',
    '[{"id":"x","devmem":1e300}]',
    "a,NVIDIA,1,1", "n1-g0,NVIDIA,-5,-5:;", f"n1-g0,NVIDIA,{'9' * 400},0:;", "n1-g0,NVIDIA,10000,100:;" * 400,
    "\x00", "a\nb", "\u202e", "Requesting_9999.99.99 99:99:99", "2026-01-01T00:00:00Z,a,b,c", "n1", "no-such-node",
)  # fmt: skip
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(blacklist_categories=["Cs"]), max_size=60))
PODS = st.dictionaries(st.sampled_from(OF_PODS), TEXTS, min_size=1, max_size=6)
NODES = st.dictionaries(st.sampled_from(OF_NODES), TEXTS, min_size=1, max_size=4)


async def lived(pods: list[dict[str, str]], nodes: list[dict[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with SimulatedApiServer() as server:
            add_node(server)
            for number, annotations in enumerate(nodes):
                name = f"odd{number}"
                server.create_node(name, capacity={"nvidia.com/gpu": "10"})
                server.annotate_node(name, {OF_NODES[0]: cards(name, 1)} | annotations)
            for number, annotations in enumerate(pods):
                pod = manifest(f"odd{number}", memory=1)
                pod["metadata"]["annotations"] = annotations
                if number % 2:
                    pod["spec"]["nodeName"] = "n1" if number % 4 == 1 else "odd0"
                server.create_pod(pod)
            async with serving(server, Path(folder), families=FAMILIES) as service:
                await until(lambda: "n1" in service.cache.nodes.node_infos)
                for one in server.pods():
                    if "nodeName" not in one["spec"]:
                        answer = await service.filter({"Pod": one, "NodeNames": ["n1"]})
                        assert set(answer) & {"NodeNames", "Error"}
                for one in server.pods():
                    server.delete_pod("team", one["metadata"]["name"])
                await until(lambda: not service.cache.pods.index.on("n1"))
                server.annotate_node("n1", {NODE_LOCK: None})
                assert await schedule(server, service, server.create_pod(manifest("next", memory=1))) == "n1"


@pytest.mark.scenario("X1", "X2", "X3", "X9")
@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(PODS, max_size=8), st.lists(NODES, max_size=4))
def test_whatever_stands_at_pods_and_nodes_the_next_pod_is_scheduled(pods, nodes):
    asyncio.run(lived(pods, nodes))


@pytest.mark.scenario("X3")
@pytest.mark.parametrize("text", spread(HOSTILE, part=4), ids=spread(range(len(HOSTILE)), part=4))
async def test_every_annotation_may_be_hostile_at_once(text):
    pods = [dict.fromkeys(keys, text) for keys in _within(OF_PODS, text)]
    nodes = [dict.fromkeys(keys, text) for keys in _within(OF_NODES, text)]

    await lived([pod for pod in pods for _ in range(2)], nodes)


def _within(keys, text):
    """The keys in groups, each of which an API server still takes with this text."""
    size = max(1, min(len(keys), 200_000 // (len(text.encode()) + 60)))
    return [keys[at : at + size] for at in range(0, len(keys), size)]


def test_the_decisions_that_are_read_here_are_those_of_all_vendors():
    assert len(OF_PODS) > 40
    assert len(OF_NODES) > 10
