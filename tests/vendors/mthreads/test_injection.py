"""What a container of Moore Threads receives, and what the scheduler and the kubelet are told of its devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.allocation.allocator import question_of
from hami_plugin.protocol.pods import decided_shares
from tests.support.rigs import golden, rig

S4000 = "mthreads-s4000-8"
GOLDEN = Path(__file__).parent / "golden"
VGPU, MEMORY, CORES = "mthreads.com/vgpu", "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core"


@pytest.mark.parametrize("way", ["device-specs", "cdi-cri"])
def test_a_pod_receives_whole_gpus(way: str, tmp_path: Path) -> None:
    machine = rig(S4000, tmp_path, deviceListStrategy=way)
    snapshot = machine.snapshot()
    pod = machine.decided(machine.node(snapshot), {VGPU: 2, MEMORY: 192, CORES: 32})

    golden(GOLDEN / f"two-gpus-{way}.json", machine.answer(pod, snapshot.devices))


def test_the_kubelet_counts_a_share_by_cards_cores_and_memory(tmp_path: Path) -> None:
    machine = rig(S4000, tmp_path, unlimitedShares=True)
    pod = machine.decided(machine.node(machine.snapshot()), {VGPU: 1, MEMORY: 32, CORES: 8})

    counted = {
        question.resource: [len(claim.devices) for claim in decided_shares(pod, question)]
        for question in (question_of(machine.family, units) for units in (None, *machine.family.resources.units))
    }

    assert counted == {VGPU: [1], CORES: [8], MEMORY: [32]}
