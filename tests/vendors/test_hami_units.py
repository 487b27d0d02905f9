"""What HAMi's own unit tests ask of these vendors, put to ours; the questions and answers are recorded as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.errors import WireError
from hami_plugin.scheduler.engine.devices import DeviceState
from hami_plugin.scheduler.engine.node_info import device_pool
from tests.hami import values
from tests.hami.run import Outcome, asked, documented_in, lines
from tests.support.hami import Json, answers, asks, recorded, vectors
from tests.support.hami_questions import QUESTIONS, catalog, expected, family, question, renamed, word_of

ROOT = Path(__file__).parents[2]
PLAIN = ("amd", "biren", "hygon", "iluvatar", "mthreads", "vastai")
NVIDIA = ("nvidia_admission", "nvidia_fit", "nvidia_request", "nvidia_topology_select")
FILES = (*PLAIN, *NVIDIA, "cambricon")
KUNLUN = ("kunlun_vxpu", "kunlun_xpu_topology")
AGREED = {"nvidia_topology_select": 25}
"""So many cases at least have the same answer, where most differ as documented."""


def outcome(cases: list[Json]) -> Outcome:
    documented = documented_in((ROOT / "docs/differences.md").read_text())
    found = asked([question(case) for case in cases], catalog(), documented)
    assert not found.unexplained, "\n".join(lines({"HAMi's own cases": found}))
    return found


@answers(FILES, *QUESTIONS)
@pytest.mark.parametrize("file", FILES)
def test_questions_about_requests_devices_and_nodes_are_answered_alike(file: str) -> None:
    kinds = [name for name in QUESTIONS if any(case["fn"].endswith(f".{name}") for case in recorded(file))]

    assert outcome(vectors(file, *kinds)).agreed >= AGREED.get(file, 40)


@answers(KUNLUN, "GenerateResourceRequests", "MutateAdmission", "ScoreNode")
def test_questions_about_parts_of_kunlun_cards_are_answered_alike() -> None:
    outcome(vectors(KUNLUN, "GenerateResourceRequests", "MutateAdmission", "ScoreNode"))


@asks((*PLAIN, "cambricon", "nvidia_node"), "GetNodeDevices")
def test_a_nodes_devices_are_read_alike(case: Json) -> None:
    one, told = family(word_of(case)), case["input"]["node"]
    annotations = {
        name or one.rules.annotations.register: text for name, text in (told.get("annotations") or {}).items()
    }
    try:
        found = device_pool(values.node({**told, "annotations": annotations}), one, ())
    except WireError:
        assert case["expected"]["error"]
        return
    theirs = renamed(case["expected"]["devices"] or ())
    assert [plain(state) for state in found.states] == [expected(device) for device in theirs]
    for device in theirs:
        for peer, score in device.get("device_pair_score", {}).get("scores", {}).items():
            assert found.links.scores([device["id"], peer]) == (score,)


def plain(state: DeviceState) -> Json:
    told = values.device(state)
    info = {name: getattr(state.info, name) for name in state.info.__slots__ if name != "custom"}
    return expected({**info, "custominfo": told["custominfo"], "mig_profiles": told["mig_profiles"]})
