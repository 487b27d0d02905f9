"""Where a pod's MIG instances are: written with the decision, read when usage is rebuilt."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.nodes import DeviceInfo, MigProfile, encode_json
from hami_plugin.protocol.pods import decode_devices
from hami_plugin.scheduler.engine.fit import PodFit, fit_pod
from hami_plugin.scheduler.engine.node_info import patch, read_node, scheduling_policies
from vendors.nvidia import VENDOR
from vendors.nvidia import rules as mig
from vendors.nvidia.settings import NvidiaSettings

FAMILIES = VENDOR.families(NvidiaSettings())
SMALL = MigProfile(name="1g.5gb", memory=4864, cores=14, slices=1, placements=tuple((n, 1) for n in range(7)))
CARD = DeviceInfo(
    id="GPU-0", count=7, devmem=40960, devcore=100, type="NVIDIA A100", mode="mig", health=True, mig_profiles=(SMALL,)
)
NODE = NodeView(name="n", annotations={"hami.io/node-nvidia-register": encode_json([CARD])})
LIMITS = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4000"}
POD = PodView(uid="u", namespace="x", name="p", containers=(ContainerView(name="c", limits=LIMITS),))


def decided() -> PodView:
    outcome = fit_pod(POD, scheduling_policies(FAMILIES), read_node(NODE, FAMILIES, []).node_info)
    assert isinstance(outcome, PodFit), outcome.why
    return replace(POD, phase="Running", annotations=patch(FAMILIES, POD, outcome))


def occupied(pod: PodView) -> list[tuple[str, int, int]]:
    (state,) = read_node(NODE, FAMILIES, [pod]).node_info.pools["NVIDIA"].states
    return [(one.profile, one.start, one.size) for one in state.slices]


def test_a_decision_says_where_each_instance_is() -> None:
    (first, second) = json.loads(decided().annotations[mig.ALLOCATIONS])

    assert (first["gpuUUID"], first["profile"], first["placement"]) == ("GPU-0", "1g.5gb", {"start": 6, "size": 1})
    assert second["placement"] == {"start": 5, "size": 1}


def test_a_running_pods_instances_are_where_its_annotation_says() -> None:
    pod = decided()
    text = pod.annotations[mig.ALLOCATIONS].replace('"start":5', '"start":2')

    assert occupied(pod) == [("1g.5gb", 6, 1), ("1g.5gb", 5, 1)]
    assert occupied(replace(pod, annotations={**pod.annotations, mig.ALLOCATIONS: text})) == [
        ("1g.5gb", 6, 1),
        ("1g.5gb", 2, 1),
    ]


@pytest.mark.difference("D-225")
def test_without_that_annotation_they_are_where_they_would_be_put() -> None:
    damaged = {**decided().annotations, mig.ALLOCATIONS: "{"}
    missing = {key: text for key, text in damaged.items() if key != mig.ALLOCATIONS}

    for written in (damaged, missing):
        pod = replace(POD, phase="Running", annotations=written)
        assert occupied(pod) == [("1g.5gb", 6, 1), ("1g.5gb", 5, 1)]


def test_a_share_of_a_whole_card_has_no_place() -> None:
    grant = Grant(uuid="GPU-9", device_type="NVIDIA", memory=1)
    (family,) = FAMILIES

    assert mig.ALLOCATIONS not in mig.patch(family, POD, {"NVIDIA": ((grant,),)})


@pytest.mark.parametrize(("both_kinds", "kinds"), [(True, {"mig"}), (False, {"mig", "hami-core"})])
def test_on_a_node_with_both_kinds_a_containers_cards_are_all_cut_or_none_is(both_kinds: bool, kinds: set[str]) -> None:
    cut = replace(CARD, mig_profiles=(replace(SMALL, placements=((0, 1),)),))
    cards = [
        cut,
        replace(cut, id="GPU-1", index=1),
        replace(CARD, id="GPU-2", index=2, mode="hami-core", mig_profiles=()),
    ]
    told = {mig.BOTH_KINDS: "true"} if both_kinds else {}
    node = NodeView(name="n", annotations={"hami.io/node-nvidia-register": encode_json(cards), **told})

    outcome = fit_pod(POD, scheduling_policies(FAMILIES), read_node(node, FAMILIES, []).node_info)
    assert isinstance(outcome, PodFit)
    modes = {card.id: card.mode for card in cards}
    granted = decode_devices(patch(FAMILIES, POD, outcome)["hami.io/vgpu-devices-allocated"])
    assert {modes[grant.uuid] for piece in granted for grant in piece} == kinds
