"""HAMi 2.10's annotation of MIG instances: what the node reads of it, adds to it, and refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.errors import HamiError, RefusedError, WireError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.sdk import Partition, Placement, Profile
from vendors.nvidia.dynamic_mig import inject, names, register_profiles, reservations, wanted_reservations
from vendors.nvidia.rules import ALLOCATIONS
from vendors.nvidia.settings import NvidiaSettings

CARD, OTHER = "GPU-00000000-0000-4000-8000-000000000001", "GPU-00000000-0000-4000-8000-000000000002"


def entry(container: int = 0, device: int = 0, card: str = CARD, start: int = 6, **more: Any) -> dict[str, Any]:
    place = {"start": start, "size": 1}
    where = {"containerIndex": container, "deviceIndex": device, "gpuUUID": card}
    return {**where, "profile": "1g.5gb", "placement": place, **more}


def pod(*entries: dict[str, Any], text: str | None = None) -> PodView:
    containers = (ContainerView(name="first", init=True), ContainerView(name="main"))
    annotations = {ALLOCATIONS: json.dumps(entries, separators=(",", ":")) if text is None else text}
    return PodView(uid="u", namespace="ns", name="p", annotations=annotations, containers=containers)


def assigned(one: PodView, *cards: str, container: str = "main", mode: str = "mig") -> Assignment:
    found = one.container(container)
    assert found
    shares = tuple(
        Share(
            grant=Grant(uuid=card, device_type="NVIDIA"),
            device=Device(uuid=card, family="NVIDIA", index=at, model="A100", memory=1, minor=at, mode=mode),
        )
        for at, card in enumerate(cards)
    )
    return Assignment(pod=one, container=found, shares=shares)


def made(start: int = 6, **changes: Any) -> Partition:
    one = Partition(
        card=CARD,
        profile="1g.5gb",
        placement=Placement(start=start, size=1),
        uuid=f"MIG-{start}",
        ids={"gi": start + 7, "ci": 0},
    )
    return replace(one, **changes)


def test_init_containers_are_counted_first() -> None:
    found = reservations(pod(entry(0), entry(1, start=5)))

    assert [(one.container, one.placement.start, one.uuid) for one in found] == [("first", 6, ""), ("main", 5, "")]


def test_what_is_realised_is_read_back() -> None:
    told = {"migUUID": "MIG-6", "gpuInstanceID": 13, "computeInstanceID": 0}

    (one,) = reservations(pod(entry(1, **told)))
    assert (one.uuid, one.ids) == ("MIG-6", {"gi": 13, "ci": 0})


@pytest.mark.parametrize("text", ["{", '[{"containerIndex":9}]', json.dumps([entry(7)]), json.dumps([entry(-1)])])
def test_an_annotation_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(WireError):
        reservations(pod(text=text))


def test_a_container_gets_its_own_in_the_order_of_its_devices() -> None:
    one = pod(entry(1, 1, OTHER, 3), entry(0, 0), entry(1, 0, CARD, 5))

    assert [(each.device, each.card) for each in wanted_reservations(assigned(one, CARD, OTHER))] == [
        (0, CARD),
        (1, OTHER),
    ]


@pytest.mark.parametrize("cards", [(CARD, CARD), (OTHER,), ()])
def test_what_is_placed_must_be_what_is_granted(cards: tuple[str, ...]) -> None:
    with pytest.raises(RefusedError, match="places other instances"):
        wanted_reservations(assigned(pod(entry(1)), *cards))


def test_a_pod_whose_places_cannot_be_read_is_refused_for_that() -> None:
    with pytest.raises(RefusedError, match="JSON"):
        wanted_reservations(assigned(pod(text="{"), CARD))


def test_the_drivers_names_are_added_all_three_or_none_and_nothing_else_changes() -> None:
    one = pod(entry(0), entry(1, start=5), entry(1, 1, start=4))
    first, second, third = reservations(one)
    pairs = [(first, made()), (second, made(5, ids={"gi": 12})), (third, made(4, uuid=""))]
    told = json.loads(names(one, pairs)[ALLOCATIONS])

    assert told == [
        entry(0, migUUID="MIG-6", gpuInstanceID=13, computeInstanceID=0),
        entry(1, start=5),
        entry(1, 1, start=4),
    ]
    assert list(told[0]) == [*entry(0), "migUUID", "gpuInstanceID", "computeInstanceID"]


PROFILES = tuple(
    Profile(name=name, memory=memory, compute=compute, placements=(Placement(0, size),), limit=limit)
    for name, memory, compute, size, limit in (
        ("1g.5gb", 4864, 1, 1, 7),
        ("1g.5gb+me", 4864, 1, 1, 1),
        ("3g.20gb", 19968, 3, 4, 2),
        ("7g.40gb", 40192, 7, 8, 1),
    )
)
INFO = DeviceInfo(id=CARD, count=10, type="NVIDIA A100-SXM4-40GB", mode="mig", health=True)


@pytest.mark.parametrize(
    ("allowed", "found", "count"),
    [
        ([], ["1g.5gb", "3g.20gb", "7g.40gb"], 7),
        ([("A100", ["3g.20gb", "1g.5gb+me"])], ["3g.20gb", "1g.5gb+me"], 2),
        ([("H100", ["1g.10gb"]), ("A100-SXM4", ["7g.40gb"])], ["7g.40gb"], 1),
        ([("H100", ["1g.10gb"])], [], 0),
    ],
)
def test_the_register_names_the_profiles_of_the_list(
    allowed: list[tuple[str, list[str]]], found: list[str], count: int
) -> None:
    lists = [{"models": [model], "profiles": profiles} for model, profiles in allowed]
    settings = NvidiaSettings.model_validate({"operatingMode": "mig", "migProfileAllowlist": lists})
    info = register_profiles(settings, INFO, PROFILES)

    assert [one.name for one in info.mig_profiles] == found
    assert (info.count, info.health) == (count, bool(found))


def test_a_card_that_is_not_cut_is_registered_as_it_is() -> None:
    settings = NvidiaSettings.model_validate({"operatingMode": "mig", "cutDevices": {"index": [1]}})
    shared = replace(INFO, mode="hami-core")

    assert register_profiles(settings, shared, PROFILES) == shared


def test_a_container_that_was_granted_a_cut_card_and_a_shared_one_is_refused() -> None:
    one = assigned(pod(entry(1)), CARD)
    other = replace(one.shares[0], device=replace(one.shares[0].device, uuid="GPU-9", mode="hami-core"))

    with pytest.raises(RefusedError, match=r"MIG instances, and others.*nvidia.com/vgpu-mode"):
        wanted_reservations(replace(one, shares=(*one.shares, other)))


def test_a_profiles_cores_are_the_drivers_or_its_part_of_the_slices() -> None:
    settings = NvidiaSettings.model_validate({"operatingMode": "mig"})
    own = (replace(PROFILES[0], cores=13), *PROFILES[1:])

    assert [one.cores for one in register_profiles(settings, INFO, PROFILES).mig_profiles] == [15, 43, 100]
    assert register_profiles(settings, INFO, own).mig_profiles[0].cores == 13


def test_no_container_is_told_a_name_that_could_mean_something_else() -> None:
    settings = NvidiaSettings.model_validate({"operatingMode": "mig"})
    host = HostFiles(paths=HostPaths())

    with pytest.raises(HamiError, match="no container can be told"):
        inject(settings, settings.delivery, assigned(pod(entry(1)), CARD), [made(uuid="MIG-1,all")], host)


def test_an_instance_comes_with_every_control_node_of_a_driver_whose_root_is_not_seen_here(tmp_path: Path) -> None:
    proc, dev = tmp_path / "proc", tmp_path / "dev"
    (proc / "driver/nvidia-caps").mkdir(parents=True)
    (proc / "driver/nvidia-caps/mig-minors").write_text("gpu0/gi13/access 120\ngpu0/gi13/ci0/access 121\n")
    dev.mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"):
        (dev / name).touch()
    asked = {"operatingMode": "mig", "passDeviceSpecs": True, "procRoot": str(proc), "devRoot": "/not/seen/here/dev"}
    settings = NvidiaSettings.model_validate(asked)
    host = HostFiles(paths=HostPaths(dev=dev))

    given = inject(settings, settings.delivery, assigned(pod(entry(1)), CARD), [made()], host)

    control = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"]
    own = ["nvidia0", "nvidia-caps/nvidia-cap120", "nvidia-caps/nvidia-cap121"]
    assert [node.path for node in given.edits.device_nodes] == [f"/dev/{name}" for name in (*control, *own)]
