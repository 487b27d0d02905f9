"""Does a daemon that was killed at any moment know what it has handed out?"""

import json
from dataclasses import replace

import pytest

from hami_plugin.host.files import Journal
from hami_plugin.node.ledger import Ledger
from tests.support.builders import COUNT, grant, held_by, ids, pod, uuid

A, B, C = pod("a"), pod("b"), pod("c")


def share(owner, *replicas, name="main", **changes):
    return held_by(owner, name, ids(*replicas), [grant(card) for card, _ in replicas], **changes)


def opened(path) -> Ledger:
    ledger = Ledger(Journal(path))
    ledger.load()
    return ledger


def hold(ledger, held):
    ledger.reserve(held)
    ledger.write(held)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


def test_a_restart_finds_every_field_again(path):
    ledger = opened(path)
    hold(ledger, share(A, (0, 1), (1, 2), init=True))
    hold(ledger, share(B, (2, 0)))
    ledger.settle([share(B).key])

    assert opened(path).held == ledger.held
    assert [held.settled for held in opened(path).held.values()] == [False, True]


def history(ledger):
    """Every kind of entry; yields after each."""
    hold(ledger, share(A, (0, 0)))
    yield
    hold(ledger, share(B, (1, 0)))
    yield
    ledger.settle([share(A).key])
    yield
    ledger.drop([share(B).key])
    yield
    hold(ledger, share(C, (1, 0), (2, 0)))
    yield
    hold(ledger, share(B, (0, 0), name="other"))
    yield
    ledger.drop([share(C).key])
    yield


def test_a_restart_knows_which_part_of_a_device_a_share_has(path):
    noted = replace(grant(0), notes={"units": [3, 4]})
    hold(opened(path), replace(share(A, (0, 0)), grants=(noted,)))

    (held,) = opened(path).held.values()

    assert held.grants[0].notes == {"units": [3, 4]}


def test_a_share_that_an_older_daemon_wrote_down_is_read(path):
    hold(opened(path), share(A, (0, 0)))
    path.write_text(path.read_text().replace(", null]", "]").replace(",null]", "]"))

    assert [held.grants for held in opened(path).held.values()] == [(grant(0),)]


def test_a_kill_between_any_two_entries_loses_nothing(path):
    ledger = opened(path)

    for _ in history(ledger):
        again = opened(path)
        assert again.held == ledger.held


def test_a_kill_within_any_entry_loses_that_entry_only(tmp_path, path):
    ledger = opened(path)
    states = [{}, *(dict(ledger.held) for _ in history(ledger))]
    text = path.read_bytes()

    for length in range(len(text)):
        torn = tmp_path / "torn"
        torn.write_bytes(text[:length])
        again = opened(torn)
        whole = text[:length].count(b"\n")
        # A line that only lacks its end is complete.
        assert again.held in (states[whole], states[min(whole + 1, len(states) - 1)])

        hold(again, share(pod("next"), (3, 3)))
        assert opened(torn).held == again.held
        torn.unlink()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "7",
        "\xff\xfe",
        '{"op":"hold"}',
        '{"op":"hold","uid":1}',
        '{"op":"drop","key":["a"]}',
        '{"op":"drop","key":7}',
        '{"op":"settled","key":["nobody","x","y"]}',
        '{"op":"lapsed","resource":"r"}',
        '{"op":"of a later version"}',
        '{"no":"op"}',
    ],
)
def test_an_entry_that_nobody_understands_is_passed_over(path, line):
    hold(opened(path), share(A, (0, 0)))
    with path.open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    hold(opened(path), share(B, (1, 0)))

    assert {held.pod for held in opened(path).held.values()} == {"a", "b"}


def test_the_journal_stays_short_however_many_pods_come_and_go(path):
    ledger = opened(path)
    hold(ledger, share(A, (0, 0)))
    hold(ledger, share(B, (3, 3)))
    ledger.drop([share(B).key])

    for n in range(2000):
        hold(ledger, share(pod(f"p{n}"), (1, 0)))
        ledger.drop([share(pod(f"p{n}")).key])

    assert len(path.read_text().splitlines()) < 1200
    assert opened(path).held == ledger.held


class Stingy(Journal):
    """A disk that refuses chosen operations."""

    refuses: tuple[str, ...] = ()

    def append(self, entry):
        if entry["op"] in self.refuses:
            raise OSError(28, "No space left on device")
        super().append(entry)

    def rewrite(self, entries):
        if "rewrite" in self.refuses:
            raise OSError(30, "Read-only file system")
        super().rewrite(entries)


def test_a_disk_that_refuses_says_so_to_whoever_must_not_answer(path):
    journal = Stingy(path)
    journal.refuses = ("hold",)

    with pytest.raises(OSError, match="No space"):
        hold(Ledger(journal), share(A, (0, 0)))


def test_a_disk_that_refuses_a_note_or_the_compaction_harms_nobody(path):
    journal = Stingy(path)
    journal.refuses = ("settled", "drop", "rewrite")
    ledger = Ledger(journal)
    ledger.SLACK = 0
    hold(ledger, share(A, (0, 0)))
    hold(ledger, share(B, (1, 0)))
    journal.lines = 100

    hold(ledger, share(C, (2, 0)))
    ledger.settle([share(A).key])
    ledger.drop([share(B).key])

    assert {held.pod for held in ledger.held.values()} == {"a", "c"}
    assert ledger.held[share(A).key].settled
    assert {held.pod for held in opened(path).held.values()} == {"a", "b", "c"}


def test_an_id_that_is_handed_out_anew_is_no_other_pods_any_more(path):
    ledger = opened(path)
    hold(ledger, share(A, (0, 0), (1, 0)))
    hold(ledger, share(B, (2, 0), resource="toy.io/other"))

    hold(ledger, share(C, (1, 0)))
    hold(ledger, share(C, (2, 0), name="second"))

    assert {(held.pod, held.resource) for held in ledger.held.values()} == {("b", "toy.io/other"), ("c", COUNT)}
    assert opened(path).held == ledger.held


def test_containers_of_one_pod_may_share_an_id_as_after_an_init_container(path):
    ledger = opened(path)
    hold(ledger, share(A, (0, 0), name="init", init=True))
    hold(ledger, share(A, (0, 0), name="main"))

    assert len(ledger.held) == 2


def test_the_journal_tells_nothing_but_names_ids_and_shares(path):
    hold(opened(path), share(A, (0, 0)))

    entry = json.loads(path.read_text())

    assert set(entry) == {"op", "uid", "namespace", "pod", "container", "resource", "ids", "grants", "init", "settled"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_it_tells_who_has_shares_of_a_device(path):
    ledger = opened(path)
    hold(ledger, share(A, (0, 1), (1, 2)))
    hold(ledger, share(B, (1, 0)))
    ledger.settle([share(A).key])
    owners = [[held.pod for held in ledger.on(uuid(card))] for card in range(3)]

    assert owners == [["a"], ["a", "b"], []]
    assert [held.settled for held in ledger.on(uuid(1))] == [True, False]
    assert [[held.pod for held in opened(path).on(uuid(card))] for card in range(3)] == owners


def test_shares_that_are_gone_or_became_others_are_on_no_device(path):
    ledger = opened(path)
    hold(ledger, share(A, (0, 1)))
    hold(ledger, share(B, (1, 1)))
    hold(ledger, share(B, (2, 1)))
    hold(ledger, share(C, (2, 1)))
    ledger.drop([share(A).key])

    assert [[held.pod for held in ledger.on(uuid(card))] for card in range(3)] == [[], [], ["c"]]


def test_what_no_scheduler_knows_of_is_remembered_as_such(path):
    ledger = opened(path)
    hold(ledger, share(A, (0, 1), undecided=True))
    hold(ledger, share(B, (1, 1)))

    assert [held.undecided for held in opened(path).held.values()] == [True, False]
