"""An answer carries a device's nodes itself, or its CDI name, and what is the container's own in any case."""

from __future__ import annotations

import pytest

from cdi.spec import ContainerEdits, DeviceNode
from hami_plugin.allocation.preparation import build_answer
from hami_plugin.model.delivery import ANSWERED_FOR, Answer, Delivery, Way
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.model.views import ContainerView, PodView

OWN = ContainerEdits(env={"LIMIT": "30"})
NODES = ContainerEdits(device_nodes=(DeviceNode(path="/dev/x0"),))


def assignment(*uuids, container="main"):
    shares = tuple(
        Share(grant=Grant(uuid=u, device_type="X"), device=Device(uuid=u, family="X", index=i, model="m", memory=1))
        for i, u in enumerate(uuids)
    )
    pod = PodView(uid="11-22", namespace="default", name="p")
    return Assignment(pod=pod, container=ContainerView(name=container), shares=shares)


def answer(*ways, uuids=("a", "b"), container="main", kind="v.com/gpu"):
    delivery = Delivery(ways=ways, kind=kind)
    return build_answer(delivery, assignment(*uuids, container=container), OWN, NODES)


def names_of(told):
    """The annotations that name devices."""
    return {key: value for key, value in told.annotations.items() if key != ANSWERED_FOR}


@pytest.mark.parametrize("way", Way)
def test_every_answer_says_whom_it_was_made_for(way):
    assert answer(way).annotations[ANSWERED_FOR] == "11-22/main"
    assert answer(way, container="second").annotations[ANSWERED_FOR] == "11-22/second"


def test_answers_of_several_families_for_one_container_agree_on_whom_they_were_made_for():
    mine, theirs = answer(Way.ENVVAR), answer(Way.CDI_ANNOTATIONS, kind="v.com/npu")

    assert mine.merged(theirs).annotations[ANSWERED_FOR] == "11-22/main"


def test_inlined_devices_come_with_the_containers_own_edits():
    told = answer(Way.DEVICE_SPECS)

    assert told == Answer(edits=NODES.merged(OWN), annotations={ANSWERED_FOR: "11-22/main"})


def test_a_vendors_runtime_and_cdi_are_not_given_the_nodes_again():
    for way in (Way.ENVVAR, Way.VOLUME_MOUNTS, Way.CDI_ANNOTATIONS, Way.CDI_CRI):
        assert answer(way).edits == OWN


def test_the_annotation_lists_the_names_in_the_order_of_the_container():
    ((key, names),) = names_of(answer(Way.CDI_ANNOTATIONS)).items()

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

    assert names_of(mine).keys().isdisjoint(names_of(theirs))


def test_two_answers_for_one_container_add_up():
    both = answer(Way.CDI_CRI, uuids=("a",)).merged(answer(Way.CDI_CRI, uuids=("a", "b")))

    assert both.cdi_devices == ("v.com/gpu=a", "v.com/gpu=b")
