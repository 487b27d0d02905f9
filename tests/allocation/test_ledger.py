"""Does a daemon that was killed at any moment know what it has handed out?"""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_plugin.allocation.ledger import Journal, JournalWriter, Ledger
from tests.support.builders import COUNT, grant, held_by, ids, pod, uuid
from tests.support.scale import spread

A, B, C = pod("a"), pod("b"), pod("c")


def share(owner, *replicas, name="main", **changes):
    return held_by(owner, name, ids(*replicas), [grant(card) for card, _ in replicas], **changes)


def opened(path, kind=Journal) -> Ledger:
    """A ledger over what is on file, once all that was noted so far is."""
    for ledger in OPEN:
        ledger._journal.flush()
    ledger = Ledger(JournalWriter(kind(path)))
    ledger.load()
    OPEN.append(ledger)
    return ledger


OPEN = []


@pytest.fixture(autouse=True)
def _closed():
    yield
    _close()


def _close():
    for ledger in OPEN:
        ledger._journal.close()
    OPEN.clear()


def hold(ledger, held):
    ledger.reserve(held)
    ledger.write(held)
    ledger._journal.flush()


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

    for length in spread(range(len(text)), part=7):
        torn = tmp_path / "torn"
        torn.write_bytes(text[:length])
        again = opened(torn)
        whole = text[:length].count(b"\n")
        # A line that only lacks its end is complete.
        assert again.held in (states[whole], states[min(whole + 1, len(states) - 1)])

        hold(again, share(pod("next"), (3, 3)))
        assert opened(torn).held == again.held
        torn.unlink()
        _close()


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
        (
            '{"op":"hold","uid":"u","namespace":"n","pod":"p","container":"c","resource":"r","ids":[],'
            '"grants":[["u","w",1e999,0,null]],"init":false,"settled":false}'
        ),
        "[" * 5000,
        '{"op":' * 5000,
        '{"op":"drop","key":["\\ud800","c","r"]}',
        '{"op":"hold","uid":"' + "u" * 2_000_000 + '"}',
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

    ledger._journal.flush()
    assert len(path.read_text().splitlines()) < 1200
    assert opened(path).held == ledger.held


class Stingy(Journal):
    """A disk that refuses chosen operations."""

    refuses: tuple[str, ...] = ()

    def append(self, entry, whole=None):
        if entry["op"] in self.refuses:
            raise OSError(28, "No space left on device")
        return super().append(entry, whole)

    def prepare(self, entries):
        if "rewrite" in self.refuses:
            raise OSError(30, "Read-only file system")
        return super().prepare(entries)


@pytest.mark.scenario("A13")
async def test_a_disk_that_refuses_says_so_to_whoever_must_not_answer(path):
    ledger = opened(path, Stingy)
    ledger._journal._journal.refuses = ("hold",)

    hold(ledger, share(A, (0, 0)))

    with pytest.raises(OSError, match="No space"):
        await ledger.written()
    assert "No space" in ledger.problem


def test_a_disk_that_refuses_a_note_or_the_compaction_harms_nobody(path):
    ledger = opened(path, Stingy)
    ledger._journal._journal.refuses = ("settled", "drop", "rewrite")
    ledger._journal.SLACK = 0
    hold(ledger, share(A, (0, 0)))
    hold(ledger, share(B, (1, 0)))
    ledger._journal._journal.lines = 100

    hold(ledger, share(C, (2, 0)))
    ledger.settle([share(A).key])
    ledger.drop([share(B).key])

    assert {held.pod for held in ledger.held.values()} == {"a", "c"}
    assert ledger.held[share(A).key].settled
    assert {held.pod for held in opened(path).held.values()} == {"a", "b", "c"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["1e999", "a" * 5000]),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_no_value_in_an_entry_ends_the_start_or_takes_another_share_along(tmp_path, data):
    entry = {
        "op": "hold", "uid": "u", "namespace": "n", "pod": "odd", "container": "c", "resource": COUNT,
        "ids": ids((2, 0)), "grants": [[uuid(2), "TOY", 1, 1, None]], "init": False, "settled": False,
    }  # fmt: skip
    spoiled = data.draw(st.sampled_from(["op", "uid", "pod", "ids", "grants", "init", "memory", "notes", "key"]))
    value = data.draw(JSON)
    match spoiled:
        case "memory":
            entry["grants"][0][2] = value
        case "notes":
            entry["grants"][0][4] = value
        case "key":
            entry |= {"op": "drop", "key": value}
        case _:
            entry[spoiled] = value
    path = tmp_path / "spoiled"
    path.unlink(missing_ok=True)
    hold(opened(path), share(A, (0, 0)))
    with path.open("a") as file:
        file.write(json.dumps(entry).replace('"1e999"', "1e999") + "\n")
    hold(opened(path), share(B, (1, 0)))

    found = opened(path).held.values()

    assert {"a", "b"} <= {held.pod for held in found}
    assert all(isinstance(grant.memory, int) and 0 <= grant.memory < 2**64 for one in found for grant in one.grants)
    _close()


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
    owners = [[held.pod for held in ledger.held.on(uuid(card))] for card in range(3)]

    assert owners == [["a"], ["a", "b"], []]
    assert [held.settled for held in ledger.held.on(uuid(1))] == [True, False]
    assert [[held.pod for held in opened(path).held.on(uuid(card))] for card in range(3)] == owners


def test_shares_that_are_gone_or_became_others_are_on_no_device(path):
    ledger = opened(path)
    hold(ledger, share(A, (0, 1)))
    hold(ledger, share(B, (1, 1)))
    hold(ledger, share(B, (2, 1)))
    hold(ledger, share(C, (2, 1)))
    ledger.drop([share(A).key])

    assert [[held.pod for held in ledger.held.on(uuid(card))] for card in range(3)] == [[], [], ["c"]]


def test_what_no_scheduler_knows_of_is_remembered_as_such(path):
    ledger = opened(path)
    hold(ledger, share(A, (0, 1), undecided=True))
    hold(ledger, share(B, (1, 1)))

    assert [held.undecided for held in opened(path).held.values()] == [True, False]
