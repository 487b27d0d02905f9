from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_plugin.errors import WireError
from vendors.nvidia.rules import MigAllocation, MigInstance, decode_mig, encode_mig

small = st.integers(0, 2**31 - 1)
words = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=10)
instances = st.builds(MigInstance, uuid=words, gpu_instance=small, compute_instance=small)
allocations = st.builds(
    MigAllocation,
    container=small,
    device=small,
    uuid=words,
    profile=words,
    start=small,
    size=st.integers(1, 2**31 - 1),
    instance=st.none() | instances,
)

ONE = (
    '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-a","profile":"2g.10gb","placement":{"start":0,"size":2},'
    '"migUUID":"MIG-a","gpuInstanceID":4,"computeInstanceID":0}]'
)


@settings(deadline=None)
@given(st.lists(allocations, max_size=4, unique_by=lambda item: (item.container, item.device)))
def test_allocations_come_back_as_they_went(items: list[MigAllocation]):
    assert decode_mig(encode_mig(items)) == tuple(items)


def test_an_instance_with_id_zero_is_an_instance():
    [allocation] = decode_mig(ONE)

    assert allocation.instance == MigInstance(uuid="MIG-a", gpu_instance=4, compute_instance=0)
    assert encode_mig([allocation]) == ONE


def changed(**members: object) -> str:
    item = json.loads(ONE)[0] | members
    return json.dumps([{key: value for key, value in item.items() if value != "gone"}])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (changed(gpuInstanceID="gone", computeInstanceID="gone"), "together"),
        (changed(migUUID="gone"), "together"),
        (changed(migUUID=""), "together"),
        (changed(computeInstanceID=None), "together"),
        (changed(profile=""), "are needed"),
        (changed(gpuUUID="gone"), "are needed"),
        (changed(placement={"start": 1, "size": 0}), "are needed"),
        (changed(placement="gone"), "are needed"),
        (changed(placement=[]), "a list is not an object"),
        (changed(containerIndex=-1), "-1 is not within 0"),
        (changed(gpuInstanceID="4"), "'4' is not a whole number"),
        (changed(migUUID=7), "7 is not a string"),
        (json.dumps(json.loads(ONE) * 2), "container 0 device 0 appears twice"),
        ("{}", "is not a list"),
        ("x", "no JSON at 0"),
    ],
)
def test_one_bad_entry_spoils_the_whole_and_says_why(text: str, problem: str):
    with pytest.raises(WireError, match=problem):
        decode_mig(text)


@pytest.mark.parametrize("text", ["", "[]", "null"])
def test_no_allocation_is_none(text: str):
    assert decode_mig(text) == ()


def test_an_incomplete_allocation_is_not_written():
    nowhere = MigAllocation(container=0, device=0, uuid="GPU-a", profile="1g.5gb", start=0, size=0)
    nameless = MigInstance(uuid="", gpu_instance=0, compute_instance=0)
    halfway = MigAllocation(container=0, device=0, uuid="GPU-a", profile="1g.5gb", start=0, size=1, instance=nameless)

    for allocation in (nowhere, halfway):
        with pytest.raises(WireError, match="container 0 device 0"):
            encode_mig([allocation])
