from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.model.device import is_replica, physical_counts, physical_id, replica_id, replica_ids

UUID = "GPU-e290caca-2f0c-9582-acab-67a142b61ffa"

uuids = st.one_of(
    st.builds("{}-{}".format, st.sampled_from(["GPU", "MIG", "NPU"]), st.uuids()),
    st.builds(
        "{}-{}".format, st.sampled_from(["node-1-AWSNeuron", "ip-10-0-1-5-kunlun", "0x1a2b", "n"]), st.integers(0)
    ),
)


@given(uuids, st.integers(0, 10**6))
def test_a_replica_leads_back_to_its_device(uuid: str, number: int):
    assert physical_id(replica_id(uuid, number)) == uuid


@given(uuids, st.integers(0, 200))
def test_the_replicas_of_a_device_are_distinct_and_all_its_own(uuid: str, count: int):
    ids = replica_ids(uuid, count)

    assert len(set(ids)) == count
    assert physical_counts(ids) == (Counter({uuid: count}) if count else Counter())


@pytest.mark.parametrize(
    ("replica", "device"),
    [
        (f"{UUID}-7", UUID),
        (f"{UUID}-0", UUID),
        (f"{UUID}::3", UUID),
        (UUID, UUID),
        ("ip-10-0-1-5-AWSNeuron-3::0", "ip-10-0-1-5-AWSNeuron-3"),
        (f"{UUID}-x", f"{UUID}-x"),
        ("MLU-1-2", "MLU-1-2"),
        ("", ""),
        ("-", "-"),
        ("::", ""),
    ],
)
def test_only_a_number_after_a_whole_uuid_is_a_replicas(replica: str, device: str):
    assert physical_id(replica) == device


def test_a_uuid_that_ends_in_digits_is_not_taken_for_a_replica():
    uuid = "GPU-00000000-5150-4ccd-8a11-751000000000"

    assert physical_id(uuid) == uuid
    assert physical_id(f"{uuid}-3") == uuid


def test_ids_are_counted_by_device():
    assert physical_counts([f"{UUID}-0", f"{UUID}::4", "other"]) == {UUID: 2, "other": 1}


@given(uuids, st.integers(0, 50), st.integers(-1, 60))
def test_a_replica_is_known_by_its_number_alone(uuid: str, count: int, number: int):
    for replica in (replica_id(uuid, number), f"{uuid}-0{number}", f"{uuid}::{number}", f"{uuid}-", uuid):
        assert is_replica(replica, uuid, count) == (replica in replica_ids(uuid, count))


def test_digits_of_other_scripts_are_no_replica():
    assert not is_replica(f"{UUID}-\N{ARABIC-INDIC DIGIT ONE}", UUID, 10)
    assert not is_replica(f"{UUID}-\N{SUPERSCRIPT TWO}", UUID, 10)
