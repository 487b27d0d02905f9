"""Labels of the node: what they say, whose they are, and that they go."""

from __future__ import annotations

import pytest

from hami_plugin.model.device import Snapshot, label_value
from hami_plugin.model.views import NodeView
from hami_plugin.node_status.registration import FamilySource, labelling, own_labels, wanted_labels
from hami_plugin.process.concurrency import Watched
from hami_plugin.protocol.keys import LABELS
from tests.support.builders import CARD_MIB, FAMILY, changed, device


def source(*devices, ready=True, family=FAMILY):
    return FamilySource(family=family, snapshot=Watched(Snapshot(devices=devices, ready=ready)))


def node(labels=None, ours=""):
    return NodeView(name="n1", labels=labels or {}, annotations={LABELS: ours} if ours else {})


def test_devices_are_described_by_their_commonest_model():
    devices = (device(0), device(1), device(2, model="Old (R)", memory=1))

    assert wanted_labels([source(*devices)]) == (
        {
            "hami-plugin.io/TOY.product": "Toy",
            "hami-plugin.io/TOY.count": "3",
            "hami-plugin.io/TOY.memory": str(CARD_MIB),
        },
        True,
    )


@pytest.mark.parametrize(
    ("text", "is_"),
    [("NVIDIA A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB"), ("Old (R)", "Old-R"), ("x" * 80, "x" * 63), ("//", "")],
)
def test_a_name_becomes_what_a_label_can_hold(text, is_):
    assert label_value(text) == is_


def test_what_a_vendor_adds_is_checked_and_what_is_no_label_is_left_out():
    family = changed(FAMILY, labels=lambda _snapshot: {"acme.io/x": "1", "a b": "1", "acme.io/y": "no spaces"})

    wanted, _complete = wanted_labels([source(device(0), family=family)])

    assert [key for key in wanted if not key.startswith("hami-plugin.io/")] == ["acme.io/x"]


def test_labels_are_written_with_a_note_of_whose_they_are_and_only_when_they_differ():
    first = labelling(node({"other": "1"}), {"a.io/x": "1", "a.io/y": "2"}, complete=True)
    assert first.labels == {"a.io/x": "1", "a.io/y": "2"}
    assert first.annotations == {LABELS: "a.io/x,a.io/y"}

    again = labelling(
        node({"a.io/x": "1", "a.io/y": "2"}, "a.io/x,a.io/y"), {"a.io/x": "1", "a.io/y": "2"}, complete=True
    )
    assert not again.labels
    assert not again.annotations


def test_labels_that_somebody_else_has_set_stay_as_they_are_and_are_never_removed():
    there = node({"nvidia.com/gpu.count": "7"})

    found = labelling(there, {"nvidia.com/gpu.count": "8", "a.io/x": "1"}, complete=True)

    assert found.labels == {"a.io/x": "1"}
    assert found.foreign == ("nvidia.com/gpu.count",)
    assert labelling(there, {}, complete=True).labels == {}


def test_what_is_wanted_no_more_is_removed_unless_a_driver_is_away():
    there = node({"a.io/x": "1", "a.io/y": "2"}, "a.io/x,a.io/y")

    assert labelling(there, {"a.io/x": "1"}, complete=True).labels == {"a.io/y": None}
    assert labelling(there, {"a.io/x": "1"}, complete=True).annotations == {LABELS: "a.io/x"}
    assert not labelling(there, {"a.io/x": "1"}, complete=False).labels
    gone = labelling(there, {}, complete=True)
    assert (gone.labels, gone.annotations) == ({"a.io/x": None, "a.io/y": None}, {LABELS: None})


def test_a_forged_note_cannot_have_labels_of_kubernetes_removed():
    forged = node(ours="kubernetes.io/hostname,node-role.kubernetes.io/control-plane,plain,x y,a.io/x,foo.k8s.io/z")

    assert own_labels(forged) == {"a.io/x"}


def test_a_driver_that_is_away_makes_the_answer_incomplete():
    assert wanted_labels([source(ready=False)]) == ({}, False)
