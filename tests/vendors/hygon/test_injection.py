"""What a container of Hygon receives, and what the scheduler and the kubelet are told of its devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.errors import RefusedError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.sdk import Injection
from tests.support.rigs import Rig, golden, rig

GOLDEN = Path(__file__).parent / "golden"
DCU, MEMORY, CORES = "hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"


def test_a_pod_receives_two_whole_cards(tmp_path: Path) -> None:
    machine = rig("hygon-k100ai-8", tmp_path)
    snapshot = machine.snapshot()
    pod = machine.decided(machine.node(snapshot), {"hygon.com/dcunum": 2})

    golden(GOLDEN / "two-whole.json", machine.answer(pod, snapshot.devices))


def test_a_runtime_that_reads_cdi_is_told_the_names(tmp_path: Path) -> None:
    machine = rig("hygon-z100-4", tmp_path, deviceListStrategy="cdi-annotations,cdi-cri")

    golden(GOLDEN / "part-cdi.json", machine.received({"hygon.com/dcunum": 1, "hygon.com/dcumem": 4000}))


class Node:
    """A machine, and who has which parts of its cards, as the ledger would tell."""

    def __init__(self, machine: Rig, root: Path) -> None:
        self.machine = machine
        self.host = HostFiles(paths=HostPaths(hook=root / "hook", hook_view=root / "hook"))
        self.held: dict[str, Grant] = {}

    def give(self, name: str, device: Device, cores: int, memory: int = 4096) -> Injection:
        others = [grant for grant in self.held.values() if grant.uuid == device.uuid]
        asked = Grant(uuid=device.uuid, device_type="DCU", memory=memory, cores=cores)
        grant = self.machine.family.node.place(asked, device, others)
        container = ContainerView(name="main")
        pod = PodView(uid=f"{name}-uid", namespace="default", name=name, containers=(container,))
        shares = (Share(grant=grant, device=device),)
        injection = self.machine.family.node.inject(Assignment(pod=pod, container=container, shares=shares), self.host)
        self.held[name] = grant
        return injection


def lines(injection: Injection, device_type: str) -> list[str]:
    (text,) = injection.files.values()
    return [value for key, _, value in (line.partition(": ") for line in text.splitlines()) if key == device_type]


@pytest.mark.parametrize("later", [30, 70])
def test_parts_of_one_card_share_no_compute_unit_or_number(later: int, tmp_path: Path) -> None:
    node = Node(rig("hygon-k100ai-8", tmp_path), tmp_path)
    one, other = node.machine.snapshot().devices[:2]

    a, b, c = node.give("a", one, 30), node.give("b", one, later), node.give("c", other, 30)

    assert lines(a, "cu_mask") == ["0x0000000fffffffff", "0x0000000000000000"]
    low, high = (int(mask, 16) for mask in lines(b, "cu_mask"))
    assert low | high << 64 == ((1 << 120 * later // 100) - 1) << 36
    assert lines(c, "cu_mask") == lines(a, "cu_mask")
    assert [lines(one, "vdev_id") + lines(one, "pipe_id") for one in (a, b, c)] == [["0", "0"], ["1", "1"], ["20", "0"]]
    assert lines(b, "cu_count") == [str(120 * later // 100)]


def test_a_part_says_its_card_and_its_memory(tmp_path: Path) -> None:
    node = Node(rig("hygon-k100ai-8", tmp_path), tmp_path)

    injection = node.give("a", node.machine.snapshot().devices[3], 60, 2000)

    (file,) = injection.files
    assert file == tmp_path / "hook/vgpu/dcu/a-uid_main/vdev60.conf"
    assert injection.directories == (file.parent,)
    golden(GOLDEN / "vdev.json", injection.files[file].splitlines())


@pytest.mark.parametrize(("uid", "container"), [("../../etc", "main"), ("", "main"), ("u", "../../etc"), ("u", "")])
@pytest.mark.scenario("X4")
def test_no_forged_name_leads_out_of_its_folder(uid: str, container: str, tmp_path: Path) -> None:
    node = Node(rig("hygon-k100ai-8", tmp_path), tmp_path)
    device = node.machine.snapshot().devices[0]
    grant = node.machine.family.node.place(
        Grant(uuid=device.uuid, device_type="DCU", memory=4096, cores=30), device, []
    )
    view = ContainerView(name=container)
    pod = PodView(uid=uid, namespace="default", name="forged", containers=(view,))

    with pytest.raises(RefusedError, match="is no pod UID or container name of Kubernetes"):
        node.machine.family.node.inject(
            Assignment(pod=pod, container=view, shares=(Share(grant=grant, device=device),)), node.host
        )


def test_parts_of_containers_that_are_gone_are_free_again(tmp_path: Path) -> None:
    node = Node(rig("hygon-k100ai-8", tmp_path), tmp_path)
    device = node.machine.snapshot().devices[0]
    first = node.give("a", device, 60)
    node.give("b", device, 30)
    del node.held["a"]

    again = node.give("c", device, 60)

    assert [lines(again, key) for key in ("cu_mask", "pipe_id")] == [
        lines(first, key) for key in ("cu_mask", "pipe_id")
    ]


def test_no_limit_of_cores_is_all_of_them_and_takes_none_away(tmp_path: Path) -> None:
    node = Node(rig("hygon-z100-4", tmp_path), tmp_path)
    device = node.machine.snapshot().devices[0]

    assert lines(node.give("a", device, 0), "cu_count") == ["60"]
    assert lines(node.give("b", device, 50), "cu_mask")[0] == "0x000000003fffffff"


def test_units_are_shared_by_as_few_as_can_be_while_somebody_is_still_leaving(tmp_path: Path) -> None:
    node = Node(rig("hygon-z100-4", tmp_path), tmp_path)
    device = node.machine.snapshot().devices[0]
    node.give("a", device, 70)

    assert lines(node.give("b", device, 50), "cu_mask")[0] == "0x0ffffc0000000fff"


def test_a_part_is_refused_where_it_could_not_be_enforced(tmp_path: Path) -> None:
    node = Node(rig("hygon-z100-4", tmp_path), tmp_path)
    device = node.machine.snapshot().devices[0]
    (tmp_path / "opt/hygondriver").rename(tmp_path / "opt/elsewhere")

    with pytest.raises(RefusedError, match="could use the whole DCU"):
        node.give("a", device, 30)
    assert node.give("a", device, 100, device.memory).files == {}


def test_a_card_that_does_not_tell_its_compute_units_is_handed_out_whole_only(tmp_path: Path) -> None:
    node = Node(rig("hygon-z100-4", tmp_path), tmp_path)
    for file in (tmp_path / "sys/class/kfd").rglob("properties"):
        file.unlink()
    device = node.machine.snapshot().devices[0]

    with pytest.raises(RefusedError, match="how many compute units DCU-TZZZ0000 has"):
        node.give("a", device, 30)


def test_a_part_of_the_memory_can_be_kept_back(tmp_path: Path) -> None:
    node = Node(rig("hygon-z100-4", tmp_path, memoryScaling=0.5, splitCount=8), tmp_path)
    device = node.machine.snapshot().devices[0]

    info = node.machine.family.node.register(device, False)

    assert (info.devmem, info.count) == (8184, 8)
    assert node.give("a", device, 100, 8184).files == {}


def test_parts_of_several_cards_are_refused_at_scheduling_and_by_the_node(tmp_path: Path) -> None:
    node = Node(rig("hygon-z100-4", tmp_path), tmp_path)
    snapshot = node.machine.snapshot()
    told = node.machine.node(snapshot)

    assert node.machine.refused(told, {DCU: 2, MEMORY: 4000}) == "4/4 CardServedWholeOnly"
    assert node.machine.refused(told, {DCU: 2, CORES: 30}) == "4/4 CardServedWholeOnly"
    assert node.machine.refused(told, {DCU: 1, MEMORY: 4000}) == node.machine.refused(told, {DCU: 2}) == ""
    shares = tuple(
        Share(grant=Grant(uuid=one.uuid, device_type="DCU", memory=4000, cores=100), device=one)
        for one in snapshot.devices[:2]
    )
    who = PodView(uid="u", namespace="default", name="p", containers=(ContainerView(name="main"),))
    with pytest.raises(RefusedError, match="a part of one DCU only"):
        node.machine.family.node.inject(Assignment(pod=who, container=who.containers[0], shares=shares), node.host)


def test_the_folder_of_a_part_is_one_that_goes_with_its_pod(tmp_path: Path) -> None:
    node = Node(rig("hygon-z100-4", tmp_path), tmp_path)
    side = node.machine.family.node

    (folder,) = node.give("a", node.machine.snapshot().devices[0], 30).directories
    assert side.folders
    assert folder.parent == side.folders(node.host.paths)
    assert folder.name == "a-uid_main"
