"""A vendor made by ``listed_vendor``: what it is given decides what containers receive, and the rest is the usual."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.config.vendors import ToolSettings
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.model.views import PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import Context, Demand, idle_state
from hami_plugin.scheduler.engine.fit import Granted, fit
from hami_plugin.sdk import AnnotationKeys, Card, Family, Hardware, Resources, Vendor, listed_vendor, whole_devices
from hami_plugin.sdk.tools import parse_table
from hami_plugin.simulation.machines import load_machine

KEYS = AnnotationKeys.of_agent("acme")
UUIDS = ("acme.example/use-uuid", "acme.example/nouse-uuid")
HARDWARE = Hardware(title="Acme card", vendors=("1234",), module="acme", node="acme")


def family(device_type: str) -> Family:
    resources = Resources(device_type=device_type, count=f"acme.example/{device_type.lower()}")
    return Family.registered(resources, KEYS, whole_devices(device_type, resources.count, uuids=UUIDS))


def vendor(*families: str, **changed: Any) -> Vendor:
    facts: dict[str, Any] = {
        "families": lambda _settings: tuple(map(family, families or ("Acme",))),
        "list_cards": lambda _settings, _paths: [card(1), card(0)],
        "device_nodes": ("acme{}", "acme_control{}"),
        "env": lambda devices: {"ACME": ",".join(device.uuid for device in devices)},
    }
    return listed_vendor(
        name="acme",
        title="Acme cards",
        noun="CARD",
        settings=ToolSettings,
        hardware=HARDWARE,
        **{**facts, **changed},
    )


def card(index: int) -> Card:
    return Card(index=index, uuid=f"A-{index}", model="One", address=f"0000:0{index}:00.0", memory=1024)


def device(index: int) -> Device:
    return Device(uuid=f"A-{index}", family="Acme", index=index, minor=index, model="One", memory=1024)


@pytest.fixture
def settings(tmp_path: Path) -> ToolSettings:
    """Of a host with two cards on its bus, and their nodes."""
    driver = tmp_path / "sys/bus/pci/drivers/acme"
    driver.mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    for number in range(2):
        folder = tmp_path / f"sys/bus/pci/devices/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        for name, text in {"vendor": "0x1234", "device": "0x0001", "class": "0x120000", "numa_node": "1"}.items():
            (folder / name).write_text(f"{text}\n")
        (folder / "driver").symlink_to(driver)
        for node in ("acme", "acme_control"):
            (tmp_path / f"dev/{node}{number}").touch()
    return ToolSettings.model_validate(
        {"sysfsRoot": str(tmp_path / "sys"), "devRoot": str(tmp_path / "dev"), "driverFiles": [str(tmp_path / "sys")]}
    )


def paths_of(edits: Any) -> list[str]:
    return [node.path for node in edits.device_nodes]


def test_its_driver_finds_what_is_listed_and_its_family_is_the_only_one(settings: ToolSettings) -> None:
    made = vendor()
    assert made.open
    assert made.present(settings, HostPaths())

    found = made.open(settings, HostPaths()).discover()

    assert [(one.device.family, one.device.uuid, one.device.numa) for one in found.sightings] == [
        ("Acme", "A-0", 1),
        ("Acme", "A-1", 1),
    ]


def test_of_several_families_naming_says_which(settings: ToolSettings) -> None:
    paths = HostPaths(node="n1")
    unnamed = vendor("Acme", "Bolt")
    assert unnamed.open
    with pytest.raises(ValueError, match="acme has 2 families; naming has to say"):
        unnamed.open(settings, paths).discover()

    named = vendor("Acme", "Bolt", naming=lambda _settings, at, one: ("Bolt", f"{at.node}-{one.index}"))
    assert named.open
    found = named.open(settings, paths).discover()

    assert [(one.device.family, one.device.uuid) for one in found.sightings] == [("Bolt", "n1-0"), ("Bolt", "n1-1")]


def test_a_container_receives_nodes_driver_files_and_environment_in_the_order_of_the_cards(
    settings: ToolSettings, tmp_path: Path
) -> None:
    (tmp_path / "dev/acmectl").touch()
    made = vendor(control_nodes=("acmectl",), optional_nodes=("acmelink", "acme0"))
    node, host = made.families(settings)[0].node, HostFiles(paths=HostPaths())
    shares = tuple(
        Share(grant=Grant(uuid=f"A-{n}", device_type="Acme", memory=1024, cores=100), device=device(n)) for n in (1, 0)
    )
    assignment = Assignment(pod=PodView(uid="u", namespace="n", name="p"), container="c", shares=shares)

    assert paths_of(node.device_edits(device(1), host)) == ["/dev/acme1", "/dev/acme_control1"]
    assert paths_of(node.shared_edits(host)) == ["/dev/acmectl", "/dev/acme0"]
    assert [mount.host_path for mount in node.shared_edits(host).mounts] == [str(tmp_path / "sys")]
    assert node.inject(assignment, host).edits.env == {"ACME": "A-0,A-1"}


def test_a_node_that_every_card_needs_is_missed_by_name(settings: ToolSettings) -> None:
    node = vendor(control_nodes=("acmectl",)).families(settings)[0].node

    with pytest.raises(HamiError, match=r"the driver of Acme cards has no node .*acmectl"):
        node.shared_edits(HostFiles(paths=HostPaths()))


def test_the_vendor_changes_what_is_particular_of_its_node_side(settings: ToolSettings) -> None:
    made = vendor(node=lambda _settings, one, usual: replace(usual, absent=f"no {one.resources.device_type} here"))

    node = made.families(settings)[0].node

    assert node.absent == "no Acme here"
    registered = node.register(device(0), False)
    assert (registered.type, registered.vendor, registered.count, registered.devmem) == ("Acme", "Acme", 1, 1024)


@pytest.mark.parametrize(
    ("memory", "traits", "expected"),
    [
        ("32768 MiB", "2", (32768, 2, "")),
        ("N/A", "2", (0, None, "acme-smi: 'N/A' is not an amount of memory in MiB")),
        ("1 MiB", "?", (0, None, "acme-smi: invalid literal for int() with base 10: '?'")),
    ],
)
def test_a_card_of_which_a_number_cannot_be_read_is_known_and_in_trouble(
    memory: str, traits: str, expected: tuple[int, int | None, str]
) -> None:
    found = Card.of_row(
        "acme-smi", index=3, uuid="u", model="One", address="a", memory=memory, traits=lambda: int(traits)
    )

    assert (found.index, found.uuid, found.model, found.address) == (3, "u", "One", "a")
    assert (found.memory, found.traits, found.trouble) == expected


def test_a_row_of_a_table_has_all_columns_without_blanks() -> None:
    table = "name, memory [MiB], more\n One ,  5 MiB , x\nTwo\n"

    assert parse_table(table, ("name", "memory"), dict) == [
        {"name": "One", "memory": "5 MiB"},
        {"name": "Two", "memory": ""},
    ]


@pytest.mark.parametrize(("same_numa", "expected"), [(True, {"A-0", "A-2"}), (False, {"A-2", "A-3"})])
def test_several_whole_devices_are_of_one_numa_node_where_that_is_asked_for(
    same_numa: bool, expected: set[str]
) -> None:
    policy = whole_devices("Acme", "acme.example/card", uuids=UUIDS, same_numa=same_numa)

    assert chosen(policy, busy=1) == expected


@pytest.mark.parametrize(("booked", "taken"), [(True, (1024, 100)), (False, (0, 0))])
def test_a_whole_device_is_booked_with_its_memory_and_cores_or_alone(booked: bool, taken: tuple[int, int]) -> None:
    policy = whole_devices("Acme", "acme.example/card", uuids=UUIDS, booked=booked)

    outcome = fit(policy, [idle_state(info(0))], context(1))

    assert isinstance(outcome, Granted)
    assert [(grant.memory, grant.cores) for grant in outcome.grants] == [taken]


def chosen(policy: Any, busy: int) -> set[str]:
    """Two of four cards, in turns on two NUMA nodes, of which one is unwell."""
    outcome = fit(policy, [idle_state(info(n, health=n != busy)) for n in range(4)], context(2))
    return {grant.uuid for grant in outcome.grants} if isinstance(outcome, Granted) else set()


def context(count: int) -> Context:
    return Context(demand=Demand(device_type="Acme", count=count), pod=PodView(uid="u", namespace="n", name="p"))


def info(index: int, *, health: bool = True) -> DeviceInfo:
    return DeviceInfo(
        id=f"A-{index}", index=index, count=1, devmem=1024, devcore=100, type="Acme", numa=index % 2, health=health
    )


def test_a_vendor_without_a_simulation_says_so(tmp_path: Path) -> None:
    with pytest.raises(HamiError, match="Acme cards hardware cannot be simulated"):
        vendor().simulate(load_machine("dgx-h100"), tmp_path)
