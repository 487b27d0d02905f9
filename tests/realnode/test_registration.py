"""Case a: the node says what it has."""

import json
from collections import Counter

import pytest

from hami_plugin.protocol.nodes import decode_json
from hami_plugin.simulation.machines import load_machine
from tests.realnode.conftest import PROFILE, SHARES

pytestmark = pytest.mark.case("a", "the node registers: shares, annotations and scores")
REGISTER, SCORE = "hami.io/node-nvidia-register", "hami.io/node-nvidia-score"


def test_the_kubelet_offers_ten_shares_of_each_device(daemon, node, record_property):
    record_property("figures", f"the daemon had registered {daemon.start_s():.1f} s after its container's start")
    status = node.api.node("node-1")["status"]

    assert (status["allocatable"]["nvidia.com/gpu"], status["capacity"]["nvidia.com/gpu"]) == (str(SHARES),) * 2


def test_the_register_annotation_decodes_to_the_machines_devices(daemon, node):
    infos = decode_json(node.annotation(REGISTER))

    assert [info.id for info in infos] == [device.uuid for device in load_machine(PROFILE).devices]
    assert {(info.count, info.health) for info in infos} == {(10, True)}


def test_every_pair_of_devices_has_a_score(daemon, node):
    scores = json.loads(node.annotation(SCORE))

    assert Counter(len(one["score"]) for one in scores) == {7: 8}
