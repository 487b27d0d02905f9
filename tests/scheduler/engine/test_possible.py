"""What no node can ever give is told apart from what only has to wait."""

from pathlib import Path

import pytest

from hami_plugin.model.views import NodeView, pod_view
from hami_plugin.protocol.nodes import DeviceInfo, encode_json
from hami_plugin.scheduler.engine.capacity import largest, sizes, why_impossible
from hami_plugin.scheduler.engine.filter import ClusterSnapshot, FilterResult, filter_nodes
from hami_plugin.scheduler.engine.node_info import read_idle_node
from tests.hami.catalog import Catalog
from tests.hami.decisions import situation
from tests.hami.run import read
from tests.support.pods import of_vendor
from tests.support.scheduling import CARD_MIB, FAMILIES, KEYS, cards, manifest

SCHEDULE = Path(__file__).parents[2] / "vectors" / "schedule.jsonl.xz"


def node_infos(*counts: int, **card):
    """Nodes n1, n2, … with so many cards."""
    registers = {f"n{n}": cards(f"n{n}", count, **card) for n, count in enumerate(counts, 1)}
    nodes = [NodeView(name=name, annotations={KEYS.register: text}) for name, text in registers.items()]
    return [read_idle_node(node, FAMILIES).node_info for node in nodes]


def known(families, there):
    """What is largest of all that these nodes have."""
    return largest(sizes(node_info, families) for node_info in there)


def why(there, **asked) -> str:
    return why_impossible(pod_view(manifest("a", **asked)), FAMILIES, known(FAMILIES, there))


@pytest.mark.parametrize("asked", [{"memory": CARD_MIB}, {"cores": 100}, {"gpus": 4}, {"gpus": 0}])
def test_what_the_largest_node_has_is_possible(asked):
    assert why(node_infos(1, 4), **asked) == ""


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"memory": CARD_MIB + 1},
            (
                "container main: nvidia.com/gpumem asks for 10001 MiB, more than any device of this cluster has"
                " (the largest: 10000 MiB, on node n2); lower it, or add a larger device first"
            ),
        ),
        (
            {"gpus": 5},
            (
                "container main: nvidia.com/gpu asks for 5 devices, more than any node of this cluster has"
                " (the largest: 4 devices, on node n2); lower it, or add a larger node first"
            ),
        ),
    ],
)
def test_more_than_that_is_not_and_the_reason_names_the_largest(asked, told):
    assert why(node_infos(1, 4), **asked) == told


def test_more_cores_than_any_device_has_are_impossible():
    assert "nvidia.com/gpucores asks for 101" in why(node_infos(1), cores=101)


SHARED_BY_CORE = "hami-vnpu-core"
HALF = {
    "of a partition with 38 units": ("amd", "AMD", "amd.com/gpu", "amd.com/gpucores", 38, {}),
    "of an NPU with 20 cores": (
        "ascend",
        "Ascend910B4",
        "huawei.com/Ascend910B4",
        "huawei.com/Ascend910B4-core",
        20,
        {"huawei.com/vnpu-mode": "hami-core"},
    ),
}


@pytest.mark.parametrize(("vendor", "device_type", "count", "cores", "devcore", "annotations"), HALF.values(), ids=HALF)
def test_a_percentage_of_cores_is_not_held_against_a_number_of_them(
    vendor, device_type, count, cores, devcore, annotations
):
    (family,) = (one for one in of_vendor(vendor, {}) if one.resources.device_type == device_type)
    device = DeviceInfo(
        id="d0", count=10, devmem=32768, devcore=devcore, type=device_type, mode="hami-core", health=True
    )
    node = NodeView(
        name="n1", annotations={family.rules.annotations.register: encode_json([device]), SHARED_BY_CORE: "true"}
    )
    limits = {count: "1", cores: "50"}
    pod = pod_view(
        {"metadata": {"annotations": annotations}, "spec": {"containers": [{"resources": {"limits": limits}}]}}
    )
    there = read_idle_node(node, [family]).node_info

    outcome = filter_nodes(ClusterSnapshot(families=(family,), nodes={"n1": there}), pod, ["n1"])

    assert isinstance(outcome, FilterResult)
    assert outcome.placed
    assert why_impossible(pod, [family], known([family], [there])) == ""


def test_devices_that_are_sick_may_heal():
    assert why(node_infos(4, health=False), gpus=4) == ""


def test_without_any_known_device_nothing_is_impossible():
    assert why([], gpus=1000, memory=10**6) == ""
    assert why(node_infos(0), gpus=1000) == ""


def test_nothing_that_was_ever_placed_is_called_impossible():
    catalog, placed = Catalog(), 0
    for case in read(SCHEDULE):
        asked = situation(case.question, catalog)
        if case.answers[0]["best"]:
            placed += 1
            assert why_impossible(asked.pod, asked.families, known(asked.families, asked.node_infos)) == "", case.id

    assert placed > 100
