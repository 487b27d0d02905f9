"""HAMi's known defects, by letter: a situation built by hand, our right answer, and the row that says so."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.model.device import Link, Links
from hami_plugin.model.views import ContainerView
from hami_plugin.protocol.pods import decode_devices, encode_devices
from hami_plugin.scheduler.engine.devices import Invalid
from hami_plugin.scheduler.engine.node_info import read_node
from hami_plugin.scheduler.engine.topology import choose
from tests.hami.answers import answer
from tests.hami.catalog import Catalog
from tests.hami.decisions import situation

PAGE = (Path(__file__).parents[2] / "docs" / "differences.md").read_text(encoding="utf-8")
DEFECTS = {
    "A": ("D-220", "D-224"),
    "C": ("D-130",),
    "D": ("D-140",),
    "E": ("D-110",),
    "F": ("D-111", "D-113"),
    "G": ("D-171",),
    "H": ("D-120", "D-190"),
    "I": ("D-131", "D-132", "D-133", "D-135"),
    "J": ("D-191",),
    "K": ("D-141", "D-142"),
    "L": ("D-100", "D-101", "D-136", "D-153", "D-173"),
    "M": ("D-112",),
    "N": ("D-102",),
    "O": ("D-035",),
    "Q": ("D-111", "D-124", "D-170", "D-192", "D-221"),
}
"""The rows of docs/differences.md about each defect, by its letter in HAMi's record. B and P are none."""

Json = dict[str, Any]


@cache
def catalog() -> Catalog:
    return Catalog()


def card(number: int, **more: Any) -> Json:
    told = {"id": f"d{number}", "index": number, "count": 10, "totalmem": 1000, "totalcore": 100, "health": True}
    return {**told, **more}


def fit(vendor: str, devices: Sequence[Json], *, annotations: Mapping[str, str] | None = None, **asked: Any) -> Any:
    more = {name: asked.pop(name) for name in ("pair_scores", "allocated", "node", "apply") if name in asked}
    percent = 101 if vendor == "NVIDIA" else 0
    request = {"nums": 1, "type": vendor, "memreq": 0, "mempercentagereq": percent, "coresreq": 0, **asked}
    question = {"fn": "fit", "vendor": vendor, "devices": [*devices], "request": request, **more}
    return answer({**question, "pod": {"annotations": dict(annotations or {})}}, catalog())


def chosen(ours: Any) -> list[str]:
    return [one["uuid"] for devices in ours.get("devices", {}).values() for one in devices]


def neurons(kind: str, *order: int, cores: int = 2, busy: Sequence[int] = ()) -> list[Json]:
    """Neuron devices in this order of the list."""
    told = {"totalmem": 0, "totalcore": (1 << cores) - 1, "count": cores, "custominfo": {"AWSNodeType": kind}}
    return [card(n, **told, used=int(n in busy), usedcores=(n in busy) * ((1 << cores) - 1)) for n in order]


def dgx(register: str, containers: Sequence[Mapping[str, str]], inits: Sequence[Mapping[str, str]] = ()) -> Json:
    """A pod and a node, as a question about a whole decision."""
    pod = {
        "name": "p",
        "uid": "p",
        "containers": [{"name": f"c{n}", "limits": dict(limits)} for n, limits in enumerate(containers)],
        "init_containers": [{"name": f"i{n}", "limits": dict(limits)} for n, limits in enumerate(inits)],
    }
    node = {"name": "n", "annotations": {"hami.io/node-nvidia-register": register}, "capacity": {}}
    return {"fn": "schedule", "vendor": "NVIDIA", "nodes": [node], "pod": pod}


def test_every_known_defect_has_its_rows() -> None:
    rows = set(re.findall(r"^\| (D-\d{3}) \|", PAGE, flags=re.MULTILINE))

    assert {letter for letter, named in DEFECTS.items() if not rows.issuperset(named)} == set()


def test_every_known_defect_has_a_test() -> None:
    assert {name[len("test_") :][0].upper() for name in globals() if re.match("test_[a-z]_", name)} == {*DEFECTS}


def test_a_a_gpu_stays_at_its_container_when_the_init_container_is_over() -> None:
    info = {"count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA-A100", "mode": "hami-core", "health": True}
    register = json.dumps([{"id": f"G{number}", "index": number, **info} for number in range(2)])
    gpu = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
    question = dgx(register, [{"cpu": "1"}, gpu], inits=[{"cpu": "1"}])

    written = answer(question, catalog())["annotations"]
    asked = situation(question, catalog())
    running = replace(asked.pod, annotations=written, phase="Running")
    after = read_node(asked.node_infos[0].node, asked.families, [running]).node_info.pools["NVIDIA"].states

    assert written["hami.io/vgpu-devices-allocated"] == ";;G1,NVIDIA,1000,0:;"
    assert {state.uuid: state.slots for state in after} == {"G0": 0, "G1": 1}


def test_c_shuffled_neuron_devices_are_taken_by_their_index() -> None:
    devices = neurons("trn1.32xlarge", *reversed(range(8)), busy=[0])

    for order in ({}, {"hami.io/gpu-scheduler-policy": "mutex"}):
        assert chosen(fit("AWSNeuron", devices, nums=4, annotations=order)) == ["d4", "d5", "d6", "d7"]


def test_d_shuffled_kunlun_cards_are_taken_by_their_index() -> None:
    shuffled = [card(n, totalmem=98304) for n in (5, 0, 7, 2, 4, 1, 6, 3)]

    assert chosen(fit("kunlun", shuffled, nums=4)) == ["d0", "d1", "d2", "d3"]


def test_e_a_numa_node_that_fits_is_found_though_a_later_one_does_not() -> None:
    devices = [card(0, numa=0, health=False), card(1, numa=0), card(2, numa=1), card(3, numa=1)]
    bound = {"nvidia.com/numa-bind": "true", "hami.io/gpu-scheduler-policy": "topology-aware"}

    assert chosen(fit("NVIDIA", devices, nums=2, annotations=bound)) == ["d3", "d2"]


@pytest.mark.difference("D-113")
def test_f_half_of_24_devices_is_chosen_exactly_within_a_mebibyte() -> None:
    """By HAMi after writing down all 2,704,156 choices."""
    names = [f"d{n:02}" for n in range(24)]
    near = {
        (a, b): Link(score=300 if int(a[1:]) // 12 == int(b[1:]) // 12 else 20, label="")
        for a, b in combinations(names, 2)
    }

    tracemalloc.start()
    choice = choose(names, 12, Links(pairs=near))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert choice.proven
    assert choice.devices == tuple(names[:12])
    assert peak < 2**20


def test_g_a_910b4_is_never_a_910b4_1() -> None:
    other, right = (
        card(n, type=device_type, totalmem=32768) for n, device_type in enumerate(("Ascend910B4-1", "Ascend910B4"))
    )

    assert fit("Ascend910B4", [other], memreq=8192)["reason"] == "1/1 CardTypeMismatch"
    assert chosen(fit("Ascend910B4", [right, other], memreq=8192)) == ["d1"]


@pytest.mark.parametrize(("vendor", "whole"), [("Metax-GPU", 100), ("Mthreads", 16)])
def test_h_two_containers_may_have_a_whole_card_each(vendor: str, whole: int) -> None:
    devices = [card(0, totalcore=whole), card(1, totalcore=whole, used=1, usedmem=1000, usedcores=whole)]
    first = {vendor: [[{"uuid": "d1", "type": vendor, "usedmem": 1000, "usedcores": whole}]]}

    assert chosen(fit(vendor, devices, allocated=first, mempercentagereq=100, coresreq=whole)) == ["d0"]


def test_i_several_neuron_devices_obey_selectors_and_cores_beyond_two_are_counted() -> None:
    without = {"aws.amazon.com/nouse-neuron-uuid": "d1"}
    eight = neurons("trn2.48xlarge", 0, cores=8)

    assert chosen(fit("AWSNeuron", neurons("inf2", *range(4)), nums=2, annotations=without)) == ["d2", "d3"]
    assert fit("AWSNeuron", eight, coresreq=3)["devices"]["AWSNeuron"][0]["usedcores"] == 0b111
    full = {**eight[0], "usedcores": 0b11111110, "used": 1}
    assert fit("AWSNeuron", [full], coresreq=2)["reason"] == "1/1 CardInsufficientCore"
    request = answer(
        {
            "fn": "request",
            "vendor": "AWSNeuron",
            "cores_per_neuron": 0,
            "container": {"name": "c", "limits": {"aws.amazon.com/neuron": "1"}},
        },
        catalog(),
    )
    assert request["request"]["coresreq"] == 2


def test_j_vastai_never_grants_fewer_dies_than_asked_for() -> None:
    dies = [
        card(n, totalmem=0, totalcore=0, count=1, type="Vastai-die", custominfo=info)
        for n, info in enumerate([{"": "A"}, {}, {}, {}])
    ]

    ours = fit("Vastai", dies, nums=3)

    assert ours["ok"]
    assert len(set(chosen(ours))) == 3


def test_k_a_kunlun_card_serves_as_many_as_it_says_and_no_part_is_larger_than_a_card() -> None:
    full = card(0, totalmem=98304, count=1, used=1, usedmem=24576, usedcores=25)
    limits = {"kunlunxin.com/vxpu": "1", "kunlunxin.com/vxpu-memory": "98305"}

    assert fit("XPU", [full], memreq=24576, coresreq=25)["reason"] == "1/1 CardTimeSlicingExhausted"
    for memory in ("98305", "half"):
        container = {"name": "c", "limits": {**limits, "kunlunxin.com/vxpu-memory": memory}}
        assert answer({"fn": "mutate", "vendor": "XPU", "container": container, "pod": {}}, catalog())["err"]


def test_l_no_vendor_takes_4294967297_for_one() -> None:
    for device_type, known in catalog().all({"vendor": "NVIDIA"}).items():
        resource = known.family.resources.count
        assert known.family.rules.policy

        asked = known.family.rules.policy.request(ContainerView(name="c", limits={resource: "4294967297"}))

        assert isinstance(asked, Invalid), device_type
        assert resource in str(asked)


def test_l_3000000000_cores_are_not_none() -> None:
    limits = {"cambricon.com/vmlu": "1", "cambricon.com/mlu.smlu.vcore": "3000000000"}
    policy = catalog().find({"vendor": "MLU"}).family.rules.policy
    assert policy

    assert isinstance(policy.request(ContainerView(name="c", limits=limits)), Invalid)


def test_m_a_default_request_fits_an_idle_card_that_is_cut() -> None:
    profiles = [
        {"name": "1g.5gb", "memoryMB": 4864, "core": 14, "sliceCount": 1, "placements": [{"start": 0, "size": 1}]},
        {"name": "7g.40gb", "memoryMB": 40192, "core": 100, "sliceCount": 7, "placements": [{"start": 0, "size": 8}]},
    ]
    cut = card(0, totalmem=40960, mode="mig", mig_profiles=profiles)

    ours = fit("NVIDIA", [cut], mempercentagereq=100, apply=True)

    assert ours["applied"][0]["custominfo"]["migProfile"] == "7g.40gb"


@pytest.mark.parametrize(("policy", "best"), [("binpack", "d1"), ("spread", "d0")])
def test_n_devices_without_memory_are_packed_and_spread_like_others(policy: str, best: str) -> None:
    """The best stands last."""
    request = {"nums": 1, "type": "T", "memreq": 0, "mempercentagereq": 0, "coresreq": 0}
    devices = [
        card(0, totalmem=0, type="T"),
        card(1, totalmem=0, type="T", used=5, usedcores=50),
        card(2, totalmem=0, type="T", used=2),
    ]
    question = {"fn": "sort_devices", "policy": policy, "numa_bind": False, "requests_by_type": {"T": request}}

    order = answer({**question, "devices": devices}, catalog())["order"]

    assert order[-1]["id"] == best


def test_o_what_is_decoded_and_encoded_is_the_same_text() -> None:
    for text in ("G0,NVIDIA,1000,30:G1,NVIDIA,1000,30:;", ";G0,NVIDIA,1000,0:;;", ";;"):
        pieces = decode_devices(text)

        assert encode_devices(pieces[:-1]) == text


@pytest.mark.parametrize(
    ("vendor", "devices"),
    [
        ("Vastai", [card(n, count=1, custominfo={"": "ABCD"[n // 2]}) for n in range(8)]),
        ("Ascend910B3", [card(n, type="Ascend910B3", custominfo={"NetworkID": n // 2}) for n in range(8)]),
        ("Metax-SGPU", [card(n, custominfo={"LinkZone": n // 2 + 1}) for n in range(8)]),
    ],
)
def test_q_of_equal_groups_the_first_in_device_order_is_taken(vendor: str, devices: list[Json]) -> None:
    """By HAMi another one each time. Devices are walked from the last of the list."""
    answers = [fit(vendor, devices, nums=2, coresreq=0 if vendor == "Vastai" else 100) for _ in range(3)]

    assert {frozenset(chosen(ours)) for ours in answers} == {frozenset({"d7", "d6"})}
