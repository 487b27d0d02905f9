"""Over any course of pods that come and go, a MetaX card has pods of one quality of service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.pods import decode_devices
from hami_plugin.scheduler.engine.devices import Admitted
from hami_plugin.scheduler.engine.filter import ClusterSnapshot, FilterResult, filter_nodes
from hami_plugin.scheduler.engine.node_info import PodIndex, patch, read_idle_node
from vendors.metax.rules import families
from vendors.metax.settings import MetaxSettings

FAMILIES = families(MetaxSettings())
SGPU = FAMILIES[1]
QOS, APP = "metax-tech.com/sgpu-qos-policy", "metax-tech.com/sgpu-app-class"
CARDS, PODS = 3, 60


def node(said: str) -> NodeView:
    """``said`` is the quality of service that the node tells of its cards, as MetaX's agent may."""
    card = {"model": "MXC500", "totalDevCount": 16, "totalCompute": 100, "totalVRam": 65536, "numa": 0}
    cards = [{**card, "uuid": f"G{n}", "healthy": True, "qosPolicy": said, "linkZone": 0} for n in range(CARDS)]
    return NodeView(name="n", annotations={"metax-tech.com/node-gpu-devices": json.dumps(cards)})


def pod(chance: Random, name: str) -> PodView:
    """With a class of its own or none, online, offline or neither, with a part of a card or all of it."""
    annotations: dict[str, str] = {}
    if qos := chance.choice(["", "best-effort", "fixed-share", "burst-share"]):
        annotations[QOS] = qos
    if chance.random() < 0.2:
        annotations[APP] = chance.choice(["online", "offline"])
    cores = chance.choice(["0", "5", "10", "100"])
    limits = {"metax-tech.com/sgpu": "1", "metax-tech.com/vcore": cores, "metax-tech.com/vmemory": "2"}
    container = ContainerView(name="c", limits=limits, requests=limits)
    made = PodView(uid=name, namespace="t", name=name, annotations=annotations, containers=(container,))
    admitted = SGPU.rules.admit(container, made)
    assert isinstance(admitted, Admitted)
    webhook = chance.random() < 0.8  # the others came past it
    return replace(made, annotations={**annotations, **(admitted.pod_annotations if webhook else {})})


def classes(ledger: PodIndex) -> Mapping[str, set[str]]:
    """By card, the classes of the pods that share it."""
    found: dict[str, set[str]] = {}
    for entry in ledger.entries.values():
        for grant in (
            g for piece in decode_devices(entry.pod.annotations[SGPU.rules.annotations.allocated]) for g in piece
        ):
            if grant.cores != 100 and entry.pod.annotations.get(APP) != "online":
                found.setdefault(grant.uuid, set()).add(entry.pod.annotations.get(QOS) or "best-effort")
    return found


@pytest.mark.parametrize("said", ["", "fixed-share"])
@pytest.mark.parametrize("seed", range(12))
def test_pods_of_two_classes_are_never_on_one_card(seed: int, said: str) -> None:
    chance = Random(seed)
    view = node(said)
    ledger, placed = PodIndex(), 0
    for number in range(PODS):
        one = pod(chance, f"p{number}")
        node_infos = {"n": read_idle_node(view, FAMILIES).node_info}
        answer = filter_nodes(ClusterSnapshot(families=FAMILIES, nodes=node_infos, pods=ledger), one, ["n"])
        assert isinstance(answer, FilterResult)
        if answer.placed:
            written = patch(FAMILIES, one, answer.placed)
            ledger.see(replace(one, node="n", annotations={**one.annotations, **written}), FAMILIES)
            placed += 1
        if ledger.entries and chance.random() < 0.4:
            ledger.drop(chance.choice(sorted(ledger.entries)))
        if chance.random() < 0.1:  # a scheduler that has just started
            pods = [entry.pod for entry in ledger.entries.values()]
            ledger = PodIndex()
            for known in pods:
                ledger.see(known, FAMILIES)
        assert all(len(found) == 1 for found in classes(ledger).values()), classes(ledger)
    assert placed > PODS // 6
