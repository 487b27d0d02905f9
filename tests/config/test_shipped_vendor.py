"""One round through a vendor that ships, in the shapes that HAMi's chart writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.config.load import load
from hami_plugin.errors import ConfigError
from hami_plugin.sdk import load_vendor, vendor_names
from tests.support.settings_reference import reference, schema

DEVICE = """
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  resourceCoreName: nvidia.com/gpucores
  resourcePriorityName: nvidia.com/priority
  overwriteEnv: false
  defaultMemory: 0
  defaultCores: 0
  defaultGPUNum: 1
  memoryFactor: 1
  preConfiguredDeviceMemory: 0
  deviceSplitCount: 6
  deviceMemoryScaling: 1.5
  deviceCoreScaling: 1
  enableNumaTopology: true
  gpuCorePolicy: default
  libCudaLogLevel: 1
  runtimeClassName: ""
  migProfileAllowlist:
  - models: [A30]
    profiles: [1g.6gb]
hygon:
  memoryFactor: 1
"""
NODE = """
{"nodeconfig": [{"name": "n1", "operatingmode": "hami-core", "devicememoryscaling": 1, "devicecorescaling": 1,
  "devicesplitcount": 4, "preconfigureddevicememory": 0, "libcudaloglevel": 0, "enablenumatopology": false,
  "migstrategy": "none", "filterdevices": {"uuid": ["GPU-1"], "index": [7]}, "enablegetpreferredallocation": false}]}
"""
ENVIRONMENT = {
    "NODE_NAME": "n1",
    "DP_DISABLE_HEALTHCHECKS": "31, 43",
    "DEVICE_LIST_STRATEGY": "envvar",
    "PASS_DEVICE_SPECS": "true",
    "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
}


def test_hamis_files_and_environment_arrive(tmp_path: Path) -> None:
    (tmp_path / "device-config.yaml").write_text(DEVICE)
    (tmp_path / "config.json").write_text(NODE)

    configuration = load(
        config=None,
        device_config=tmp_path / "device-config.yaml",
        node_config=tmp_path / "config.json",
        overrides={},
        environment=ENVIRONMENT,
        vendor_settings=lambda name: load_vendor(name).settings,
        vendor_names=("nvidia",),
    )

    section = configuration.effective()["vendors"]["nvidia"]
    assert configuration.warnings == ()
    assert section["deviceSplitCount"] == 4
    assert section["deviceMemoryScaling"] == 1.0
    assert section["enableNumaTopology"] is False
    assert section["libCudaLogLevel"] == 0
    assert section["filterDevices"] == {"uuid": ["GPU-1"], "index": [7]}
    assert section["healthchecks"]["disable"] == ["31", "43"]
    assert section["passDeviceSpecs"] is True
    assert section["nvidiaDriverRoot"] == "/run/nvidia/driver"


def test_every_key_is_in_the_reference_and_in_the_schema() -> None:
    model = load_vendor("nvidia").settings

    table = reference({"nvidia": model})
    definition = schema({"nvidia": model})["$defs"]["NvidiaSettings"]

    assert "| `filterDevices.uuid` | list of text | `[]` | UUIDs to leave out. |" in table
    assert "Environment: `DP_DISABLE_HEALTHCHECKS`." in table
    assert {"deviceSplitCount", "filterDevices", "healthchecks"} <= set(definition["properties"])


@pytest.mark.parametrize("name", vendor_names())
def test_a_section_that_nobody_wrote_has_the_defaults_that_an_empty_one_would_have(name: str) -> None:
    model = load_vendor(name).settings

    configuration = load(
        config=None,
        device_config=None,
        node_config=None,
        overrides={"nodeName": "n"},
        environment={},
        vendor_settings=lambda vendor: load_vendor(vendor).settings,
        vendor_names=(name,),
    )

    assert configuration.vendors[name] == model.model_validate({}, by_alias=True, by_name=False)
    assert configuration.effective()["vendors"] == {name: model().model_dump(mode="json", by_alias=True)}


@pytest.mark.parametrize("wrong", ["[]", "0", "''"])
def test_a_vendors_section_that_is_empty_and_no_section_is_refused(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "config.yaml").write_text(f"nodeName: n\nvendors: {{nvidia: {wrong}}}\n")

    with pytest.raises(ConfigError, match=r"vendors\.nvidia"):
        load(
            config=tmp_path / "config.yaml",
            device_config=None,
            node_config=None,
            overrides={},
            environment={},
            vendor_settings=lambda vendor: load_vendor(vendor).settings,
            vendor_names=("nvidia",),
        )
