"""HAMi's section ``nvidia``: accepted whole, and what is wrong in it is named."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.hami import asks
from vendors.nvidia.settings import NvidiaSettings


def test_hamis_whole_section_is_accepted() -> None:
    section = {
        "resourceCountName": "nvidia.com/gpu",
        "resourceMemoryName": "nvidia.com/gpumem",
        "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage",
        "resourceCoreName": "nvidia.com/gpucores",
        "resourcePriorityName": "nvidia.com/priority",
        "overwriteEnv": False,
        "defaultMemory": 0,
        "defaultCores": 0,
        "defaultGPUNum": 1,
        "preConfiguredDeviceMemory": 0,
        "memoryFactor": 1,
        "deviceSplitCount": 10,
        "deviceMemoryScaling": 1,
        "deviceCoreScaling": 1,
        "enableNumaTopology": False,
        "gpuCorePolicy": "default",
        "libCudaLogLevel": 1,
        "runtimeClassName": "",
        "migProfileAllowlist": [{"models": ["A30"], "profiles": ["1g.6gb"]}],
    }

    assert NvidiaSettings.model_validate(section).model_dump() == {
        **NvidiaSettings().model_dump(),
        "mig_profile_allowlist": ({"models": ("A30",), "profiles": ("1g.6gb",)},),
    }


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"deviceSplitCount": 0}, "greater than or equal to 1"),
        ({"deviceMemoryScaling": 0}, "greater than 0"),
        ({"deviceMemoryScaling": float("nan")}, "finite"),
        ({"deviceCoreScaling": -1}, "greater than 0"),
        ({"preConfiguredDeviceMemory": -1}, "greater than or equal to 0"),
        ({"operatingMode": "mig", "migStrategy": "mixed"}, "makes instances as pods come; set migStrategy to none"),
        ({"operatingMode": "mig", "migStrategy": "single", "cutDevices": {"index": [0]}}, "set mixed"),
        ({"cutDevices": {"index": [0]}}, "operatingMode is hami-core"),
        ({"migMode": "enabled"}, "operatingMode is hami-core; for one node of many"),
        ({"migMode": "disabled", "operatingMode": "mig"}, "uses cards whole, and operatingMode is mig"),
        ({"migMode": "disabled", "migStrategy": "mixed"}, "uses cards whole, and migStrategy is mixed"),
        ({"operatingMode": "mixed"}, "hami-core"),
        (
            {"deviceListStrategy": "device-specs"},
            "'device-specs' is not supported by this vendor; choose from: cdi-ann",
        ),
        ({"deviceListStrategy": ["auto", "envvar"]}, "'auto' cannot be combined with others"),
        ({"cdi": {"vendor": "no/slash"}}, "pattern"),
        ({"deviceListStrategy": []}, "at least 1"),
        ({"healthchecks": {"disable": "xid79"}}, "'xid79' is not an XID"),
        ({"resourceCoreName": "nvidia.com/gpu"}, "used twice"),
        ({"resourceCountName": "gpu"}, "pattern"),
        ({"libvgpuVersion": "../evil"}, "pattern"),
        ({"deviceSplitcount": 3}, "Extra inputs"),
        (
            {"computeMode": "ExclusiveProcess"},
            "one process may use a card at a time, and deviceSplitCount is 10; set it",
        ),
        ({"computeMode": "ExclusiveThread", "deviceSplitCount": 1}, "removed with CUDA 8; choose ExclusiveProcess"),
        ({"computeMode": "Prohibited"}, "no program could use a card; leave cards out with filterDevices"),
        ({"computeMode": "Shared"}, "'Default' or 'ExclusiveProcess'"),
    ],
)
def test_a_setting_that_cannot_be_used_says_why(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        NvidiaSettings.model_validate(section)


def test_the_cards_that_are_cut_may_be_named_and_the_others_are_shared() -> None:
    settings = NvidiaSettings.model_validate({"operatingMode": "mig", "cutDevices": {"index": [1], "uuid": ["GPU-a"]}})
    every = NvidiaSettings.model_validate({"operatingMode": "mig"})

    asked = [("GPU-a", 0), ("GPU-b", 1), ("GPU-c", 2)]
    assert [settings.mode_of(uuid=uuid, index=index) for uuid, index in asked] == ["mig", "mig", "hami-core"]
    assert [every.mode_of(uuid=uuid, index=index) for uuid, index in asked] == ["mig"] * 3


@pytest.mark.parametrize(("value", "level"), [(3, 3), ("3", 3), ("", None), (None, None)])
def test_a_log_level_is_a_number_or_text(value: object, level: int | None) -> None:
    assert NvidiaSettings.model_validate({"libCudaLogLevel": value}).lib_cuda_log_level == level


@asks("nvidia_node", "FilterDeviceToRegister")
def test_a_filter_hides_what_hami_hides(case: Any) -> None:
    settings = NvidiaSettings.model_validate({"filterDevices": case.get("context", {}).get("filter", {})})
    text = case["input"]["indexStr"]

    hidden = settings.filter_devices.hides(uuid=case["input"]["uuid"], index=int(text) if text.isdecimal() else -1)

    assert hidden is case["expected"]["result"]
