"""What HAMi's own unit tests ask of these vendors, put to ours; the questions and answers are recorded as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.conformance import values
from hami_plugin.conformance.report import lines
from hami_plugin.conformance.run import asked, documented_in
from hami_plugin.errors import WireError
from hami_plugin.policy.reasons import Reason
from hami_plugin.policy.states import DeviceState
from hami_plugin.scheduling import stock
from tests.support.hami import Json, answers, asks, recorded, vectors
from tests.support.hami_questions import QUESTIONS, catalog, family, question, renamed

ROOT = Path(__file__).parents[2]
WORDS = {
    "amd": "AMD",
    "biren": "Biren",
    "hygon": "DCU",
    "iluvatar": "MR-V100",
    "mthreads": "Mthreads",
    "vastai": "Vastai",
}
NVIDIA = ("nvidia_admission", "nvidia_fit", "nvidia_request", "nvidia_topology_select")
FILES = (*WORDS, *NVIDIA)
AGREED = {"nvidia_topology_select": 25}
"""So many cases at least have the same answer, where most differ as documented."""


def word_of(case: Json) -> str:
    return WORDS.get(case["fn"].partition(".")[0], "NVIDIA")


@answers(FILES, *QUESTIONS)
@pytest.mark.parametrize("file", FILES)
def test_questions_about_requests_devices_and_nodes_are_answered_alike(file: str) -> None:
    kinds = [name for name in QUESTIONS if any(case["fn"].endswith(f".{name}") for case in recorded(file))]
    cases = [question(case, word_of(case), case["fn"].partition(".")[0]) for case in vectors(file, *kinds)]
    documented = documented_in((ROOT / "docs/differences.md").read_text())

    outcome = asked(cases, catalog(), documented)

    assert not outcome.unexplained, "\n".join(lines({file: outcome}))
    assert outcome.agreed >= AGREED.get(file, 40)


@asks((*WORDS, "nvidia_node"), "GetNodeDevices")
def test_a_nodes_devices_are_read_alike(case: Json) -> None:
    one, told = family(word_of(case)), case["input"]["node"]
    annotations = {name or one.annotations.register: text for name, text in (told.get("annotations") or {}).items()}
    try:
        found = stock(values.node({**told, "annotations": annotations}), one, ())
    except WireError:
        assert case["expected"]["error"]
        return
    theirs = renamed(case["expected"]["devices"] or ())
    assert [plain(state) for state in found.states] == [expected(device) for device in theirs]
    for device in theirs:
        for peer, score in device.get("device_pair_score", {}).get("scores", {}).items():
            assert found.links.score(device["id"], peer) == score


def plain(state: DeviceState) -> Json:
    told = values.device(state)
    info = {name: getattr(state.info, name) for name in state.info.__slots__ if name != "custom"}
    return expected({**info, "custominfo": told["custominfo"], "mig_profiles": told["mig_profiles"]})


def expected(item: Json) -> Json:
    """Without what is zero, and without what is not the device's own: its vendor, and its links."""
    others = ("vendor", "device_vendor", "device_pair_score")
    return {key: value for key, value in item.items() if value and key not in others}


@asks((*WORDS, "nvidia_node"), "PatchAnnotations")
def test_a_decision_is_written_alike(case: Json) -> None:
    one = family(word_of(case))
    given = {word: values.pieces(renamed(pieces)) for word, pieces in case["input"]["pod_devices"].items()}
    written = one.patch(one, values.pod({}), given) if given else {}
    theirs = case["expected"]["annotations"]
    if "" in theirs:  # the test has not named the annotations
        assert set(written.values()) == set(theirs.values())
    else:
        assert {**written, **{key: text for key, text in theirs.items() if text == "{now_unix_nano}"}} == theirs


@asks(("biren", "hygon", "mthreads", "vastai", "nvidia_mig"), "AddResourceUsage")
def test_a_grant_takes_alike(case: Json) -> None:
    policy = family(word_of(case)).policy
    assert policy
    given, after = renamed(case["input"]), renamed(case["expected"]["after"])

    booking = policy.book(values.state(given["node"]), values.grant(given["container"]), values.pod({}))

    assert not isinstance(booking, Reason)
    state, grant = (values.usage(booking[0]), values.granted(booking[1]))
    for ours, theirs in ((state, after["node"]), (grant, after.get("container", given["container"]))):
        assert {key: theirs.get(key, 0) for key, value in ours.items() if value or theirs.get(key)} == expected(ours)
