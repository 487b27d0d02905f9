"""Is each line of the journal there after a kill, whatever the disk or somebody else did to those before it?"""

import errno
import json
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from hami_plugin.allocation import ledger as module
from hami_plugin.allocation.ledger import Journal, JournalWriter
from hami_plugin.errors import HamiError


def test_entries_come_back_in_order_and_a_torn_line_is_passed_over(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path)
    assert journal.read() == []
    for n in range(3):
        journal.append({"n": n})
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"n": 3, "to')

    again = Journal(path)
    again.append({"n": 4})

    assert [entry["n"] for entry in again.read()] == [0, 1, 2, 4]
    assert (again.unreadable, again.torn) == ((), "")


def test_an_end_that_is_longer_than_any_line_spoils_no_later_one(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 50)
    path = tmp_path / "journal"
    path.write_bytes(b'{"n": 0}\n' + b"x" * 60)

    journal = Journal(path)
    journal.append({"n": 1})

    assert [entry["n"] for entry in journal.read()] == [0, 1]


def test_a_last_entry_that_lacks_only_the_end_of_its_line_counts(tmp_path):
    path = tmp_path / "journal"
    path.write_bytes(b'{"n": 0}\n{"n": 1}')

    journal = Journal(path)
    journal.append({"n": 2})

    assert [entry["n"] for entry in journal.read()] == [0, 1, 2]


def test_an_entry_of_which_the_disk_took_a_part_spoils_no_later_one(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "journal")
    journal.append({"n": 0})
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[:4]))
        with pytest.raises(OSError, match="only a part"):
            journal.append({"n": 1})

    journal.append({"n": 2})

    assert [entry["n"] for entry in journal.read()] == [0, 2]


def test_a_rewritten_journal_can_be_appended_to(tmp_path):
    journal = Journal(tmp_path / "journal")
    for n in range(9):
        journal.append({"n": n})

    journal.rewrite([{"n": 7}, {"n": 8}])
    journal.append({"n": 9})

    assert [entry["n"] for entry in journal.read()] == [7, 8, 9]


def test_entries_are_one_line_each_whatever_they_say(tmp_path):
    journal = Journal(tmp_path / "journal")
    entry = {"text": "a\nb\u2028\x00é", "n": [1, None, True]}

    journal.append(entry)

    assert len((tmp_path / "journal").read_bytes().splitlines()) == 1
    assert journal.read() == [json.loads(json.dumps(entry))]


def test_a_journal_that_cannot_be_read_says_where_and_what_to_do(tmp_path):
    (tmp_path / "journal").mkdir()

    with pytest.raises(HamiError, match=r"cannot read .*journal.*stateDir"):
        Journal(tmp_path / "journal").read()


def full(monkeypatch, room):
    """A disk with ``room`` bytes left: a write takes what fits, and the next one nothing."""
    left, write = [room], os.write

    def stingy(file, data):
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(file, data[: left[0]])
        left[0] -= done
        return done

    monkeypatch.setattr(os, "write", stingy)


@pytest.mark.scenario("A13")
@pytest.mark.parametrize("cut", [True, False], ids=["cut back", "not even that"])
def test_a_disk_that_is_full_in_the_middle_of_a_line_spoils_no_later_one(tmp_path, monkeypatch, cut):
    journal = Journal(tmp_path / "journal")
    journal.append({"n": 0})
    with monkeypatch.context() as patch:
        full(patch, 4)
        if not cut:
            patch.setattr(os, "ftruncate", lambda file, length: Path("/nowhere").stat())
        for number in (1, 2, 3):
            with pytest.raises(OSError, match=r"only a part|No space"):
                journal.append({"n": number})

    journal.append({"n": 4})
    journal.append({"n": 5})

    assert [entry["n"] for entry in Journal(tmp_path / "journal").read()] == [0, 4, 5]


def lost(journal, kind):
    path = journal.parent
    match kind:
        case "the directory is removed":
            shutil.rmtree(path)
        case "the directory is another one":
            path.rename(path.with_name("moved"))
            path.mkdir()
        case "the file is removed":
            journal.unlink()
        case "the file is another one":
            journal.rename(journal.with_name("moved"))
            journal.write_text('{"n": 99}\n')
        case "the file is cut off":
            os.truncate(journal, 3)
        case "somebody has written to it":
            with journal.open("a") as file:
                file.write('{"n": 99}')


LOSSES = pytest.mark.parametrize(
    "kind",
    [
        "the directory is removed",
        "the directory is another one",
        "the file is removed",
        "the file is another one",
        "the file is cut off",
        "somebody has written to it",
    ],
)


@LOSSES
def test_whatever_was_lost_is_written_anew_with_the_next_entry(tmp_path, kind):
    path = tmp_path / "state" / "journal"
    journal = Journal(path)
    journal.append({"n": 0})
    lost(path, kind)

    assert journal.append({"n": 1}, lambda: [{"n": 0}, {"n": 1}])
    assert not journal.append({"n": 2}, lambda: pytest.fail("asked for all"))

    assert [entry["n"] for entry in Journal(path).read()] == [0, 1, 2]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@LOSSES
def test_what_was_lost_before_the_first_entry_is_noticed_too(tmp_path, kind):
    path = tmp_path / "state" / "journal"
    Journal(path).append({"n": 0})
    journal = Journal(path)
    journal.read()
    lost(path, kind)

    journal.append({"n": 1}, lambda: [{"n": 0}, {"n": 1}])

    assert [entry["n"] for entry in Journal(path).read()] == [0, 1]


def test_a_line_that_says_nothing_is_named_by_its_number(tmp_path):
    path = tmp_path / "journal"
    path.write_bytes(b'{"n": 0}\n{"n": \n[7]\n' + b"[" * 5000 + b"\n" + b"\xff\n" + b'{"n": ' + b"1" * 5000 + b"}\n")

    journal = Journal(path)

    assert [entry["n"] for entry in journal.read()] == [0]
    assert [words.split()[1] for words in journal.unreadable] == ["2", "3", "4", "5", "6"]


def test_a_journal_that_no_daemon_has_written_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    (tmp_path / "journal").write_text("x" * 11)

    with pytest.raises(HamiError, match="move it away"):
        Journal(tmp_path / "journal").read()


class Disk:
    """What a test holds back of a journal's writes."""

    def __init__(self, monkeypatch, kind):
        self.go, self.reached = threading.Event(), threading.Event()
        original = getattr(Journal, kind)

        def slow(journal, *arguments, **named):
            self.reached.set()
            assert self.go.wait(30)
            return original(journal, *arguments, **named)

        monkeypatch.setattr(Journal, kind, slow)


@pytest.fixture
def writer(tmp_path):
    writer = JournalWriter(Journal(tmp_path / "journal"), deadline=0.05)
    yield writer
    writer.close()


def noted(writer, number, held=1):
    writer.append({"n": number}, held, lambda: [{"n": number, "whole": True}])


def numbers(tmp_path):
    return [entry["n"] for entry in Journal(tmp_path / "journal").read()]


async def test_an_entry_is_on_file_when_whoever_waits_goes_on(tmp_path, writer):
    writer._deadline = 30.0
    for number in range(50):
        noted(writer, number)
        await writer.written()
        assert numbers(tmp_path)[-1] == number


async def test_a_disk_that_hangs_is_given_up_on_and_what_is_given_up_before_its_turn_is_never_written(
    tmp_path, writer, monkeypatch
):
    disk = Disk(monkeypatch, "append")
    noted(writer, 0)
    with pytest.raises(OSError, match=r"not taken .* within 0.05 s"):
        await writer.written()
    noted(writer, 1)
    with pytest.raises(OSError, match="not taken"):
        await writer.written()
    noted(writer, 2)

    disk.go.set()
    writer.flush()

    assert numbers(tmp_path) == [0, 2]


async def test_what_waits_for_a_disk_that_hangs_is_bounded_and_all_is_written_once_it_goes_on(
    tmp_path, writer, monkeypatch
):
    disk = Disk(monkeypatch, "append")
    for number in range(3 * writer.MAX_WAITING):
        noted(writer, number)
    with pytest.raises(OSError, match=f"last {writer.MAX_WAITING} entries"):
        await writer.written()
    assert "last" in writer.problem

    disk.go.set()
    writer.flush()
    noted(writer, -1)
    writer.flush()

    assert Journal(tmp_path / "journal").read() == [{"n": -1, "whole": True}]
    assert writer.problem == ""


def test_entries_go_on_while_the_journal_is_compacted_and_none_is_lost(tmp_path, writer, monkeypatch):
    writer.SLACK = 3
    disk = Disk(monkeypatch, "prepare")
    for number in range(7):
        noted(writer, number)
    assert disk.reached.wait(30)
    noted(writer, 7)
    noted(writer, 8)
    while numbers(tmp_path)[-1] != 8:  # appended although the compaction is held back
        pass
    disk.go.set()
    writer.flush()

    found = Journal(tmp_path / "journal").read()
    assert found[0] == {"n": 5, "whole": True}
    assert [entry["n"] for entry in found] == [5, 6, 7, 8]
    noted(writer, 9)
    writer.flush()
    assert numbers(tmp_path) == [5, 6, 7, 8, 9]
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]


def test_a_compacted_journal_is_on_the_disk_before_it_takes_the_place_of_the_longer_one(tmp_path, writer, monkeypatch):
    flushed, fsync = [], os.fsync

    def noticed(file):
        flushed.append(
            (str(Path(f"/proc/self/fd/{file}").readlink()), len(numbers(tmp_path)), threading.current_thread().name)
        )
        fsync(file)

    monkeypatch.setattr(os, "fsync", noticed)
    writer.SLACK = 3
    for number in range(6):
        noted(writer, number)
    writer.flush()

    assert flushed == [(str(tmp_path / ".journal.compact"), 6, "journal compaction")]
    assert len(numbers(tmp_path)) == 1
    assert stat.S_IMODE((tmp_path / "journal").stat().st_mode) == 0o600


def test_a_journal_that_is_lost_while_it_is_compacted_is_written_anew(tmp_path, writer, monkeypatch):
    writer.SLACK = 3
    disk = Disk(monkeypatch, "prepare")
    for number in range(7):
        noted(writer, number)
    assert disk.reached.wait(30)
    writer._last.result(30)  # all seven are written
    (tmp_path / "journal").unlink()
    noted(writer, 7)
    disk.go.set()
    writer.flush()

    assert Journal(tmp_path / "journal").read() == [{"n": 7, "whole": True}]
    assert writer.renewals == 1


def test_a_look_writes_a_lost_journal_anew_and_touches_no_other(tmp_path, writer):
    noted(writer, 0)
    writer.check(lambda: pytest.fail("asked for all"))
    writer.flush()
    (tmp_path / "journal").unlink()

    writer.check(lambda: [{"n": 0}])
    writer.flush()

    assert numbers(tmp_path) == [0]
    assert (writer.renewals, writer.problem) == (1, "")


def test_a_directory_that_cannot_be_made_again_is_told_until_it_can(tmp_path):
    path = tmp_path / "state" / "journal"
    writer = JournalWriter(Journal(path))
    noted(writer, 0)
    writer.flush()
    shutil.rmtree(path.parent)
    path.parent.write_text("in the way")

    writer.check(lambda: [{"n": 0}])
    writer.flush()
    assert "cannot be written" in writer.problem
    path.parent.unlink()
    writer.check(lambda: [{"n": 0}])
    writer.flush()

    assert writer.problem == ""
    assert [entry["n"] for entry in Journal(path).read()] == [0]
    writer.close()


def test_a_disk_without_an_inode_left_keeps_the_longer_journal_and_shortens_it_once_it_has_one(tmp_path, writer):
    writer.SLACK = 3
    (tmp_path / ".journal.compact").mkdir()  # whatever is to be made beside the journal cannot be
    for number in range(20):
        noted(writer, number)
    writer.flush()
    assert numbers(tmp_path) == list(range(20))
    assert writer.problem == ""

    (tmp_path / ".journal.compact").rmdir()
    noted(writer, 20)
    writer.flush()

    assert numbers(tmp_path) == [20]
