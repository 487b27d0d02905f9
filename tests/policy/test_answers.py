"""An answer carries a device's nodes itself, or its CDI name, and what is the container's own in any case."""

from __future__ import annotations

import pytest

from cdi.edits import ContainerEdits, DeviceNode
from hami_plugin.model.delivery import Answer, Delivery, Way
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.policy.answers import answered

OWN = ContainerEdits(env={"LIMIT": "30"})
NODES = ContainerEdits(device_nodes=(DeviceNode(path="/dev/x0"),))


def assignment(*uuids, container="main"):
    shares = tuple(
        Share(grant=Grant(uuid=u, word="X"), device=Device(uuid=u, family="X", index=i, model="m", memory=1))
        for i, u in enumerate(uuids)
    )
    pod = PodView(uid="11-22", namespace="default", name="p")
    return Assignment(pod=pod, container=ContainerView(name=container), shares=shares)


def answer(*ways, uuids=("a", "b"), container="main", kind="v.com/gpu"):
    delivery = Delivery(ways=ways, kind=kind)
    return answered(delivery, assignment(*uuids, container=container), OWN, NODES)


def test_inlined_devices_come_with_the_containers_own_edits():
    assert answer(Way.DEVICE_SPECS) == Answer(edits=NODES.merged(OWN))


def test_a_vendors_runtime_and_cdi_are_not_given_the_nodes_again():
    for way in (Way.ENVVAR, Way.VOLUME_MOUNTS, Way.CDI_ANNOTATIONS, Way.CDI_CRI):
        assert answer(way).edits == OWN


def test_the_annotation_lists_the_names_in_the_order_of_the_container():
    ((key, names),) = answer(Way.CDI_ANNOTATIONS).annotations.items()

    assert key.startswith("cdi.k8s.io/hami-plugin_")
    assert len(key.removeprefix("cdi.k8s.io/")) <= 63
    assert names == "v.com/gpu=a,v.com/gpu=b"


def test_the_field_lists_the_same_names():
    assert answer(Way.CDI_CRI).cdi_devices == ("v.com/gpu=a", "v.com/gpu=b")


def test_a_repeated_answer_is_the_same_to_the_letter():
    assert answer(Way.CDI_ANNOTATIONS) == answer(Way.CDI_ANNOTATIONS)


@pytest.mark.parametrize("other", [{"container": "second"}, {"kind": "v.com/npu"}])
def test_annotations_of_other_containers_and_families_have_other_keys(other):
    mine, theirs = answer(Way.CDI_ANNOTATIONS), answer(Way.CDI_ANNOTATIONS, **other)

    assert mine.annotations.keys().isdisjoint(theirs.annotations)


def test_two_answers_for_one_container_add_up():
    both = answer(Way.CDI_CRI, uuids=("a",)).merged(answer(Way.CDI_CRI, uuids=("a", "b")))

    assert both.cdi_devices == ("v.com/gpu=a", "v.com/gpu=b")
