"""Values that would give something that cannot live: the chart refuses each, and says which value and why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hami_plugin.cli.values import vendors
from hami_plugin.config.hami_values import own_values
from tests.charts.helm import CHART, installed, refusals
from tests.config.test_hami_values import nested

POOLS = [{"name": "a", "nodeSelector": {"x": "1"}}, {"name": "b", "nodeSelector": {"x": "1"}}]

REFUSED: list[tuple[str, Any, str]] = [
    ("devicePlugin.nvidia.splitCount", "ten", "got string, want integer"),
    ("devicePlugin.nvidia.splitCount", 0, "minimum: got 0, want 1"),
    ("devicePlugin.nvidia.deviceListStrategy", ["teleport"], "value must be one of"),
    ("devicePlugin.nvidia.migStrategy", "double", "value must be one of 'none', 'single', 'mixed'"),
    ("devicePlugin.nvidia.frontEnd", "claims", "value must be one of 'device-plugin', 'dra', 'auto'"),
    ("devicePlugin.amd.frontEnd", "dra", "has no resource.k8s.io/v1; leave it out before Kubernetes 1.34"),
    ("devicePlugin.nvidia.computeMode", "ExclusiveProcess", "splitCount is 10; set splitCount to 1"),
    ("devicePlugin.kunlun.splitCount", 3, "devicePlugin.kunlun.splitCount: 3 cannot be set for this vendor, where"),
    ("devicePlugin.config.httpPort", 0, "minimum: got 0, want 1"),
    ("devicePlugin.config.httpHost", "127.0.0.1", "the kubelet's probes cannot reach 127.0.0.1"),
    ("devicePlugin.config.stateDir", "/data", "additional properties 'stateDir' not allowed"),
    ("devicePlugin.nodeSelector", {"gpu": True}, "got boolean, want"),
    ("devicePlugin.tolerations", [{"operator": "Exist"}], "value must be one of 'Exists', 'Equal'"),
    ("devicePlugin.image.pullPolicy", "Sometimes", "value must be one of"),
    ("devicePlugin.image.repository", "", "minLength"),
    ("devicePlugin.updateStrategy.type", "Recreate", "value must be one of"),
    ("devicePlugin.livenessProbe.periodSecond", 3, "'periodSecond' not allowed"),
    ("devicePlugin.extraEnv", [{"name": "A", "valu": "x"}], "'valu' not allowed"),
    ("devicePlugin.kubeletRoot", "var/lib/kubelet", "does not match pattern"),
    ("devicePlugin.pools", [{"name": "a", "nvidia": {"splitCount": 0}}], "minimum: got 0, want 1"),
    ("devicePlugin.pools", [{"name": "A"}], "does not match pattern"),
    ("devicePlugin.pools", POOLS, "is the one of pools[a] too"),
    ("devicePlugin.extraArgs", ["--verbose"], "--verbose is no option of the daemon"),
    ("deviceConfig.nvidia.deviceSplitCount", 0, "minimum: got 0, want 1"),
    ("deviceConfig.iluvatars", "none", "got string"),
    ("scheduler.claimVendors", ["acme"], "value must be one of"),
    ("scheduler.claimVendors", ["nvidia"], "no daemon offers devices of nvidia by claims"),
    ("scheduler.gpuSchedulerPolicy", "bnpack", "does not match pattern"),
    ("scheduler.nodeSchedulerPolicy", "pack", "value must be one of"),
    ("scheduler.schedulerName", "My Scheduler", "does not match pattern"),
    ("scheduler.extenderTimeout", 30, "got number, want string"),
    ("scheduler.extraArgs", ["--verbose"], "scheduler.extraArgs: --verbose is no option of the scheduler"),
    ("scheduler.config.listenPort", 1, "'listenPort' not allowed"),
    ("scheduler.config.answerSeconds", 0, "got 0, want"),
    ("scheduler.networkPolicy.apiServers", ["10.0.0.1"], "does not match pattern"),
    ("scheduler.webhook.timeoutSeconds", 31, "maximum: got 31, want 30"),
    ("imagePullSecrets", ["registry"], "got string, want object"),
    ("admissionPolicies.validationActions", [], "minItems: got 0, want 1"),
]


@pytest.fixture(scope="module")
def told():
    """What Helm says of each."""
    return refusals([nested(path, value) for path, value, _ in REFUSED])


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=[f"{path}={value}"[:60] for path, value, _ in REFUSED])
def test_a_value_that_cannot_live_is_refused_with_its_name(told, number):
    path, _, said = REFUSED[number]

    assert said in told[number]
    assert path.rpartition(".")[2] in told[number]


ACCEPTED: list[tuple[str, Any]] = [
    ("devicePlugin.nvidia", {"computeMode": "ExclusiveProcess", "splitCount": 1}),
    ("devicePlugin.nvidia", {"deviceListStrategy": "cdi-annotations,cdi-cri"}),
    ("devicePlugin.nvidia", {"filterDevices": {"index": [0], "uuid": ["GPU-1"]}, "nvmlLibrary": "/opt/lib.so"}),
    ("devicePlugin.cambricon", {"unlimitedShares": True, "splitCount": 100}),
    ("devicePlugin.kunlun", {"enabled": False, "splitCount": 3}),
    ("devicePlugin.livenessProbe", {"exec": {"command": ["true"]}}),
    ("devicePlugin.nodeSelector", {"gpu": None, "npu": "on"}),
    ("deviceConfig", {"iluvatars": [{"commonWord": "MR-V100"}], "somebody": {"else": 1}}),
    ("deviceConfig.vnpus", {"configs": [{"commonWord": "Ascend910A", "runtimeClassName": "ascend"}]}),
    ("scheduler", {"gpuSchedulerPolicy": "numa, binpack", "config": {"answerSeconds": 20, "refuseImpossible": False}}),
]


@pytest.fixture(scope="module")
def accepted():
    return installed(*(nested(path, value) for path, value in ACCEPTED))


def test_what_the_daemon_takes_is_let_through(accepted):
    assert len(accepted) == len(ACCEPTED)


def test_each_value_of_the_chart_has_a_type():

    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    bare = []
    for path in own_values().paths():
        found = schema
        for key in path.split("."):
            found = found.get("properties", {}).get(key, {})
        if not {"type", "enum", "anyOf"} & found.keys() or found == {"type": "array"}:
            bare.append(path)
    vendor = schema["properties"]["devicePlugin"]["properties"]
    bare += [f"{name}.{key}" for name in vendors().names for key, one in vendor[name]["properties"].items() if not one]

    assert bare == []
