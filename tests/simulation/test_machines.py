from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.errors import ConfigError
from hami_plugin.simulation.machines import load_machine, machine_names


def test_all_packaged_machines_load_under_their_own_names() -> None:
    names = machine_names()

    assert len(names) >= 50
    assert list(names) == sorted(names)
    for name in names:
        assert load_machine(name).name == name


def test_a_profile_in_a_file_loads_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("id: mine\nvendor: acme\ndevices:\n- {index: 0, uuid: X-0, model: X, memory_mib: 1024}\n")

    for place in (file, str(file)):
        machine = load_machine(place)
        assert (machine.name, machine.vendor, machine.devices[0].memory) == ("mine", "acme", 1024)


def test_a_misspelt_name_is_answered_with_near_ones() -> None:
    with pytest.raises(ConfigError, match="no machine profile is named 'dgx-h10'; did you mean dgx-h100"):
        load_machine("dgx-h10")


def test_a_name_that_is_like_nothing_is_answered_with_all() -> None:
    with pytest.raises(ConfigError, match="choose from: a100-pcie-2-mig, a100-pcie-8-nvbridge"):
        load_machine("§§§")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        "id: x",
        "id: x\nvendor: y\ndevices: 3",
        "a: [",
        "[" * 5000,
        "id: x\nvendor: y\ndevices: []",
        "id: x\nvendor: y\ndevices: [{index: 0}]\np2p_level: [[X], [X]]",
        "id: x\nvendor: y\ndevices: [{index: 0}]\nfabric: [1]",
        "id: x\nvendor: y\ndevices: [{index: 0, memory_mib: .inf}]",
    ],
)
def test_a_file_that_is_no_profile_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=r"odd\.yaml"):
        load_machine(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        load_machine(tmp_path / "gone.yaml")


@pytest.mark.parametrize("numbers", [(1, 2), (1, 0), (0, 0), (0, 2)])
def test_a_profile_whose_devices_are_not_numbered_from_0_in_their_order_is_refused(
    numbers: tuple[int, int], tmp_path: Path
) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(f"id: x\nvendor: y\ndevices: [{{index: {numbers[0]}}}, {{index: {numbers[1]}}}]")
    told = f"index of the devices must be 0, 1 in this order, is {numbers[0]}, {numbers[1]}"

    with pytest.raises(ConfigError, match=rf"odd\.yaml: {told}"):
        load_machine(file)
