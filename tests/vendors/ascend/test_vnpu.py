"""Virtual NPUs that are cut through DCMI: over the simulated library, and what is left when it fails at any call."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hami_plugin.errors import HamiError, RefusedError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.model.views import PodView
from hami_plugin.node_status.registration import Style, wanted_annotations
from hami_plugin.partitions.life import State
from hami_plugin.protocol.nodes import decode_json
from hami_plugin.sdk import NOWHERE, Cuttable, InUseError, NoRoomError, Partition, Placement, UnlistedCardsError
from tests.support.partition_lives import Lives
from tests.support.rigs import Rig, rig
from vendors.ascend import VENDOR
from vendors.ascend.dcmi import Dcmi, Unit, Vnpu
from vendors.ascend.rules import MODE, SOFT
from vendors.ascend.settings import AscendSettings, Chip
from vendors.ascend.vnpu import VnpuPartitions, names, reservations, sizes

SMALL, LARGE = "vir05_1c_16g", "vir10_3c_32g"
CALLS = ("list before", "create before", "create after", "destroy before", "destroy after")


@pytest.fixture
def found(tmp_path: Path) -> Rig:
    """Eight 910B3 in a host whose containers Ascend's runtime does not see."""
    one = rig("ascend-910b3-8", tmp_path / "machine", deviceListStrategy="device-specs")
    return replace(
        one, family=next(f for f in VENDOR.families(one.settings) if f.resources.device_type == "Ascend910B3")
    )


@pytest.fixture
def chip(found: Rig) -> Chip:
    assert isinstance(found.settings, AscendSettings)
    return next(one for one in found.settings.chips if one.device_type == "Ascend910B3")


@pytest.fixture
def driver(found: Rig, chip: Chip) -> VnpuPartitions:
    return VnpuPartitions(found.settings, chip, HostFiles(paths=HostPaths()))


@pytest.fixture
def card(found: Rig) -> str:
    return found.snapshot().devices[0].uuid


@pytest.fixture
def lives(driver: VnpuPartitions, card: str, tmp_path: Path) -> Lives:
    return Lives(driver=driver, path=tmp_path / "journal", card=card)


def nothing(_ids: object) -> None:
    pass


def test_what_is_made_is_listed_with_its_node_and_what_is_destroyed_is_not(
    found: Rig, driver: VnpuPartitions, card: str
) -> None:
    other = found.snapshot().devices[1].uuid
    steps: list[object] = []
    one, two = driver.create(card, SMALL, NOWHERE, steps.append), driver.create(other, LARGE, NOWHERE, steps.append)

    assert driver.partitions() == (one, two)
    assert driver.partitions(other) == (two,)
    assert (one.ids, two.ids) == ({"vnpu": 100}, {"vnpu": 116})
    assert steps == [one.ids, two.ids]
    assert (found.root / "dev/vdavinci100").exists()
    driver.destroy(one, nothing)
    assert driver.partitions() == (two,)
    assert not (found.root / "dev/vdavinci100").exists()
    driver.destroy(one, nothing)  # one that is gone is no error


def test_what_others_destroy_while_it_is_listed_is_left_out(
    driver: VnpuPartitions, card: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (driver.create(card, SMALL, NOWHERE, nothing) for _ in range(2))
    asked = Dcmi._vnpu

    def late(dcmi: Dcmi, unit: Unit, number: int) -> Vnpu:
        if number == one.ids["vnpu"]:
            dcmi.destroy(unit, number)
        return asked(dcmi, unit, number)

    monkeypatch.setattr(Dcmi, "_vnpu", late)

    assert driver.partitions() == (two,)


def test_a_chip_has_so_many_cores_cpus_and_mib_whoever_takes_them(
    found: Rig, driver: VnpuPartitions, card: str
) -> None:
    found.simulator.inject("vnpu", 0, LARGE)
    driver.create(card, SMALL, NOWHERE, nothing)

    with pytest.raises(NoRoomError, match="5 AI cores, 3 AI CPUs and 16384 MiB left"):
        driver.create(card, LARGE, NOWHERE, nothing)
    driver.create(card, SMALL, NOWHERE, nothing)


@pytest.mark.parametrize(("template", "place"), [("vir01", NOWHERE), (SMALL, Placement(start=0, size=5))])
def test_what_is_no_template_of_the_chip_is_not_asked_for(
    template: str, place: Placement, driver: VnpuPartitions, card: str
) -> None:
    with pytest.raises(HamiError, match="has no template"):
        driver.create(card, template, place, nothing)


def test_one_that_a_process_has_open_stays(found: Rig, driver: VnpuPartitions, card: str) -> None:
    made = driver.create(card, SMALL, NOWHERE, nothing)
    found.simulator.inject("vnpu-used", 0, 1)

    with pytest.raises(InUseError, match=r"has virtual NPU 100 of .* open"):
        driver.destroy(made, nothing)
    assert driver.partitions() == (made,)


def test_another_one_with_the_same_number_is_not_destroyed(driver: VnpuPartitions, card: str) -> None:
    made = driver.create(card, SMALL, NOWHERE, nothing)

    driver.destroy(replace(made, profile=LARGE, uuid=f"vnpu-100-{LARGE}"), nothing)
    assert driver.partitions() == (made,)


def test_one_whose_node_does_not_appear_is_destroyed_again(found: Rig, chip: Chip, card: str) -> None:
    nowhere = found.settings.model_copy(update={"dev_root": found.root / "elsewhere"})
    now = [0.0]

    def later(seconds: float) -> None:
        now[0] += seconds

    driver = VnpuPartitions(nowhere, chip, HostFiles(paths=HostPaths()), sleep=later, clock=lambda: now[0])
    steps: list[object] = []

    with pytest.raises(HamiError, match="has no node"):
        driver.create(card, SMALL, NOWHERE, steps.append)
    assert (driver.partitions(), steps) == ((), [{"vnpu": 100}, {}])


def test_an_npu_that_does_not_answer_hides_no_other(found: Rig, driver: VnpuPartitions, card: str) -> None:
    made = driver.create(card, SMALL, NOWHERE, nothing)
    found.simulator.inject("order", value="list before")

    with pytest.raises(UnlistedCardsError) as caught:
        driver.partitions()
    assert caught.value.cards == (card,)
    assert driver.partitions() == (made,)


@pytest.mark.parametrize("call", CALLS)
def test_a_failure_at_any_call_leaves_nothing_that_is_not_known(call: str, found: Rig, lives: Lives, card: str) -> None:
    found.simulator.inject("vnpu", 0, SMALL)
    (foreign,) = lives.driver.partitions()
    kept = lives.allocate("kept", SMALL)
    found.simulator.inject("order", value=call)
    with suppress(HamiError):
        lives.allocate("a", LARGE)
    lives.living.discard("a")
    lives.settle()

    assert {part.uuid for part in lives.driver.partitions()} == {foreign.uuid, kept.uuid}
    assert {state for state, _part in lives.known()} == {State.FOREIGN, State.ASSIGNED}
    lives.allocate("b", LARGE)


@pytest.mark.parametrize("call", CALLS)
def test_the_next_life_finds_what_the_last_one_has_left(call: str, found: Rig, lives: Lives) -> None:
    kept, ended = lives.allocate("kept", SMALL), lives.allocate("ended", SMALL)
    found.simulator.inject("order", value=call)
    lives.living.discard("ended")
    with suppress(HamiError):
        lives.allocate("b", LARGE)
    lives.living.discard("b")
    lives.restart()
    lives.settle()

    assert ended not in lives.driver.partitions()
    assert lives.driver.partitions() == (kept,)


def told(found: Rig, **cuttable: Cuttable) -> dict[str, tuple[int, int, int]]:
    devices = found.snapshot().devices
    by_card = {devices[int(number[1:])].uuid: one for number, one in cuttable.items()}
    written = wanted_annotations(found.family, found.snapshot(), Style(), cuttable=by_card)
    infos = decode_json(written["hami.io/node-register-Ascend910B3"] or "[]")
    return {f"c{info.index}": (info.count, info.devmem, info.devcore) for info in infos}


def test_the_register_is_without_what_no_scheduler_counts(found: Rig, card: str) -> None:
    foreign = Partition(card=card, profile=LARGE, placement=NOWHERE, uuid="u")

    registered = told(found, c0=Cuttable(blocked=(foreign,)))
    assert (registered["c0"], registered["c1"]) == ((3, 32768, 10), (4, 65536, 20))


def test_a_template_that_is_not_configured_takes_what_its_name_says(chip: Chip) -> None:
    assert sizes(chip, "vir10_4c_16g_m") == (10, 4, 32768)
    assert sizes(chip, "?") == (20, 7, 65536)


def decided(found: Rig, memory: int) -> PodView:
    limits = {"huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": memory}
    return found.decided(found.node(found.snapshot()), limits)


def test_what_a_pod_has_is_told_and_read_again(found: Rig, chip: Chip) -> None:
    pod = decided(found, 16384)
    (one,) = reservations(chip, pod)
    made = Partition(card=one.card, profile=SMALL, placement=NOWHERE, uuid=f"vnpu-100-{SMALL}", ids={"vnpu": 100})
    told = names(chip, pod, [(one, made)])

    assert (one.profile, one.uuid) == (SMALL, "")
    assert {key: json.loads(text) for key, text in told.items()} == {
        "hami-plugin.io/vnpus-Ascend910B3": {"main": {"id": 100, "uuid": f"vnpu-100-{SMALL}"}}
    }
    (again,) = reservations(chip, replace(pod, annotations={**pod.annotations, **told}))
    assert (again.profile, again.uuid, again.ids) == (SMALL, made.uuid, {"vnpu": 100})


def test_whole_npus_and_shares_of_hami_core_are_not_cut(found: Rig, chip: Chip) -> None:
    part = decided(found, 16384)

    assert reservations(chip, decided(found, 65536)) == []
    assert reservations(chip, part) != []
    assert reservations(chip, replace(part, annotations={**part.annotations, MODE: SOFT})) == []


def assignment(found: Rig, *memory: int) -> Assignment:
    devices, pod = found.snapshot().devices, decided(found, 16384)
    grants = [Grant(uuid=devices[at].uuid, device_type="Ascend910B3", memory=mib) for at, mib in enumerate(memory)]
    shares = tuple(Share(grant=one, device=devices[at]) for at, one in enumerate(grants))
    return Assignment(pod=pod, container=pod.containers[0], shares=shares)


def test_a_container_has_its_virtual_npu_under_the_name_that_programs_look_for(
    found: Rig, driver: VnpuPartitions, card: str
) -> None:
    side, host = found.family.node.partitions, HostFiles(paths=HostPaths())
    assert side
    (one,) = side.wanted(assignment(found, 16384))
    made = driver.create(one.card, one.profile, one.placement, nothing)
    edits = side.inject(assignment(found, 16384), [made], host).edits

    nodes = {node.path: node.source for node in edits.device_nodes}
    assert nodes["/dev/davinci100"] == str(found.root / "dev/vdavinci100")
    assert not [path for path in nodes if path in ("/dev/davinci0", "/dev/vdavinci100")]
    assert "/dev/davinci_manager" in nodes
    assert edits.env["ASCEND_VISIBLE_DEVICES"] == "void"


def test_parts_of_several_npus_are_refused(found: Rig) -> None:
    side = found.family.node.partitions
    assert side
    with pytest.raises(RefusedError, match="parts of 2 NPUs"):
        side.wanted(assignment(found, 16384, 16384))


@pytest.mark.parametrize(("ways", "cut"), [("envvar", False), ("cdi-annotations", True), ("envvar,cdi-cri", True)])
def test_where_only_ascends_runtime_has_a_say_it_cuts(ways: str, cut: bool, tmp_path: Path) -> None:
    one = rig("ascend-910b3-8", tmp_path, deviceListStrategy=ways)
    node = next(f for f in VENDOR.families(one.settings) if f.resources.device_type == "Ascend910B3").node

    assert (node.partitions is not None, node.whole_only) == (cut, "")
