"""What a restart is told of devices that were not well."""

import json

import pytest

from hami_plugin.model.device import Fault, Health
from hami_plugin.node.memory import HealthMemory
from hami_plugin.policy.health import Condition

UNWELL = Condition(health=Health.UNHEALTHY, fault=Fault(reason="DeviceGone", message="no more"), since=3.0, looks=2)


def test_a_restart_knows_what_was_noted(tmp_path):
    HealthMemory(tmp_path / "health", "boot").note("acme", {"G0": UNWELL})

    (again,) = HealthMemory(tmp_path / "health", "boot").recall("acme").values()

    assert (again.health, again.fault, again.since, again.looks) == (Health.UNHEALTHY, UNWELL.fault, 3.0, 2)


def test_a_reboot_forgets(tmp_path):
    HealthMemory(tmp_path / "health", "boot").note("acme", {"G0": UNWELL})

    assert HealthMemory(tmp_path / "health", "another").recall("acme") == {}


def test_what_a_full_disk_did_not_take_is_written_once_it_does(tmp_path):
    path = tmp_path / "state" / "health"
    memory = HealthMemory(path, "boot")
    memory.note("acme", {"G0": UNWELL})  # there is no such directory
    path.parent.mkdir()

    memory.note("acme", {"G0": UNWELL})

    assert list(HealthMemory(path, "boot").recall("acme")) == ["G0"]


@pytest.mark.parametrize("text", ["{", "\xff", "[" * 100_000])
def test_a_file_that_cannot_be_read_is_told_of_and_begun_anew(tmp_path, text, capsys):
    (tmp_path / "health").write_bytes(text.encode("latin-1"))

    memory = HealthMemory(tmp_path / "health", "boot")

    assert memory.recall("acme") == {}
    assert "remembered health not read" in capsys.readouterr().out
    memory.note("acme", {"G0": UNWELL})
    assert list(HealthMemory(tmp_path / "health", "boot").recall("acme")) == ["G0"]


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"boot": "boot", "vendors": [1]}', '{"boot": "boot", "vendors": {"a": 1}}']
)
def test_a_file_of_another_shape_says_nothing(tmp_path, text):
    (tmp_path / "health").write_text(text)

    assert HealthMemory(tmp_path / "health", "boot").recall("a") == {}


def test_one_entry_of_another_shape_does_not_take_the_others_with_it(tmp_path):
    HealthMemory(tmp_path / "health", "boot").note("acme", {"G0": UNWELL, "G1": UNWELL})
    noted = json.loads((tmp_path / "health").read_text())
    noted["vendors"]["acme"]["G0"] = "unwell"
    (tmp_path / "health").write_text(json.dumps(noted))

    assert list(HealthMemory(tmp_path / "health", "boot").recall("acme")) == ["G1"]
