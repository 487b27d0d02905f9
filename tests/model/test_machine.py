from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import hami_plugin.simulation
from hami_plugin.model.machine import machine

PROFILES = sorted((Path(hami_plugin.simulation.__file__).parent / "profiles").glob("*.yaml"))


def description(**changes: Any) -> dict[str, Any]:
    devices = [{"index": i, "uuid": f"GPU-{i}", "memory_mib": 1024, "sm_count": 80} for i in range(2)]
    return {"id": "two", "vendor": "v", "devices": devices, "stack": "x", **changes}


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_that_ships_is_a_consistent_machine(path: Path):
    found = machine(yaml.safe_load(path.read_text()))
    size = len(found.devices)

    assert found.name == path.stem
    assert size
    assert [device.index for device in found.devices] == list(range(size))
    for i in range(size):
        assert found.levels[i][i] == "X"
        assert found.lanes[i][i] == 0
        for j in range(size):
            assert found.levels[i][j] == found.levels[j][i]
            assert found.lanes[i][j] == found.lanes[j][i]


def test_what_a_profile_leaves_out_has_a_plain_meaning():
    found = machine(description())

    assert found.title == "two"
    assert found.levels == (("X", "SYS"), ("SYS", "X"))
    assert found.lanes == ((0, 0), (0, 0))
    assert (found.fabric, found.via_switch, found.numa_nodes) == ("", False, {})
    assert [(device.minor, device.numa) for device in found.devices] == [(0, -1), (1, -1)]


def test_a_vendors_own_keys_are_kept_apart():
    found = machine(description(fabric={"kind": "nvlink", "version": 2, "links": [[0, 1], [1, 0]]}))

    assert found.devices[0].extra == {"sm_count": 80}
    assert found.extra == {"stack": "x", "fabric_kind": "nvlink", "fabric_version": 2}
    assert found.lanes == ((0, 1), (1, 0))


def test_numa_nodes_are_read_with_their_cpus():
    found = machine(description(host={"numa_nodes": [{"id": 1, "cpus": "4-7"}]}))

    assert found.numa_nodes == {1: "4-7"}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"p2p_level": [["X"]]}, "p2p_level must be 2 rows of 2"),
        ({"p2p_level": [["X", "SYS"], ["SYS"]]}, "p2p_level must be 2 rows of 2"),
        ({"fabric": {"links": [[0, 1, 0]] * 3}}, r"fabric\.links must be 2 rows of 2"),
        ({"devices": [{"uuid": "no index"}]}, "not a machine profile.*index"),
        ({"devices": None}, "not a machine profile"),
    ],
)
def test_a_profile_that_does_not_fit_together_is_an_error(wrong: dict[str, Any], problem: str):
    with pytest.raises(ValueError, match=problem):
        machine(description(**wrong))


@pytest.mark.parametrize("key", ["id", "vendor", "devices"])
def test_a_profile_without_its_main_keys_is_an_error(key: str):
    with pytest.raises(ValueError, match=f"not a machine profile.*{key}"):
        machine({name: value for name, value in description().items() if name != key})
