from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.model.device import Link, Links, symmetric
from tests.support.hami import Json, asks
from vendors.nvidia.driver import NvLink, lanes, link, measured
from vendors.nvidia.host import pci_address

VECTORS = Path(__file__).parents[2] / "vectors"

LEVELS = {
    "CrossCPU": "SYS",
    "SameCPU": "NODE",
    "HostBridge": "PHB",
    "MultiSwitch": "PXB",
    "SingleSwitch": "PIX",
    "SameBoard": "INT",
}
NUMBERS = (
    *("Single", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine"),
    *("Ten", "Eleven", "Twelve", "Thirteen", "Fourteen", "Fifteen", "Sixteen", "Seventeen", "Eighteen"),
)


def lane_count(name: str | int) -> int:
    """0 for a level, and for a number that HAMi has no name for."""
    if isinstance(name, int):
        return 0
    if name.startswith("NVLink"):
        return int(name.removeprefix("NVLink"))
    words = name.removesuffix("Links").removesuffix("Link")
    return NUMBERS.index(words.removesuffix("NVLINK")) + 1 if words.endswith("NVLINK") else 0


def link_of(names: Sequence[str | int]) -> Link:
    """A pair's link, from HAMi's list of what connects it."""
    words = [str(name).removeprefix("P2PLink") for name in names]
    level = next((LEVELS[device_type] for device_type in words if device_type in LEVELS), "")
    return link(level, sum(lane_count(name) for name in names))


def links_of(devices: Sequence[Mapping[str, Any]]) -> Links:
    uuids = {device["index"]: device["uuid"] for device in devices}
    return symmetric(
        {
            (device["uuid"], uuids[int(peer)]): link_of(names)
            for device in devices
            for peer, names in device["links"].items()
        }
    )


@lru_cache(maxsize=1)
def random_machines() -> tuple[dict[str, Any], ...]:
    with lzma.open(VECTORS / "pair_scores.jsonl.xz", "rt") as lines:
        return tuple(json.loads(line) for line in lines)


def test_scores_equal_hamis_on_every_pair_that_both_cards_see_alike() -> None:
    compared = different = 0
    for vector in random_machines():
        devices = vector["in"]["links"]
        ours = links_of(devices)
        names = {d["uuid"]: {devices[int(p)]["uuid"]: tuple(n) for p, n in d["links"].items()} for d in devices}
        for row in vector["out"]["scores"]:
            for peer, theirs in row["score"].items():
                there, back = names[row["uuid"]].get(peer, ()), names[peer].get(row["uuid"], ())
                score = ours.score(row["uuid"], peer)
                if link_of(there) == link_of(back):
                    assert score == theirs, f"{vector['id']} {row['uuid']} {peer}"
                    compared += 1
                else:
                    assert score == min(link_of(side).score for side in (there, back) if side)
                    assert tuple(sorted((row["uuid"], peer))) in ours.asymmetric
                    different += score != theirs

    assert compared > 6000
    assert different > 0


def test_every_pair_that_hami_flags_as_asymmetric_is_flagged_here() -> None:
    for vector in random_machines():
        if vector["out"]["asymmetric"]:
            assert links_of(vector["in"]["links"]).asymmetric, vector["id"]


@asks("nvidia_pair_scores", "calculateGPUPairScore")
def test_a_pair_scores_what_hami_scores_unless_its_directions_differ(case: Json) -> None:
    nobody: Json = {"index": -1, "uuid": "", "links": {}}
    a, b = (case["input"][name] or nobody for name in ("gpu0", "gpu1"))
    there, back = a["links"].get(str(b["index"])), b["links"].get(str(a["index"]))
    directed = {(a["uuid"], b["uuid"]): there, (b["uuid"], a["uuid"]): back}

    ours = symmetric({pair: link_of(names) for pair, names in directed.items() if names})

    score = ours.score(a["uuid"], b["uuid"])
    if link_of(there or ()) == link_of(back or ()):
        assert score == case["expected"]["score"]
    else:
        assert score == min(link_of(names).score for names in (there, back) if names)
        assert ours.asymmetric


@asks("nvidia_pair_scores", "calculateGPUScore")
def test_a_node_scores_what_hami_scores_unless_a_pair_is_asymmetric(case: Json) -> None:
    ours = links_of(case["input"]["devices"])
    odd = {frozenset(pair) for pair in ours.asymmetric}

    for row in case["expected"]["scores"]:
        for peer, theirs in row["score"].items():
            if frozenset((row["uuid"], peer)) not in odd:
                assert ours.score(row["uuid"], peer) == theirs
    assert bool(odd) == case["expected"]["asymmetric"]


@asks("nvidia_pair_scores", "nvlinkCountToType")
def test_up_to_18_nvlinks_score_as_in_hami(case: Json) -> None:
    count = case["input"]["n"]
    known = case["expected"]["link_type"] != "Unknown"

    score = link("", count).score

    assert score == (100 * count if known else 1800 if count > 18 else 0)


@asks("nvidia_pair_scores", "countMatchingLinks")
def test_links_count_by_the_address_at_their_other_end(case: Json) -> None:
    ends = [bytes(info["bus_id"]).rstrip(b"\0").decode() for info in case["input"]["pciInfos"] or ()]

    found = lanes([NvLink(peer=pci_address(end)) for end in ends], case["input"]["busID"], ())

    assert found == case["expected"]["result"]


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [
        ("00000000:2A:00.0", "0000:2a:00.0"),
        ("0008:01:00.0", "0008:01:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("", ""),
    ],
)
def test_a_bus_id_is_written_as_sysfs_writes_it(bus_id: str, address: str) -> None:
    assert pci_address(bus_id) == address


@pytest.mark.parametrize(
    ("level", "count", "score", "label"),
    [
        ("SYS", 4, 410, "NV4"),
        ("PIX", 0, 50, "PIX"),
        ("NODE", 18, 1820, "NV18"),
        ("99", 0, 0, "99"),
        ("SYS", 36, 1810, "NV36"),
    ],
)
def test_a_link_keeps_its_level_beside_its_label(level: str, count: int, score: int, label: str) -> None:
    assert link(level, count) == Link(score=score, label=label, level=level, lanes=count)


def test_a_direction_without_a_level_leaves_the_other_one() -> None:
    addresses = {"a": "0000:01:00.0", "b": "0000:02:00.0"}
    ports = {"a": [NvLink(peer=addresses["b"])], "b": [NvLink(peer=addresses["a"])]}

    found = symmetric(measured({("a", "b"): "PIX"}, ports, addresses))

    assert found.score("b", "a") == 150
    assert found.asymmetric == (("a", "b"),)
