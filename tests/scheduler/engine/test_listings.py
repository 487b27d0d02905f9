"""Lists by which a pod selects devices: read once, judged once for each type, and refused when they are endless."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.admission import Allowed, Denied, Scheduling, review
from hami_plugin.scheduler.engine.devices import MAX_BYTES, MAX_NAMES, AnnotationLists, DevicePool, NodeInfo, idle_state
from hami_plugin.scheduler.engine.filter import try_nodes
from hami_plugin.scheduler.engine.fit import CycleOptions, PodFit, Unschedulable
from hami_plugin.scheduler.engine.node_info import scheduling_policies
from hami_plugin.sdk import load_vendor, vendor_names
from tests.support.pods import nvidia

FAMILIES = tuple(
    family
    for vendor in map(load_vendor, vendor_names())
    for family in vendor.families(vendor.settings.model_validate({}))
)
NVIDIA = nvidia()
USE_TYPE = "nvidia.com/use-gputype"
ENDLESS = ",".join(f"T{number:05}" for number in range(36_000))
CARD = DeviceInfo(id="", count=10, devmem=10_000, devcore=100, type="NVIDIA-Toy", health=True)


class Counted(dict[str, str]):
    """Annotations that count how often each is read."""

    def __init__(self, texts):
        super().__init__(texts)
        self.reads = 0

    def get(self, key, default=None):
        self.reads += key == USE_TYPE
        return super().get(key, default)


def pod(annotations, resource="nvidia.com/gpu", containers=1):
    asking = tuple(ContainerView(name=f"c{n}", limits={resource: "1"}) for n in range(containers))
    return PodView(uid="u", namespace="team", name="p", annotations=annotations, containers=asking)


def node_infos(count, *, types=("NVIDIA-Toy",), cards=4):
    def node_info(node):
        infos = [replace(CARD, id=f"n{node}-g{n}", index=n, type=types[n % len(types)]) for n in range(cards)]
        return NodeInfo(
            node=NodeView(name=f"n{node}"), pools={"NVIDIA": DevicePool(states=tuple(map(idle_state, infos)))}
        )

    return [node_info(node) for node in range(count)]


def outcomes(one, there):
    return list(try_nodes(one, scheduling_policies(NVIDIA), there, CycleOptions()))


@pytest.mark.scenario("X3")
@pytest.mark.parametrize("nodes", [1, 40])
def test_a_list_is_read_as_often_for_many_nodes_as_for_one(nodes):
    counted = Counted({USE_TYPE: "toy, other"})

    found = outcomes(pod(counted, containers=3), node_infos(nodes))

    assert not any(isinstance(one, Unschedulable) for one in found)
    assert counted.reads <= 2


@pytest.mark.scenario("X3")
def test_a_type_is_judged_once_for_all_devices_that_are_of_it(monkeypatch):
    asked = []
    judged = AnnotationLists.verdict
    monkeypatch.setattr(
        AnnotationLists,
        "verdict",
        lambda self, subject, judge: judged(self, subject, lambda: asked.append(subject) or judge()),
    )

    outcomes(pod({USE_TYPE: "large"}, containers=2), node_infos(30, types=("Small", "Large", "Larger")))

    assert len(asked) == 3


@pytest.mark.difference("D-329")
@pytest.mark.scenario("X3")
@pytest.mark.parametrize("text", [ENDLESS, "x" * (MAX_BYTES + 1), "," * MAX_NAMES, "é" * (MAX_BYTES // 2 + 1)])
def test_a_list_without_end_is_refused_on_every_node_with_its_size_the_limit_and_what_to_do(text):
    found = outcomes(pod({USE_TYPE: text}), node_infos(2))

    assert {one.node_info.node.name for one in found if isinstance(one, Unschedulable)} == {"n0", "n1"}
    for one in found:
        assert one.why.startswith(f"{USE_TYPE}={text[:64]}")
        assert f"has {len(text.encode())} bytes" in one.why
        assert "at most 4096 bytes and 256 names" in one.why
        assert "list fewer" in one.why
        assert len(one.why) < 400


def test_a_list_of_as_many_names_as_are_read_is_read():
    names = ",".join(["toy", *(f"x{n}" for n in range(MAX_NAMES - 1))])

    assert all(isinstance(one.placed, PodFit) for one in outcomes(pod({USE_TYPE: names}), node_infos(2)))


KEYS = sorted(
    {
        (family.resources.device_type, resource, key)
        for family in FAMILIES
        if family.rules.policy and (resource := family.resources.count)
        for check in family.rules.policy.serves
        for key in getattr(check, "keys", ())
    }
)


@pytest.mark.difference("D-329")
@pytest.mark.scenario("X3")
@pytest.mark.parametrize(("device_type", "resource", "key"), KEYS)
def test_admission_denies_a_pod_whose_selection_of_devices_has_no_end(device_type, resource, key):
    family = next(family for family in FAMILIES if family.resources.device_type == device_type)
    spec = {"containers": [{"name": "main", "resources": {"limits": {resource: "1"}}}]}

    def decided(text):
        return review(
            {"metadata": {"name": "p", "annotations": {key: text}}, "spec": spec}, [family], Scheduling(name="ours")
        )

    assert isinstance(decided("some"), Allowed)
    denied = decided(ENDLESS)
    assert isinstance(denied, Denied)
    assert denied.why.startswith(f"{key}=")
    assert "at most 4096 bytes" in denied.why


def test_every_vendor_that_selects_by_name_is_asked_here():
    """Whoever reads ``use`` and ``nouse`` annotations does so by checks that name them."""
    assert len({device_type for device_type, _resource, _key in KEYS}) >= 12
    assert {USE_TYPE, "hami.io/use-xpu-uuid", "metax-tech.com/nouse-gpuuuid"} <= {key for *_rest, key in KEYS}


def test_what_a_pod_does_not_select_by_may_be_as_long_as_it_likes():
    found = outcomes(pod({"cambricon.com/use-gpuuuid": ENDLESS, "kubectl.io/last-applied": ENDLESS}), node_infos(1))

    assert not any(isinstance(one, Unschedulable) for one in found)


def test_an_order_without_end_is_refused_too():
    (one,) = outcomes(pod({"hami.io/gpu-scheduler-policy": ENDLESS}), node_infos(1))

    assert isinstance(one, Unschedulable)
    assert "at most 4096 bytes" in one.why
