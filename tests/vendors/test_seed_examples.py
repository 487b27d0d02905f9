"""The examples by which people know these vendors, each asked of ``hami-plugin fit`` on a machine's profile.

Shown beside their vendors, from values: MetaX's formula of nodes and quality of service (``metax/test_sgpu.py``), its
forecasts (``metax/test_gpu.py``), and the busy devices of a Neuron machine (``test_awsneuron.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hami_plugin.cli import main
from hami_plugin.model.device import Links
from hami_plugin.simulation.hardware import vendor_of
from hami_plugin.simulation.machines import load_machine, machine_names
from tests.support.rigs import known
from tests.support.scale import spread
from tests.support.simulated_driver import SimulatedDriver
from vendors.nvidia.driver import link

Ask = Callable[..., Mapping[str, Any]]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Ask for limits on a machine; ``running`` pods have shares, by their annotation."""

    def asked(
        profile: str,
        limits: Mapping[str, int],
        *,
        annotations: Mapping[str, str] | None = None,
        running: tuple[tuple[str, Mapping[str, int], str], ...] = (),
    ) -> Mapping[str, Any]:
        (tmp_path / "pod.json").write_text(json.dumps(pod("p", limits, annotations or {})))
        items = [pod(f"r{n}", have, {key: text}, node=profile) for n, (key, have, text) in enumerate(running)]
        (tmp_path / "pods.json").write_text(json.dumps({"kind": "List", "items": items}))
        files = (str(tmp_path / "pod.json"), "--pods", str(tmp_path / "pods.json"))
        result = CliRunner().invoke(main, ["fit", *files, "--profile", profile, "--json"])
        report: Mapping[str, Any] = json.loads(result.output)
        return report

    return asked


def pod(name: str, limits: Mapping[str, int], annotations: Mapping[str, str], node: str = "") -> dict[str, Any]:
    container = {"name": "c", "resources": {"limits": {key: str(value) for key, value in limits.items()}}}
    metadata = {"name": name, "namespace": "ml", "uid": name, "annotations": {**annotations}}
    spec = {"containers": [container], **({"nodeName": node} if node else {})}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Running" if node else "Pending"}}


def granted(report: Mapping[str, Any]) -> list[int]:
    devices = report["nodes"][0]["steps"][0]["devices"]
    return [device["index"] for device in devices if device["verdict"] == "granted"]


def neurons(profile: str, *busy: int) -> tuple[tuple[str, Mapping[str, int], str], ...]:
    key, have = "hami.io/aws-neuron-devices-allocated", {"aws.amazon.com/neuron": 1}
    return tuple((key, have, f"{profile}-AWSNeuron-{index},AWSNeuron,0,3:;") for index in busy)


ONE_OF_EACH_VENDOR = spread(machine_names(), lambda name: vendor_of(known(name)).name, part=99)


@pytest.mark.parametrize("profile", spread(ONE_OF_EACH_VENDOR, part=3))
def test_every_profile_stands_for_a_node(profile: str, ask: Ask) -> None:
    """One of what a family counts is granted on it, and every device is told of."""
    machine = load_machine(profile)
    vendor = vendor_of(machine)
    every = vendor.families(vendor.settings())

    reports = [ask(profile, {family.resources.count: 1}) for family in every]

    assert any(report["fits"] for report in reports), reports
    told = {len(report["nodes"][0]["steps"][0]["devices"]) for report in reports}
    assert len(machine.devices) in told


def test_four_neuron_devices_of_a_trn1_are_an_aligned_group(ask: Ask) -> None:
    profile = "aws-trn1-32xlarge"

    assert granted(ask(profile, {"aws.amazon.com/neuron": 4})) == [0, 1, 2, 3]
    assert granted(ask(profile, {"aws.amazon.com/neuron": 4}, running=neurons(profile, 1, 6))) == [8, 9, 10, 11]
    assert granted(ask(profile, {"aws.amazon.com/neuron": 8}, running=neurons(profile, 1))) == [*range(8, 16)]


@pytest.mark.parametrize("count", [2, 7])
def test_two_or_seven_neuron_devices_of_a_trn1_are_refused_with_the_reason(count: int, ask: Ask) -> None:
    report = ask("aws-trn1-32xlarge", {"aws.amazon.com/neuron": count})

    (node,) = report["nodes"]
    assert not report["fits"]
    assert node["reason"] == "1/16 NumaNotFit"
    assert node["steps"][0]["because"] == ["too few devices that belong together are free"]
    assert any("aws.amazon.com/neuron: 4 instead" in one["what"] for one in node["remedies"])


def test_an_inferentia_gives_consecutive_devices_only(ask: Ask) -> None:
    profile = "aws-inf2-48xlarge"

    assert granted(ask(profile, {"aws.amazon.com/neuron": 3}, running=neurons(profile, 1, 4))) == [5, 6, 7]
    every_second = ask(profile, {"aws.amazon.com/neuron": 2}, running=neurons(profile, *range(0, 12, 2)))
    assert not every_second["fits"]


def test_whole_metax_gpus_come_from_one_zone_then_across(ask: Ask) -> None:
    aware = {"metax-tech.com/sgpu-topology-aware": "true"}
    zones = [device.extra["link_zone"] for device in load_machine("metax-c500-8").devices]

    four = granted(ask("metax-c500-8", {"metax-tech.com/sgpu": 4}, annotations=aware))
    five = granted(ask("metax-c500-8", {"metax-tech.com/sgpu": 5}, annotations=aware))

    assert len({zones[index] for index in four}) == 1
    assert sorted(zones[index] for index in five) in ([1, 1, 1, 1, 2], [1, 2, 2, 2, 2])


def test_a_quarter_of_an_enflame_card_is_of_the_card_that_the_pod_names(ask: Ask) -> None:
    quarter = {"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 25}

    name = "enflame-s60-8-drs-enflame-0"
    report = ask("enflame-s60-8-drs", quarter, annotations={"enflame.com/use-gpuuuid": name})

    (device,) = [one for one in report["nodes"][0]["steps"][0]["devices"] if one["verdict"] == "granted"]
    assert (device["uuid"], device["memory"]) == (name, 25)


def links(profile: str) -> tuple[list[str], Links]:
    driver = SimulatedDriver(load_machine(profile), "NVIDIA", link)
    return [one.device.uuid for one in driver.discover().sightings], driver.links()


def test_four_of_eight_nvidia_gpus_are_those_linked_best(ask: Ask) -> None:
    names, pairs = links("dgx-1v")
    annotations = {"hami.io/gpu-scheduler-policy": "topology-aware"}

    four = granted(ask("dgx-1v", {"nvidia.com/gpu": 4, "nvidia.com/gpumem": 1000}, annotations=annotations))

    assert four == [4, 5, 6, 7]  # as well linked as the first four; the device order decides
    assert pairs.total([names[index] for index in four]) == pairs.total(names[:4])
    assert pairs.total([names[index] for index in four]) > pairs.total([names[index] for index in (0, 1, 4, 5)])


def test_one_of_eight_nvidia_gpus_tears_the_fewest_links(ask: Ask) -> None:
    """With 1, 2, 3 in use, 0 has the weakest links to those that are left."""
    names, pairs = links("dgx-1v")
    busy = tuple(
        ("hami.io/vgpu-devices-allocated", {"nvidia.com/gpu": 1}, f"{names[index]},NVIDIA,16384,100:;")
        for index in (1, 2, 3)
    )
    annotations = {"hami.io/gpu-scheduler-policy": "topology-aware"}

    one = granted(ask("dgx-1v", {"nvidia.com/gpu": 1}, annotations=annotations, running=busy))

    free = [names[index] for index in (0, 4, 5, 6, 7)]
    torn = {uuid: sum(pairs.score(uuid, peer) for peer in free if peer != uuid) for uuid in free}
    assert one == [0]
    assert torn[names[0]] == min(torn.values())
