"""Whole decisions: HAMi's defects come out right, and a planted fault is found step by step."""

from __future__ import annotations

import copy
import json
import lzma
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.scheduler.engine.node_info import read_node
from tests.hami.answers import answer, consistent
from tests.hami.catalog import Catalog
from tests.hami.decisions import situation
from tests.hami.run import Case, Outcome, asked, documented_in, read
from tests.support.scale import sized, spread

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "tests" / "vectors"
DOCUMENTED = documented_in((ROOT / "docs" / "differences.md").read_text())


@cache
def catalog() -> Catalog:
    return Catalog()


@cache
def decisions() -> tuple[Case, ...]:
    return tuple(spread(read(VECTORS / "schedule.jsonl.xz"), lambda case: case.question["vendor"], part=5))


@cache
def answered() -> tuple[tuple[Case, Any], ...]:
    """Decisions about pods of several containers, with ours."""
    several = [case for case in decisions() if len(situation(case.question, catalog()).pod.containers) > 1]
    return tuple((case, dict(answer(case.question, catalog()))) for case in several)


@cache
def defects() -> dict[str, Any]:
    rows = json.loads(lzma.decompress((VECTORS / "hami-defects.json.xz").read_bytes()))
    return {row["name"]: row for row in rows}


def compared(question: Any, theirs: Any) -> Outcome:
    return asked([Case(id="x", question=question, answers=(theirs,))], catalog(), DOCUMENTED)


ALLOCATED = {"NVIDIA": "hami.io/vgpu-devices-allocated", "DCU": "hami.io/dcu-devices-allocated"}


@pytest.mark.parametrize(
    ("name", "vendor", "expected", "later"),
    [
        ("nvidia-lifecycle-init[cpu]+app[gpu]", "NVIDIA", ";G1,NVIDIA,1000,0:;", {"G1": (1, 1000)}),
        ("nvidia-lifecycle-init[cpu]+app[cpu,gpu]", "NVIDIA", ";;G1,NVIDIA,1000,0:;", {"G1": (1, 1000)}),
        ("nvidia-lifecycle-init[gpu]+app[gpu]", "NVIDIA", "G1,NVIDIA,1000,0:;G1,NVIDIA,1000,0:;", {"G1": (1, 1000)}),
        ("hygon-lifecycle-init[cpu]+app[gpu]", "DCU", ";D1,DCU,1000,10:;", {"D1": (1, 1000)}),
        ("hygon-lifecycle-init[cpu]+app[cpu,gpu]", "DCU", ";;D1,DCU,1000,10:;", {"D1": (1, 1000)}),
    ],
)
def test_a_device_stays_taken_once_the_init_containers_are_over(name, vendor, expected, later):
    """HAMi's defect A: the entry without a device is left out, and the device is free while the container runs."""
    question = {**defects()[name]["in"], "fn": "schedule", "vendor": vendor}

    ours = answer(question, catalog())
    asked_about = situation(question, catalog())
    running = replace(asked_about.pod, phase="Running", annotations=ours["annotations"])
    (node_info,) = asked_about.node_infos
    after = read_node(node_info.node, asked_about.families, [running]).node_info.pools[vendor].states

    assert ours["annotations"][ALLOCATED[vendor]] == expected
    assert {state.uuid: (state.slots, state.memory) for state in after if state.slots} == later


@pytest.mark.parametrize("name", ["nvidia-container-index", "nvidia-container-index-init"])
def test_left_out_entries_are_a_difference_that_is_written_down(name):
    row = defects()[name]

    outcome = compared({**row["in"], "vendor": "NVIDIA"}, row["out"])

    assert dict(outcome.explained) == {"D-220": 1}


def test_a_share_that_hami_wrote_at_the_wrong_container_still_counts():
    row = defects()["nvidia-lifecycle-init[cpu]+app[gpu]"]
    asked_about = situation({**row["in"], "vendor": "NVIDIA"}, catalog())
    (node_info,) = asked_about.node_infos

    running = replace(asked_about.pod, phase="Running", annotations=row["out"]["annotations"])

    (_, taken) = read_node(node_info.node, asked_about.families, [running]).node_info.pools["NVIDIA"].states
    assert (taken.uuid, taken.slots, taken.memory) == ("G1", 1, 1000)


def test_two_containers_with_a_whole_card_each_are_placed():
    """HAMi's defect H."""
    for name, vendor in (("metax-two-containers", "Metax-GPU"), ("mthreads-two-containers", "Mthreads")):
        ours = answer({**defects()[name]["in"], "vendor": vendor}, catalog())

        (scored,) = ours["scores"]
        first, second = scored["devices"][vendor]
        assert {one["uuid"] for one in first}.isdisjoint(one["uuid"] for one in second)


def test_a_chips_name_within_anothers_is_another_chip():
    """HAMi's defect G."""
    row = defects()["ascend-substring-type"]

    assert row["out"]["best"] == "n0"
    assert answer({**row["in"], "vendor": "Ascend910B4"}, catalog())["failed"] == {"n0": "NodeInsufficientDevice"}


def score(out: Any) -> None:
    for one in out["scores"]:
        one["score"] += 1


def other_node(out: Any) -> None:
    names = [one["node"] for one in out["scores"] if one["node"] != out["best"]]
    if names:
        out["best"] = out["annotations"]["hami.io/vgpu-node"] = names[0]


def more_memory(out: Any) -> None:
    for one in out["scores"]:
        for grant in (grant for pieces in one["devices"].values() for piece in pieces for grant in piece):
            grant["usedmem"] += 1


def other_annotation(out: Any) -> None:
    for key, text in (out["annotations"] or {}).items():
        if key.endswith("allocated"):
            out["annotations"][key] = text.replace(",", "x,", 1)


def one_more_annotation(out: Any) -> None:
    if out["annotations"]:
        out["annotations"]["acme.example/more"] = "yes"


def other_request(out: Any) -> None:
    for request in (request for one in out["requests"] for request in one.values()):
        request["nums"] += 1


@pytest.mark.parametrize(
    "change", [score, other_node, more_memory, other_annotation, one_more_annotation, other_request]
)
def test_a_planted_fault_in_a_decision_is_found(change: Callable[[Any], None]):
    def about(case: Case) -> bool:
        return case.question["vendor"] in ("NVIDIA", "DCU")

    planted = []
    for case in filter(about, decisions()[:: sized(1, 3)]):
        out = copy.deepcopy(dict(case.answers[0]))
        out["scores"] = out["scores"] or []
        change(out)
        if out != {**case.answers[0], "scores": case.answers[0]["scores"] or []}:
            planted.append(Case(id=case.id, question=case.question, answers=(out,)))

    outcome = asked(planted, catalog(), DOCUMENTED)

    assert len(outcome.unexplained) == len(planted) > 10


def to_the_front(entries: list[str]) -> list[str]:
    return sorted(entries, key=lambda entry: not entry)


def to_the_end(entries: list[str]) -> list[str]:
    return sorted(entries, key=bool)


def left_out(entries: list[str]) -> list[str]:
    return [entry for entry in entries if entry]


def one_more(entries: list[str]) -> list[str]:
    return ["", *entries]


def test_every_share_of_ours_is_at_its_containers_place():
    for case, ours in answered():
        assert consistent(case.question, ours, catalog()), case.id


@pytest.mark.parametrize("moved", [to_the_front, to_the_end, left_out, one_more])
@pytest.mark.parametrize("places", [("annotations",), ("scores",), ("annotations", "scores")], ids=".".join)
def test_a_share_at_another_containers_place_is_wrong_even_where_hami_writes_it_there(moved, places):
    """An answer of ours that moves shares, in what is written, in what is told, or in both alike."""
    tried = 0
    for case, ours in answered():
        other = copy.deepcopy(ours)
        if "annotations" in places:
            for key, text in other["annotations"].items():
                if key.endswith(("allocated", "to-allocate")) and text.endswith(";"):
                    other["annotations"][key] = "".join(f"{entry};" for entry in moved(text.split(";")[:-1]))
        if "scores" in places:
            for one in other["scores"]:
                one["devices"] = {device_type: moved(pieces) for device_type, pieces in one["devices"].items()}
        if other != ours:
            tried += 1
            assert not consistent(case.question, other, catalog()), case.id
    assert tried > sized(5, 10)


@pytest.mark.parametrize("moved", [to_the_front, to_the_end, one_more])
def test_hamis_entries_at_another_containers_place_are_explained_by_nothing(moved):
    """He leaves out all empty entries or none."""
    planted = []
    for case, ours in answered():
        out = copy.deepcopy(dict(case.answers[0]))
        for key, text in ours["annotations"].items():
            entries = text.split(";")[:-1]
            if (
                moved(entries) not in (entries, left_out(entries))
                and any(entries)
                and (out["annotations"] or {}).get(key)
            ):
                out["annotations"][key] = "".join(f"{entry};" for entry in moved(entries))
        if out != {**case.answers[0]}:
            planted.append(Case(id=case.id, question=case.question, answers=(out,)))

    outcome = asked(planted, catalog(), DOCUMENTED)

    assert len(outcome.unexplained) == len(planted) > 3


def moore_threads() -> tuple[Any, Any]:
    """Two cards, of which an init container gets the one and the pod's container the other; the question, our answer.

    The second card is full but for the init container's share when the container comes.
    """

    def container(name: str, memory: int) -> Any:
        limits = {"mthreads.com/vgpu": "1", "mthreads.com/sgpu-memory": str(memory), "mthreads.com/sgpu-core": "4"}
        return {"name": name, "limits": limits}

    pod = {"name": "p", "uid": "p", "annotations": {"hami.io/gpu-scheduler-policy": "binpack"}}
    node = {
        "name": "n0",
        "annotations": {},
        "capacity": {"mthreads.com/sgpu-core": "32", "mthreads.com/sgpu-memory": "192"},
    }
    taken = {"uuid": "n0-mthreads-1", "type": "Mthreads", "usedmem": 96 * 512 - 8 * 512, "usedcores": 4}
    running = {"name": "r", "uid": "r", "containers": [{"name": "c"}]}
    question = {
        "fn": "schedule",
        "vendor": "Mthreads",
        "nodes": [node],
        "running": [{"node": "n0", "pod": running, "devices": {"Mthreads": [[taken]]}}],
        "pod": {**pod, "init_containers": [container("setup", 8)], "containers": [container("main", 32)]},
    }
    return question, answer(question, catalog())


def test_cards_of_init_containers_are_named_where_hami_names_the_last_containers_only():
    question, ours = moore_threads()
    hamis = copy.deepcopy(ours)
    hamis["annotations"]["mthreads.com/gpu-index"] = "0"

    assert ours["annotations"]["mthreads.com/gpu-index"] == "1,0"
    assert dict(compared(question, hamis).explained) == {"D-193": 1}


@pytest.mark.parametrize(("key", "text"), [("mthreads.com/gpu-index", "1"), ("mthreads.com/predicate-node", "n1")])
def test_a_rule_excuses_no_other_field_than_its_own(key, text):
    question, ours = moore_threads()
    hamis = copy.deepcopy(ours)
    hamis["annotations"] |= {"mthreads.com/gpu-index": "0", key: text}

    assert compared(question, hamis).unexplained


def test_another_refusal_is_found():
    planted = []
    for case in decisions():
        failed = dict.fromkeys(case.answers[0]["failed"] or (), "1/8 CardNotHealth")
        if failed and case.question["vendor"] == "DCU":
            planted.append(Case(id=case.id, question=case.question, answers=({**case.answers[0], "failed": failed},)))

    outcome = asked(planted, catalog(), DOCUMENTED)

    assert len(outcome.unexplained) == len(planted) > 3


def dcu(cores: tuple[int, int], memory: tuple[int, int]) -> tuple[Any, Any]:
    """A node with two cards that are used so much; the question, and our answer to it."""
    register = "".join(f"D{n},4,16384,100,DCU-Z100,0,true,{n},hami-core:" for n in range(2))
    running = [
        {
            "node": "n0",
            "pod": {"name": f"r{n}", "uid": f"r{n}", "containers": [{"name": "c"}]},
            "devices": {"DCU": [[{"uuid": f"D{n}", "type": "DCU", "usedmem": memory[n], "usedcores": cores[n]}]]},
        }
        for n in range(2)
    ]
    limits = {"hygon.com/dcunum": "1", "hygon.com/dcumem": "1000", "hygon.com/dcucores": "10"}
    question = {
        "fn": "schedule",
        "vendor": "DCU",
        "nodes": [{"name": "n0", "annotations": {"hami.io/node-dcu-register": register}, "capacity": {}}],
        "running": running,
        "pod": {"name": "p", "uid": "p", "annotations": {}, "containers": [{"name": "c", "limits": limits}]},
    }
    return question, answer(question, catalog())


def with_the_other_card(ours: Any) -> Any:
    (grant,) = ours["scores"][0]["devices"]["DCU"][0]
    other = {"D0": "D1", "D1": "D0"}[grant["uuid"]]
    swapped = json.loads(json.dumps(ours).replace(f'"{grant["uuid"]},', f'"{other},'))
    swapped["scores"][0]["devices"]["DCU"][0][0] |= {"uuid": other, "idx": int(other[1:])}
    return swapped


def test_equally_full_cards_may_come_in_the_order_of_hamis_rounding():
    question, ours = dcu(cores=(50, 25), memory=(4096, 8192))

    assert dict(compared(question, with_the_other_card(ours)).explained) == {"D-221": 1}


@pytest.mark.parametrize(("cores", "memory"), [((50, 25), (4096, 4096)), ((25, 25), (4096, 4096))])
def test_cards_that_are_not_equally_full_or_used_alike_may_not(cores, memory):
    question, ours = dcu(cores=cores, memory=memory)

    assert compared(question, with_the_other_card(ours)).unexplained
