"""Specs for people: of simulated machines, and what a runtime makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hami_plugin.cli.cdi import configured_directories, family_specs, full_name, runtime_view
from hami_plugin.errors import ConfigError, HamiError

KIND = "k8s.device-plugin.nvidia.com/gpu"


def options(**given: Any) -> dict[str, Any]:
    known = ("config", "device_config", "node_config", "nvml_library", "simulate", "simulation_dir")
    return {**dict.fromkeys(known), **given}


def test_each_family_is_described_as_the_daemon_would(tmp_path: Path) -> None:
    (one,) = family_specs(options(simulate="hgx-a100-4gpu", simulation_dir=tmp_path), {})

    assert str(one.spec.kind) == KIND
    assert one.problems == ()
    assert one.file == "hami-plugin_k8s.device-plugin.nvidia.com-gpu.json"
    assert one.text(".yaml").startswith('cdiVersion: "')
    assert any("libraries" in line for line in one.explained())


def test_the_configuration_decides_under_which_kind(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("vendors: {nvidia: {cdi: {vendor: example.com, class: card}}}")

    (one,) = family_specs(options(simulate="hgx-a100-4gpu", simulation_dir=tmp_path / "machine", config=config), {})

    assert str(one.spec.kind) == "example.com/card"


def test_a_machine_without_devices_is_an_error_with_every_vendors_reason(tmp_path: Path) -> None:
    with pytest.raises(HamiError, match=r"no devices to describe\. NVIDIA GPUs: NoLibrary"):
        list(family_specs(options(nvml_library=tmp_path / "absent.so"), {}))


def test_a_view_of_specs_sees_no_directory(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    specs = list(family_specs(options(simulate="hgx-a100-4gpu", simulation_dir=tmp_path / "machine"), {}))

    assert runtime_view([tmp_path]).problems
    found = runtime_view([tmp_path], specs)
    assert found.problems == ()
    assert {name.device for name in found.names} >= {"0", "3", "all"}
    assert full_name("3", found) == f"{KIND}=3"
    assert full_name("4", found) == "4"
    assert full_name(f"{KIND}=4", found) == f"{KIND}=4"


def test_the_directories_are_the_configurations(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("cdiDirs: [/opt/cdi]")

    assert configured_directories(options(), {}) == (Path("/etc/cdi"), Path("/var/run/cdi"))
    assert configured_directories(options(config=config), {}) == (Path("/opt/cdi"),)
    config.write_text("cdiDirs: []")
    with pytest.raises(ConfigError):
        configured_directories(options(config=config), {})
