"""Hygon's node side: what sysfs and hy-smi show, what HAMi's scheduler makes of it, and what a container receives."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.errors import DriverReason, RefusedError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Action, Device
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.sdk import Injection
from hami_plugin.simulation.machines import load_machine, machine_names
from tests.support.rigs import Rig, absent_and_back, golden, kept_back_and_healed, lost_alone, rig
from vendors.hygon.driver import DCUS, Dcu, NumaNodes

PROFILES = [name for name in machine_names() if load_machine(name).vendor == "hygon"]
GOLDEN = Path(__file__).parent / "golden" / "hygon"


@pytest.mark.parametrize("profile", PROFILES)
def test_a_card_knows_its_nodes_and_its_compute_units(profile: str, tmp_path: Path) -> None:
    machine = rig(profile, tmp_path)

    snapshot = machine.snapshot()

    described = machine.machine.devices
    assert [device.traits for device in snapshot.devices] == [
        Dcu(card=one.extra["drm_card"], render=one.extra["drm_render"], compute_units=one.extra["compute_units"])
        for one in described
    ]


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


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("ecc", "MemoryEccUncorrected"), ("garbled", "DriverFailed"), ("no-node", "DeviceNodeMissing")],
)
def test_a_faulty_device_is_kept_back_and_heals(fault: str, reason: str, tmp_path: Path) -> None:
    machine = rig("hygon-k100ai-8", tmp_path)
    kept_back_and_healed(machine, fault, reason)


def test_memory_errors_ask_for_a_reset(tmp_path: Path) -> None:
    machine = rig("hygon-z100-4", tmp_path)
    machine.simulator.inject("ecc", 0, 17)

    fault = machine.driver.discover().sightings[0].fault

    assert fault
    assert (fault.action, fault.message) == (Action.RESET, "17 uncorrectable memory errors")


def test_a_card_that_falls_off_the_bus_leaves_the_others_their_numbers(tmp_path: Path) -> None:
    machine = rig("hygon-k100ai-8", tmp_path)
    lost_alone(machine, 0)


def test_a_card_that_never_told_its_name_is_a_problem_in_words(tmp_path: Path) -> None:
    machine = rig("hygon-z100-4", tmp_path)
    machine.simulator.inject("garbled", 1)

    discovery = machine.driver.discover()

    assert [sighting.device.index for sighting in discovery.sightings] == [0, 2, 3]
    assert discovery.problems[0].startswith("DCU 0000:26:00.0: invalid literal")


@pytest.mark.parametrize(
    ("fault", "reason"), [("driver-gone", DriverReason.NO_DRIVER), ("no-devices", DriverReason.NO_DEVICES)]
)
def test_an_absent_driver_has_a_reason_and_comes_back(fault: str, reason: DriverReason, tmp_path: Path) -> None:
    machine = rig("hygon-z100-4", tmp_path)
    before = machine.snapshot()

    absent_and_back(machine, fault, reason)

    assert machine.snapshot() == before


@pytest.mark.parametrize(("fault", "why"), [("tool-gone", "cannot be run"), ("tool-garbled", "printed no JSON")])
def test_without_the_tool_sysfs_is_believed_and_the_doubt_is_told(fault: str, why: str, tmp_path: Path) -> None:
    machine = rig("hygon-k100ai-8", tmp_path)
    machine.simulator.inject(fault)

    discovery = machine.driver.discover()

    assert {sighting.device.numa for sighting in discovery.sightings} == {0}
    assert why in discovery.problems[0]


def test_a_tool_that_hangs_is_given_up(tmp_path: Path) -> None:
    machine = rig("hygon-z100-4", tmp_path)
    machine.simulator.inject("tool-hangs")
    places = NumaNodes(machine.settings.hy_smi, deadline=0.2)

    assert places.numa(()) == {}
    assert places.problems == ()
    assert set(places.numa(DCUS.plugged(HostPaths().rooted(machine.settings))).values()) == {0}
    assert "not answered within 0.2 s" in places.problems[0]


def test_a_processors_own_functions_are_no_cards(tmp_path: Path) -> None:
    machine = rig("hygon-z100-4", tmp_path)
    bridge = tmp_path / "sys/bus/pci/devices/0000:00:01.0"
    bridge.mkdir()
    for name, text in {"vendor": "0x1d94", "device": "0x1450", "class": "0x060000"}.items():
        (bridge / name).write_text(f"{text}\n")

    assert len(machine.snapshot().devices) == 4
