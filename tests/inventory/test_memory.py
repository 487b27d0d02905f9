"""What a restart is told of devices that were not well."""

import json
import os
import threading
from pathlib import Path

import pytest

from hami_plugin.host import files
from hami_plugin.inventory.health import Condition
from hami_plugin.inventory.inventory import HealthMemory
from hami_plugin.model.device import Fault, Health

MEMORIES = []


def memory_of(path, boot="boot") -> HealthMemory:
    """One that knows what is on file, once all that was noted so far is."""
    for memory in MEMORIES:
        assert memory.wait()
    MEMORIES.append(HealthMemory(path, boot))
    return MEMORIES[-1]


@pytest.fixture(autouse=True)
def _closed():
    yield
    for memory in MEMORIES:
        memory.close()
    MEMORIES.clear()


UNWELL = Condition(health=Health.UNHEALTHY, fault=Fault(reason="DeviceGone", message="no more"), since=3.0, looks=2)


def test_a_restart_knows_what_was_noted(tmp_path):
    memory_of(tmp_path / "health").note("acme", {"G0": UNWELL})

    (again,) = memory_of(tmp_path / "health").recall("acme").values()

    assert (again.health, again.fault, again.since, again.looks) == (Health.UNHEALTHY, UNWELL.fault, 3.0, 2)


def test_a_reboot_forgets(tmp_path):
    memory_of(tmp_path / "health").note("acme", {"G0": UNWELL})

    assert memory_of(tmp_path / "health", "another").recall("acme") == {}


def test_what_a_full_disk_did_not_take_is_written_once_it_does(tmp_path):
    path = tmp_path / "state" / "health"
    memory = memory_of(path)
    memory.note("acme", {"G0": UNWELL})  # there is no such directory
    assert memory.wait()
    assert "No such file" in memory.problem
    path.parent.mkdir()

    memory.note("acme", {"G0": UNWELL})

    assert list(memory_of(path).recall("acme")) == ["G0"]
    assert memory.problem == ""


@pytest.mark.parametrize("text", ["{", "\xff", "[" * 100_000, " " * (5 << 20)])
def test_a_file_that_cannot_be_read_is_told_of_and_begun_anew(tmp_path, text, capsys):
    (tmp_path / "health").write_bytes(text.encode("latin-1"))

    memory = memory_of(tmp_path / "health")

    assert memory.recall("acme") == {}
    assert "remembered health not read" in capsys.readouterr().out
    memory.note("acme", {"G0": UNWELL})
    assert list(memory_of(tmp_path / "health").recall("acme")) == ["G0"]


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"boot": "boot", "vendors": [1]}', '{"boot": "boot", "vendors": {"a": 1}}']
)
def test_a_file_of_another_shape_says_nothing(tmp_path, text):
    (tmp_path / "health").write_text(text)

    assert memory_of(tmp_path / "health").recall("a") == {}


@pytest.mark.parametrize("spoiled", ["unwell", {"since": 1e999}, {"looks": 1e999}, {"fault": 7}, {"since": "nan"}])
def test_one_entry_of_another_shape_does_not_take_the_others_with_it(tmp_path, spoiled):
    memory_of(tmp_path / "health").note("acme", {"G0": UNWELL, "G1": UNWELL})
    assert MEMORIES[0].wait()
    noted = json.loads((tmp_path / "health").read_text())
    devices = noted["vendors"]["acme"]
    devices["G0"] = {**devices["G0"], **spoiled} if isinstance(spoiled, dict) else spoiled
    (tmp_path / "health").write_text(json.dumps(noted).replace("Infinity", "1e999"))

    assert list(memory_of(tmp_path / "health").recall("acme")) == ["G1"]


def test_a_file_that_somebody_took_away_is_written_once_more(tmp_path):
    memory = memory_of(tmp_path / "health")
    memory.note("acme", {"G0": UNWELL})
    assert memory.wait()
    (tmp_path / "health").unlink()

    memory.check()

    assert list(memory_of(tmp_path / "health").recall("acme")) == ["G0"]


def test_noting_does_not_wait_for_the_disk_and_what_is_superseded_is_not_written(tmp_path, monkeypatch):
    written, go = [], threading.Event()

    def slow(path, text):
        go.wait(30)
        written.append(text)

    monkeypatch.setattr(files, "write_atomically", slow)
    memory = memory_of(tmp_path / "health")
    for number in range(1000):
        memory.note("acme", {f"G{number}": UNWELL})
    go.set()

    assert memory.wait()
    assert len(written) <= 2
    assert "G999" in written[-1]


def test_what_is_noted_is_on_the_disk_before_its_name_is(tmp_path, monkeypatch):
    flushed = []

    def fsync(file):
        flushed.append((str(Path(f"/proc/self/fd/{file}").readlink()), (tmp_path / "health").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    memory = memory_of(tmp_path / "health")
    memory.note("acme", {"G0": UNWELL})

    assert memory.wait()
    assert [existed for path, existed in flushed if path.startswith(str(tmp_path / ".health"))] == [False]
