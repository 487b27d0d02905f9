from __future__ import annotations

import json
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_plugin.errors import WireError
from hami_plugin.model.device import Link, Links
from hami_plugin.protocol.nodes import (
    DeviceInfo,
    MigProfile,
    decode_json,
    decode_legacy,
    decode_scores,
    encode_json,
    encode_legacy,
    encode_scores,
    score_annotation,
)

int32 = st.integers(-(2**31), 2**31 - 1)
words = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12)
# The legacy format has no escapes, so its separators cannot stand inside a name.
plain_words = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters=",:"), max_size=12)
profiles = st.builds(
    MigProfile,
    name=words,
    memory=int32,
    cores=int32,
    slices=int32,
    placements=st.lists(st.tuples(int32, int32), max_size=3).map(tuple),
)
custom = st.dictionaries(words, st.integers(-(10**9), 10**9) | st.booleans() | words, min_size=1, max_size=3)


def infos(text: st.SearchStrategy[str], **more: st.SearchStrategy[object]) -> st.SearchStrategy[list[DeviceInfo]]:
    device = st.builds(
        DeviceInfo,
        id=text,
        index=st.integers(0, 2**31),
        count=int32,
        devmem=int32,
        devcore=int32,
        type=text,
        numa=st.integers(-1, 100),
        mode=text,
        health=st.booleans(),
        **more,
    )
    by_index = st.lists(device, max_size=4, unique_by=lambda info: info.index)
    return by_index.map(lambda found: sorted(found, key=lambda info: info.index))


@settings(deadline=None)
@given(infos(words, mig_profiles=st.lists(profiles, max_size=2).map(tuple), vendor=words, custom=st.none() | custom))
def test_json_comes_back_as_it_went(devices: list[DeviceInfo]):
    assert decode_json(encode_json(devices)) == tuple(devices)


@settings(deadline=None)
@given(infos(plain_words))
def test_the_legacy_text_comes_back_as_it_went(devices: list[DeviceInfo]):
    assert decode_legacy(encode_legacy(devices) or ":") == tuple(devices)


@settings(deadline=None)
@given(infos(words), st.randoms(use_true_random=False))
def test_the_order_of_discovery_does_not_show(devices: list[DeviceInfo], chance: object):
    shuffled = list(devices)
    chance.shuffle(shuffled)

    assert encode_json(shuffled) == encode_json(devices)


def test_gpu_zero_on_numa_zero_is_written_as_go_writes_it():
    info = DeviceInfo(id="GPU-a", count=10, devmem=81920, devcore=100, type="T", mode="hami-core", health=True)

    assert encode_json([info]) == (
        '[{"id":"GPU-a","count":10,"devmem":81920,"devcore":100,"type":"T","mode":"hami-core","health":true}]'
    )


def test_a_model_name_is_escaped_as_go_escapes_it():
    assert encode_json([DeviceInfo(id="a", type="R&D <1>\u2028é")]) == (
        '[{"id":"a","type":"R\\u0026D \\u003c1\\u003e\\u2028é"}]'
    )


def test_custom_information_is_written_by_key_at_every_depth():
    text = encode_json([DeviceInfo(id="a", custom={"b": {"z": 1, "a": [True]}, "a": 0})])

    assert text == '[{"id":"a","custominfo":{"a":0,"b":{"a":[true],"z":1}}}]'


@pytest.mark.parametrize("name", ["count", "devmem", "devcore"])
@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 3_000_000_000])
def test_a_number_that_32_bits_cannot_hold_is_an_error_and_does_not_wrap(name: str, value: int):
    info = DeviceInfo(id="GPU-a", **{name: value})

    for encode in (encode_json, encode_legacy):
        with pytest.raises(WireError, match=f"{name}.*{value}.*2147483647"):
            encode([info])
    with pytest.raises(WireError, match=rf"device\[0\].{name}.*{value}"):
        decode_json(json.dumps([{"id": "GPU-a", name: value}]))


def test_a_separator_in_a_name_cannot_forge_a_second_legacy_device():
    with pytest.raises(WireError, match="type: 'T:GPU-b' contains ':' at 1"):
        encode_legacy([DeviceInfo(id="GPU-a", type="T:GPU-b")])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no JSON at 0"),
        ("{}", "is not a list"),
        ("[1]", r"annotation\[0\]: 1 is not an object"),
        ("[null]", "is not an object"),
        ('[{"id":5}]', r"device\[0\].id: 5 is not a string"),
        ('[{},{"count":"1"}]', r"device\[1\].count: '1' is not a whole number"),
        ('[{"count":1.0}]', "1.0 is not a whole number"),
        ('[{"count":true}]', "True is not a whole number"),
        ('[{"health":1}]', "1 is neither true nor false"),
        ('[{"index":-1}]', "-1 is not within 0"),
        ('[{"migProfiles":[{"placements":{}}]}]', r"migProfiles\[0\].placements: a map is not a list"),
        ('[{"custominfo":[]}]', "custominfo: a list is not an object"),
        ('[{"id":"\\u0000"}]', "contains"),
        ('[{"id":"\\ud800"}]', "contains"),
        ('[{"devmem":NaN}]', "NaN is not JSON"),
        ('[{"custominfo":{"a":1e999}}]', "1e999 is too large"),
        ('[{"devmem":1e3}]', "1000.0 is not a whole number"),
        ("[{}] x", "no JSON at 5"),
    ],
)
def test_an_error_says_where_what_and_why(text: str, problem: str):
    with pytest.raises(WireError, match=problem):
        decode_json(text)


def test_the_case_of_a_key_does_not_matter_as_to_go():
    text = '[{"ID":"GPU-a","DevMem":1000,"MIGProfiles":[]}]'

    assert decode_json(text) == decode_json('[{"id":"GPU-a","devmem":1000,"migProfiles":[]}]')
    assert decode_json(text)[0].devmem == 1000


def test_an_error_quotes_little_of_a_long_value():
    with pytest.raises(WireError) as caught:
        decode_json(json.dumps([{"count": "x" * 10_000}]))

    assert len(str(caught.value)) < 200


def test_scores_stand_in_the_order_of_the_devices_and_their_peers_sorted():
    links = Links(pairs={("a", "b"): Link(score=420, label="NV4"), ("a", "c"): Link(score=10, label="SYS")})

    assert score_annotation(links, ["c", "a", "b"]) == (
        '[{"uuid":"c","score":{"a":10,"b":0}},{"uuid":"a","score":{"b":420,"c":10}},{"uuid":"b","score":{"a":420,"c":0}}]'
    )


def test_a_single_device_has_an_empty_score():
    assert score_annotation(Links(), ["GPU-a"]) == '[{"uuid":"GPU-a","score":{}}]'


@settings(deadline=None)
@given(st.dictionaries(words, st.dictionaries(words, int32, max_size=4), max_size=4))
def test_scores_come_back_as_they_went(scores: dict[str, dict[str, int]]):
    assert decode_scores(encode_scores(scores, list(scores))) == scores


@pytest.mark.parametrize("odd", [True, 1.5, "1", 1 << 63, [1]])
def test_one_score_that_is_no_number_is_named_among_those_that_are(odd: object):
    rows = [{"uuid": "GPU-a", "score": {"GPU-b": 1}}, {"uuid": "GPU-b", "score": {"GPU-a": odd}}]

    with pytest.raises(WireError, match=r"score annotation\[1\]\.GPU-a"):
        decode_scores(json.dumps(rows))


@pytest.mark.parametrize("name", ["GPU-\n", "GPU-\ud800"])
def test_devices_with_names_that_cannot_be_shown_have_no_scores(name: str):
    for rows in ([{"uuid": name, "score": {}}], [{"uuid": "GPU-a", "score": {name: 1}}]):
        with pytest.raises(WireError, match=r"score annotation\[0\]"):
            decode_scores(json.dumps(rows))


@pytest.mark.parametrize("absent", [{"uuid": "GPU-b"}, {"uuid": "GPU-b", "score": None}])
def test_a_device_without_scores_is_read_beside_one_that_has_them(absent: dict[str, object]):
    rows = [{"uuid": "GPU-a", "score": {"GPU-b": 1, "GPU-c": None}}, absent]

    assert decode_scores(json.dumps(rows)) == {"GPU-a": {"GPU-b": 1, "GPU-c": 0}, "GPU-b": {}}


@pytest.mark.parametrize(("devices", "fits"), [(8, True), (32, True), (64, False), (4000, False)])
def test_scores_are_left_out_where_they_would_crowd_the_node(devices: int, fits: bool):
    uuids = [f"GPU-{n:08x}-5150-4ccd-8a11-751c31b00000" for n in range(devices)]
    pairs = combinations(uuids[:64], 2)
    text = score_annotation(Links(pairs={pair: Link(score=1810, label="NV18") for pair in pairs}), uuids)

    assert (text is not None) is fits
    assert text is None or len(text) <= 64 * 1024


@pytest.mark.parametrize("budget", [0, 100, 166, 167, 1000])
def test_the_budget_is_kept_to_the_byte(budget: int):
    full = score_annotation(Links(), ["GPU-a", "GPU-b", "GPU-ç", "GPU-d"])
    assert full
    size = len(full.encode())

    text = score_annotation(Links(), ["GPU-a", "GPU-b", "GPU-ç", "GPU-d"], budget)

    assert text == (full if size <= budget else None)
