"""The demonstration itself: it holds on a machine of every vendor, and says where one differs from the others."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from hami_plugin.demo.play import play, play_everywhere
from hami_plugin.simulation.hardware import vendor_of
from hami_plugin.simulation.machines import load_machine, machine_names


def one_of_each_vendor() -> list[str]:
    machines = {vendor_of(load_machine(name)).name: name for name in reversed(machine_names())}
    return sorted(machines.values())


@pytest.mark.full
async def test_every_step_holds_on_a_machine_of_every_vendor(capsys: Any) -> None:
    names = one_of_each_vendor()

    held = await play_everywhere(names)

    told = capsys.readouterr().out
    assert held, told
    assert len(names) >= 12
    assert told.endswith(f"{len(names)} of {len(names)} machines: no step failed.\n")


async def test_a_profile_that_nobody_knows_is_a_failure_with_its_reason(capsys: Any) -> None:
    assert not await play_everywhere(["dgx-h10"])

    assert "did you mean dgx-h100" in capsys.readouterr().out


@pytest.mark.full
async def test_machines_of_several_vendors_make_one_node_and_differences_are_said(capsys: Any) -> None:
    held = await play("dgx-h100,ascend-910b3-8,aws-trn1-2xlarge", as_json=True)

    out = capsys.readouterr().out
    told = json.loads(out[out.index("{\n") :])  # the command keeps the log quiet, and ``play`` does not
    steps: dict[str, list[dict[str, Any]]] = {}
    for step in told["steps"]:
        assert not step["problem"]
        steps.setdefault(step["step"], []).append(step["facts"])
    known = [facts["devices are known by"] for facts in steps["What differs here"]]
    assert held
    assert [facts["annotated after"].partition(":")[0] == "never" for facts in steps["Register"]] == [
        False,
        False,
        True,
    ]
    assert known[0].startswith("hami.io/node-nvidia-register, a JSON list")
    assert known[1].startswith("hami.io/node-register-Ascend910B3, a JSON list")
    assert known[2].startswith("the node's capacity of aws.amazon.com/neuron")
    assert [facts["node lock"].partition(":")[0] for facts in steps["Be quiet"]] == ["free", "free", "none"]
    assert ["hami-vnpu-core" in facts["other node annotations"] for facts in steps["What differs here"]] == [
        False,
        True,
        False,
    ]


@pytest.mark.full
async def test_a_shared_pod_of_a_card_that_is_cut_shows_the_partition_that_limits_it(capsys: Any) -> None:
    held = await play("cambricon-mlu370x8-4-smlu", as_json=True)

    out = capsys.readouterr().out
    steps = {step["step"]: step["facts"] for step in json.loads(out[out.index("{\n") :])["steps"]}
    shared = steps["A shared pod"]
    assert held
    assert re.fullmatch(r"30%\.3072mib MLU-[0-9a-f-]{36}", shared["partition"])
    assert "/dev/cambricon-caps/cap_dev3_mi1" in shared["containers"]["main"]["devices"]
    assert "not shown" not in shared


@pytest.mark.full
@pytest.mark.parametrize(
    ("profile", "limits"),
    [("hygon-z100-4", "/etc/vdev/docker/"), ("ascend-310p-8", "ASCEND_VNPU_SPECS=vir01")],
)
async def test_a_shared_pod_shows_what_holds_it_to_its_share(profile: str, limits: str, capsys: Any) -> None:
    assert await play(profile, as_json=True)

    out = capsys.readouterr().out
    steps = {step["step"]: step["facts"] for step in json.loads(out[out.index("{\n") :])["steps"]}
    assert limits in steps["A shared pod"]["held to its share by"].split(", ")
