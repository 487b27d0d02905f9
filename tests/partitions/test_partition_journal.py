"""The journal of partitions: what a former life wrote is found again, and what somebody changed does not count."""

import json

import pytest

from hami_plugin.partitions.journal import PartitionJournal
from hami_plugin.partitions.life import Entry, Owner, PartitionEvent, State
from hami_plugin.sdk import Placement


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "partitions"


def opened(path, boot="b1"):
    journal = PartitionJournal(path, boot)
    journal.load()
    return journal


def entry(start=0, **changes):
    owner = Owner(uid="u", container="main", device=1, namespace="ns", pod="p")
    fields = {"card": "GPU-0", "profile": "1g.5gb+me", "placement": Placement(start=start, size=1), "owner": owner}
    return Entry(
        **{
            "number": 0,
            "state": State.CREATING,
            "boot": "b1",
            "before": (("MIG-0", 1, 1, (("gi", 2),)),),
            **fields,
            **changes,
        }
    )


def test_what_was_written_is_found_again(path):
    journal = opened(path)
    one = journal.new(entry(), "intent-create")
    two = journal.new(entry(1, owner=None, state=State.FOREIGN, uuid="MIG-9", ids={"gi": 3, "ci": 0}), "foreign")
    one = journal.put(one.to(PartitionEvent.MADE, now=5.0, uuid="MIG-1", ids={"gi": 1, "ci": 0}), "ready")
    three = journal.new(entry(2), "intent-create")
    journal.drop(three, "failed")

    again = opened(path, "b2")
    assert dict(again.entries) == {one.number: one, two.number: two}
    assert again.unreadable == ()
    assert again.new(entry(3), "intent-create").number > three.number


def test_each_line_says_which_boot_and_when(path):
    opened(path).new(entry(), "intent-create")
    (line,) = map(json.loads, path.read_text().splitlines())

    assert {"v", "seq", "at", "up", "boot", "op", "crc", "partition"} == line.keys()
    assert (line["boot"], line["op"], line["partition"]["owner"]["uid"]) == ("b1", "intent-create", "u")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_last_line_that_a_crash_has_torn_counts_as_never_written_wherever_it_was_torn(path):
    journal = opened(path)
    one = journal.new(entry(), "intent-create")
    whole = path.stat().st_size
    made = journal.put(one.to(PartitionEvent.MADE, now=5.0), "ready")
    written = path.read_bytes()

    for length in range(whole, len(written) + 1):
        path.write_bytes(written[:length])
        again = opened(path)
        there = made if length >= len(written) - 1 else one
        assert (dict(again.entries), again.unreadable) == ({one.number: there}, ())
        assert bool(again.torn) == (whole < length < len(written) - 1)

        two = again.new(entry(1), "intent-create")
        assert (dict(opened(path).entries), opened(path).unreadable) == ({one.number: there, two.number: two}, ())


def test_a_torn_line_that_others_follow_and_a_whole_one_that_is_wrong_are_damage(path):
    journal = opened(path)
    one = journal.new(entry(), "intent-create")
    two = journal.new(entry(1), "intent-create")
    first, second = path.read_bytes().splitlines(keepends=True)

    path.write_bytes(first[:-20] + b"\n" + second)
    assert (dict(opened(path).entries), len(opened(path).unreadable)) == ({two.number: two}, 1)
    path.write_bytes(first + second[:-20] + b"\n")
    assert (dict(opened(path).entries), len(opened(path).unreadable)) == ({one.number: one}, 1)


@pytest.mark.parametrize("change", [(b"MIG-1", b"MIG-2"), (b'"v":1', b'"v":9'), (b'"seq":', b'"seq":1')])
def test_a_line_that_was_changed_does_not_count(path, change):
    opened(path).new(entry(uuid="MIG-1"), "intent-create")
    path.write_bytes(path.read_bytes().replace(*change))

    again = opened(path)
    assert (dict(again.entries), len(again.unreadable)) == ({}, 1)


def test_it_does_not_grow_with_partitions_that_ever_were(path, monkeypatch):
    monkeypatch.setattr("hami_plugin.partitions.journal.SLACK", 10)
    monkeypatch.setattr("os.fsync", lambda _file: None)
    journal = opened(path)
    kept = journal.new(entry(), "intent-create")
    for _ in range(100):
        journal.drop(journal.new(entry(1), "intent-create"), "gone")

    assert len(path.read_text().splitlines()) <= 20
    assert dict(opened(path).entries) == {kept.number: kept}


def test_a_disk_that_refuses_changes_nothing(path):
    journal = opened(path)
    one = journal.new(entry(), "intent-create")
    path.unlink()
    path.mkdir()

    with pytest.raises(OSError):  # noqa: PT011  # whatever the system calls it
        journal.put(one.to(PartitionEvent.MADE, now=5.0), "ready")
    assert dict(journal.entries) == {one.number: one}


def test_a_file_that_cannot_be_read_is_told_of(path):
    path.mkdir(parents=True)

    assert opened(path).unreadable


def test_who_reads_keeps_what_it_has_read(path):
    journal = opened(path)
    before = journal.entries
    journal.new(entry(), "intent-create")

    assert (len(before), len(journal.entries)) == (0, 1)
    with pytest.raises(TypeError):
        journal.entries[5] = None


def test_each_line_is_on_the_disk_before_anybody_acts_on_it(path, monkeypatch):
    flushed = []
    monkeypatch.setattr("os.fsync", flushed.append)
    journal = opened(path)
    one = journal.new(entry(), "intent-create")
    journal.put(one.to(PartitionEvent.MADE, now=5.0), "ready")
    journal.drop(one, "gone")

    assert len(flushed) == 3
