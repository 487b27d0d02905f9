"""The names of Helm values say what they mean, for every vendor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_plugin.config.load import Configuration, load
from hami_plugin.errors import ConfigError
from hami_plugin.sdk import load_vendor, vendor_names

SEED = {
    "nvidia": {
        "enabled": True,
        "splitCount": 10,
        "memoryScaling": 1.5,
        "coreScaling": 1.0,
        "migStrategy": "none",
        "computeMode": "Default",
        "driverRoot": "/run/nvidia/driver",
        "cdi": {"enabled": False, "vendor": "hami.io", "class": "gpu"},
    }
}


def shipped(folder: Path, vendors: dict[str, Any]) -> Configuration:
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump({"nodeName": "n", "vendors": vendors}))
    return load(
        config=file,
        device_config=None,
        node_config=None,
        overrides={},
        environment={},
        vendor_settings=lambda name: load_vendor(name).settings,
        vendor_names=vendor_names(),
    )


def test_a_name_is_taken_for_the_key_that_it_means(loading) -> None:
    acme = loading("vendors: {acme: {splitCount: 4, memoryScaling: 2}}\n").vendors["acme"]

    assert (acme.split, acme.scaling) == (4, 2.0)


def test_what_is_wrong_is_told_where_it_was_written(loading) -> None:
    assert loading.problems("vendors:\n  acme:\n    splitCount: 0\n") == (
        f"{loading.own}:3: vendors.acme.splitCount: 0: must be at least 1; the default is 10",
    )


def test_it_outranks_hamis_own_file_as_the_key_would(loading) -> None:
    configuration = loading("vendors: {acme: {splitCount: 4}}\n", device="acme: {deviceSplitCount: 7}")

    assert configuration.vendors["acme"].split == 4


def test_a_name_and_its_key_at_once_are_one_too_many(loading) -> None:
    (problem,) = loading.problems("vendors: {acme: {splitCount: 4, deviceSplitCount: 5}}\n")

    assert problem.startswith(f"{loading.own}:1: vendors.acme.splitCount: means the same as deviceSplitCount")


def test_a_vendor_whose_devices_are_not_shared_takes_the_number_one_and_no_other(loading) -> None:
    assert loading("vendors: {zeta: {splitCount: 1, memoryScaling: 1.0}}\n").vendors["zeta"].speed == 1
    (problem,) = loading.problems("vendors: {zeta: {splitCount: 4}}\n")
    assert problem == (
        f"{loading.own}:1: vendors.zeta.splitCount: 4: cannot be set for this vendor, "
        "where a whole device goes to one container; remove it"
    )


def test_what_a_disabled_vendor_would_not_serve_is_nobodys_matter(loading) -> None:
    acme, zeta = "{enabled: false, splitCount: 0, operatingMode: cut}", "{enabled: false, splitCount: 4}"
    own = f"vendors:\n  acme: {acme}\n  zeta: {zeta}\n"

    assert loading(own).vendors == {}
    assert loading(own).effective()["vendors"]["zeta"] == {"enabled": False, "speed": 1}


def test_a_vendor_that_another_layer_enables_is_checked_whole(loading) -> None:
    problems = loading.problems(
        "vendors: {zeta: {enabled: false, splitCount: 4}}\n", overrides={"vendors": {"zeta": {"enabled": True}}}
    )

    assert [problem.partition(": cannot")[0] for problem in problems] == [
        f"{loading.own}:1: vendors.zeta.splitCount: 4"
    ]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{enabled: false, splitcount: 4}", "splitcount: is not a known key"),
        ("{enabled: false, splitCount: many}", 'splitCount: "many": must be a whole number'),
        ("{enabled: false, coreScaling: [1]}", "coreScaling: [1]: must be a single value"),
        ("{enabled: false, filterDevices: 7}", "filterDevices: 7: must be a section of keys"),
    ],
)
def test_the_shape_of_a_disabled_vendors_section_is_looked_at(loading, section: str, said: str) -> None:
    (problem,) = loading.problems(f"vendors: {{acme: {section}}}\n")

    assert f"{loading.own}:1: vendors.acme.{said}" in problem


def test_the_example_of_hamis_documentation_is_a_configuration(tmp_path: Path) -> None:
    nvidia: Any = shipped(tmp_path, SEED).vendors["nvidia"]

    assert (nvidia.enabled, nvidia.device_split_count, nvidia.device_memory_scaling) == (True, 10, 1.5)
    assert str(nvidia.nvidia_driver_root) == "/run/nvidia/driver"


@pytest.mark.parametrize("vendor", vendor_names())
def test_every_vendor_takes_the_names(vendor: str, tmp_path: Path) -> None:
    any_number = {"splitCount": 4, "memoryScaling": 1.5, "coreScaling": 2}
    fixed = load_vendor(vendor).settings.fixed
    served = {name: one.value({}) for name, one in fixed.items() if one.value({}) is not None}

    assert shipped(tmp_path, {vendor: {"enabled": "auto", **served}}).vendors[vendor].enabled == "auto"
    assert vendor not in shipped(tmp_path, {vendor: {"enabled": False, **any_number}}).vendors


@pytest.mark.parametrize("strategy", ["none", "single", "mixed"])
def test_each_way_of_serving_mig_instances_is_taken(strategy: str, tmp_path: Path) -> None:
    nvidia: Any = shipped(tmp_path, {"nvidia": {"enabled": True, "migStrategy": strategy}}).vendors["nvidia"]

    assert nvidia.mig_strategy == strategy


def test_another_way_of_serving_mig_instances_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vendors\.nvidia\.migStrategy: .*'none', 'single' or 'mixed'"):
        shipped(tmp_path, {"nvidia": {"migStrategy": "double"}})
