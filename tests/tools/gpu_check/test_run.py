"""The whole check over simulated machines: nothing differs on an untouched one, and what a fault changes is named."""

import re
import subprocess
import sys
from importlib.resources import files

import pytest
import yaml

from tests.support.scale import spread
from vendors.nvidia.simulation.state import STATE, opened

ROOT_ONLY = "nvmlDeviceGetGpuInstancePossiblePlacements_v2:4"


@pytest.mark.parametrize(("profile", "cards"), spread([("dgx-h200", 8), ("dgx-h100", 8), ("t4-4-pcie", 4)], part=3))
def test_an_untouched_simulation_is_what_it_claims_to_be_and_stays_as_it_was(profile, cards, machine, check):
    simulator = machine(profile)
    state = simulator.directory / "state"
    before = state.read_bytes()

    result = check(simulator)

    assert result.status == 0, result.output
    assert state.read_bytes() == before, "the check leaves the machine as it was"
    assert result.report["result"] == "same"
    assert result.differing() == set()
    assert result.checks("not done") == []
    assert result.report["environment"]["cards"] == cards
    assert {c["area"] for c in result.checks("same")} >= {
        *("layout", "session", "refusals", "identity", "model", "memory", "place", "types", "links", "topology"),
        *("events", "health", "processes", "MIG", "discovery", "kubelet"),
    }


@pytest.mark.full
def test_an_h200_is_compared_number_by_number(machine, check):
    result = check(machine("dgx-h200"))

    (memory,) = result.checks("same", "memory", "total, MiB", card=0)
    (smallest,) = result.checks("same", "MIG", "profile 1g.18gb", card=0)
    (places,) = result.checks("same", "MIG", "profile 3g.71gb: placements", card=7)
    (ports,) = result.checks("same", "links", "port count as a field", card=3)
    assert memory["observed"] == 143771
    assert smallest["observed"] == {
        "id": 19,
        "memorySizeMB": 16384,
        "sliceCount": 1,
        "instanceCount": 7,
        "multiprocessorCount": 16,
        "copyEngineCount": 1,
        "decoderCount": 1,
        "encoderCount": 0,
        "jpegCount": 1,
        "ofaCount": 0,
    }
    assert places["observed"] == [[0, 4], [4, 4]]
    assert ports["observed"] == 18
    assert {link["label"] for link in result.report["snapshot"]["links"]} == {"NV18"}
    assert "NVIDIA H200  143771 MiB" in result.output
    assert "hami.io/node-nvidia-register" in result.output


@pytest.mark.full
def test_the_report_has_times_for_every_call_and_no_name_of_the_machine(machine, check):
    result = check(machine("t4-4-pcie"))

    calls = result.report["times"]["calls"]
    assert calls["nvmlEventSetWait_v2"]["calls"] >= 3
    assert all(0 < call["p50_us"] <= call["max_us"] and call["calls"] > 0 for call in calls.values())
    assert set(result.report["times"]["discovery_ms"]) == {"first look", "second look", "links"}
    assert set(result.report["times"]["kubelet_ms"]) == {"registration", "admission"}
    assert set(result.report["environment"]) == {
        *("models", "cards", "driver", "nvml", "cuda", "binding", "kernel", "architecture", "python"),
    }


@pytest.mark.full
def test_a_lost_card_differs_and_the_others_are_still_compared(machine, check):
    simulator = machine("dgx-h100")
    simulator.inject("lost", 3)

    result = check(simulator)

    assert result.status == 1
    assert result.checks("differs", "session", "handle", card=3)[0]["observed"] == {"refused": "GpuIsLost", "code": 15}
    assert result.checks("differs", "discovery", "fault", card=3)
    assert {card for _, card, _ in result.differing()} <= {3, None}
    assert result.checks("same", "memory", "total, MiB", card=4)
    assert result.checks("same", "kubelet", "allocatable")[0]["observed"] == 70
    assert "differs: session: handle (card 3)" in result.output


@pytest.mark.full
def test_a_call_that_fails_is_named_with_claim_and_observation(machine, check):
    simulator = machine("t4-4-pcie")
    simulator.inject("fail-call", 1, "nvmlDeviceGetMemoryInfo_v2:3")

    result = check(simulator)

    assert result.status == 1
    assert result.differing() >= {("memory", 1, "both structures"), ("memory", 1, "version 2 without its size")}
    assert all(card == 1 for _, card, _ in result.differing())
    assert "claimed:" in result.output


@pytest.mark.full
def test_a_missing_link_differs(machine, check):
    simulator = machine("dgx-h100")
    simulator.inject("asymmetric", 0)

    result = check(simulator)

    assert result.status == 1
    (up,) = result.checks("differs", "links", "ports that are up")
    assert (up["card"], up["expected"], up["observed"]) == (0, 18, 17)


@pytest.mark.full
def test_a_wait_that_does_not_wait_differs(machine, check):
    simulator = machine("t4-4-pcie")
    simulator.inject("fail-call", 0, "nvmlEventSetWait_v2:999")

    result = check(simulator)

    assert result.status == 1
    (wait,) = result.checks("differs", "events", "wait of 1000 ms")
    assert wait["observed"]["answer"] == {"refused": "Unknown", "code": 999}
    assert wait["expected"]["waited_ms"] == "at least 1000"
    assert result.checks("same", "events", "wait with no card registered")


@pytest.mark.full
def test_what_needs_root_is_not_done_and_no_difference(machine, check):
    simulator = machine("dgx-h200")
    simulator.inject("fail-call", None, ROOT_ONLY)

    result = check(simulator)

    assert result.status == 0
    assert {c["name"] for c in result.checks("not done")} == {c["name"] for c in result.checks("not done", "MIG")}
    assert result.checks("not done")[0]["why"].endswith("root")


@pytest.mark.full
def test_one_card_alone_has_a_topology_too(machine, check):
    simulator = machine("t4-4-pcie")
    for device in (1, 2, 3):
        simulator.inject("unplug", device)

    result = check(simulator)

    assert result.status == 0, result.output
    assert result.report["environment"]["cards"] == 1
    assert result.checks("same", "topology", "cards at level 50")[0]["observed"] == []
    assert result.checks("same", "topology", "level with itself")


@pytest.mark.full
def test_a_model_that_no_profile_has_is_described_and_no_difference(machine, check, tmp_path):
    profile = yaml.safe_load((_profiles() / "dgx-h200.yaml").read_text(encoding="utf-8"))
    for device in profile["devices"]:
        device["model"] = "NVIDIA Unheard-of"
    (tmp_path / "odd.yaml").write_text(yaml.safe_dump(profile), encoding="utf-8")

    result = check(machine(tmp_path / "odd.yaml"))

    assert result.status == 0, result.output
    (seen,) = result.checks("not applicable", "MIG", "profiles", card=0)
    assert seen["observed"]["0"]["name"] == "MIG 1g.18gb"
    assert seen["observed"]["0"]["placements"][0] == [0, 1]
    assert result.checks("not applicable", "memory", "total, MiB", card=0)[0]["observed"] == 143771


@pytest.mark.full
def test_a_card_in_mig_mode_is_an_administrators_choice(machine, check):
    simulator = machine("dgx-h200")
    _switch_mig_on(simulator, 2)

    result = check(simulator)

    assert result.status == 0, result.output
    assert result.checks("not applicable", "discovery", "fault", card=2)[0]["observed"] == "MigEnabled"
    assert result.checks("same", "processes", "utilization in MIG mode", card=2)
    assert result.checks("same", "kubelet", "allocatable")[0]["observed"] == 70


@pytest.mark.full
def test_the_instances_of_a_card_are_compared_with_its_table_and_the_kernels_files(machine, check):
    simulator = machine("a100-pcie-2-mig")

    result = check(simulator)

    assert result.status == 0, result.output
    assert len(result.checks("same", "MIG instances", "MIG devices by index", card=0)[0]["observed"]) == 4
    assert result.checks("same", "MIG instances", "places", card=0)[0]["observed"] == [[0, 2], [2, 1], [3, 1], [4, 4]]
    assert result.checks("same", "MIG instances", "3g.40gb at 4: number", card=0)[0]["observed"] == 2
    assert result.checks("not applicable", "MIG instances", "instances", card=1)
    simulator.inject("no-nodes", value=1)

    assert check(simulator).differing() == {
        ("MIG instances", 0, f"{name}: nodes")
        for name in ("3g.40gb at 4", "2g.20gb at 0", "1g.10gb at 2", "1g.10gb at 3")
    }


def _state(simulator):
    """What MIG has left of a card: its mode, its instances, their files."""
    with opened(simulator.directory / STATE) as state:
        cards = [
            (one.mig_current, one.mig_pending, sum(bool(gi.serial) for gi in one.gpu_instances))
            for one in state.devices
        ]
    return cards, sorted(path.name for path in (simulator.directory / "dev/nvidia-caps").glob("*"))


def test_changes_are_made_on_an_idle_card_and_undone(machine, check):
    simulator = machine("a100-pcie-2-mig")
    before = _state(simulator)

    result = check(simulator, "--mutate")

    assert result.status == 0, result.output
    changes = result.checks(area="MIG changes")
    assert {one["verdict"] for one in changes} == {"same"}
    assert {one["card"] for one in changes} == {1}
    assert len(changes) == 5 * 25 + 1
    assert result.report["times"]["calls"]["nvmlComputeInstanceDestroy"]["calls"] == 50
    assert _state(simulator) == before


@pytest.mark.full
def test_changes_that_fail_leave_the_card_as_it_was(machine, check):
    simulator = machine("a100-pcie-2-mig")
    before = _state(simulator)
    simulator.inject("fail-call", 1, "nvmlGpuInstanceCreateComputeInstance:999")

    result = check(simulator, "--mutate")

    assert result.status == 1
    assert {(area, card) for area, card, _ in result.differing()} == {("MIG changes", 1)}
    assert len(result.differing()) == 25
    assert _state(simulator) == before


@pytest.mark.full
def test_a_card_that_somebody_uses_is_not_changed(machine, check):
    simulator = machine("a100-pcie-2-mig")
    simulator.inject("process", 1, "4242:100")
    before = _state(simulator)

    result = check(simulator, "--mutate")

    assert result.status == 0, result.output
    (why,) = result.checks("not done", "MIG changes")
    assert "4 GPU instance(s)" in why["why"]
    assert "processes use the card: 4242" in why["why"]
    assert _state(simulator) == before


def test_without_a_library_the_status_is_three_and_the_remedy_is_named(check, tmp_path):
    result = check(None, "--nvml-library", str(tmp_path / "none.so"))

    assert result.status == 3
    assert result.report["unavailable"]["reason"] == "NoLibrary"
    assert result.report["unavailable"]["hint"] in result.output
    assert result.checks("same", "layout"), "what needs no driver is compared all the same"


@pytest.mark.full
def test_a_driver_that_was_replaced_while_loaded_is_three_too(machine, check):
    simulator = machine("t4-4-pcie")
    simulator.inject("mismatch")

    result = check(simulator)

    assert result.status == 3
    assert result.report["unavailable"]["reason"] == "VersionMismatch"


@pytest.mark.full
def test_a_card_that_hangs_ends_the_check_at_its_deadline_with_the_place(machine, check):
    simulator = machine("t4-4-pcie")
    simulator.inject("hang", 2)

    result = check(simulator, "--deadline", "10")

    assert result.status == 1
    assert re.search(r"Timeout.*vendors/nvidia/nvml\.py", result.errors, re.DOTALL)


def _profiles():
    return files("hami_plugin.simulation") / "profiles"


_MIG_ON = """
import ctypes, sys, pynvml
pynvml.nvmlLib = ctypes.CDLL(sys.argv[1])
pynvml.nvmlInit()
pynvml.nvmlDeviceSetMigMode(pynvml.nvmlDeviceGetHandleByIndex(int(sys.argv[2])), 1)
"""


def _switch_mig_on(simulator, device):
    library = simulator.settings()["nvmlLibrary"]
    subprocess.run([sys.executable, "-c", _MIG_ON, library, str(device)], check=True, timeout=30)
