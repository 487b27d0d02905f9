"""Wrong input ends in the value, the cause and a remedy, and never in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from hami_plugin.cli import main

POD = "{kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}}"
NO_ADDRESS = "{id: x, vendor: nvidia, devices: [{index: 0}]}"
NO_FOLDER = "{id: x, vendor: gaudi, devices: [{index: 0, model: HL-225, uuid: u, module_id: 0}]}"
NO_KEY = "{id: x, vendor: aws-neuron, devices: [{index: 0, pci_bus_id: '0000:10:00.0'}]}"
OF_NOBODY = "{id: x, vendor: nobody, devices: [{index: 0}]}"


def told(folder: Path, *call: str, **files: str) -> tuple[int, str]:
    """The exit status and all that is printed. ``files`` are there by their names with ``.yaml``."""
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(content)
    arguments = [str(folder / one) if one.endswith(".yaml") else one for one in call]
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        ("{kind: Pod, spec: {containers: 7}}", "spec.containers is 7; it must be a list"),
        ("{kind: Pod, spec: {containers: [5]}}", "spec.containers[0] is 5; it must be a mapping"),
        ("{kind: Pod, metadata: 5, spec: {}}", "metadata is 5; it must be a mapping"),
        ("{kind: Pod, metadata: {annotations: [1]}}", "metadata.annotations is [1]; it must be a mapping"),
        ("{kind: List, items: [3]}", "items[0] is 3; it must be a mapping"),
        (
            "{kind: Job, spec: {template: {spec: {containers: [{resources: {limits: x}}]}}}}",
            "spec.template.spec.containers[0].resources.limits is 'x'; it must be a mapping",
        ),
        ("[" * 5000, "is nested more than 50 levels deep"),
    ],
)
def test_a_manifest_of_another_shape_names_the_field(tmp_path: Path, pod: str, said: str) -> None:
    status, output = told(tmp_path, "fit", "pod.yaml", "--profile", "dgx-1v", pod=pod)

    assert status == 1
    assert said in output
    assert "kubectl" in output


def test_an_annotation_may_have_any_name(tmp_path: Path) -> None:
    pod = POD.replace("name: p", "name: p, annotations: {spec: text, items: text}")

    status, output = told(tmp_path, "fit", "pod.yaml", "--profile", "dgx-1v", pod=pod)

    assert status == 0, output


@pytest.mark.parametrize(("option", "content"), [("--pods", "{items: [null]}"), ("--quota", "{spec: {hard: [1]}}")])
def test_what_stands_beside_a_pod_is_checked_as_well(tmp_path: Path, option: str, content: str) -> None:
    call = ("fit", "pod.yaml", "--profile", "dgx-1v", option, "beside.yaml")

    status, output = told(tmp_path, *call, pod=POD, beside=content)

    assert status == 1
    assert "beside.yaml: " in output
    assert "must be a mapping" in output


@pytest.mark.parametrize(
    ("option", "device_type"),
    [
        ("--gpu-scheduler-policy", "random"),
        ("--gpu-scheduler-policy", "numa,random"),
        ("--node-scheduler-policy", "random"),
    ],
)
def test_an_order_that_no_scheduler_knows_is_refused_with_those_it_knows(
    tmp_path: Path, option: str, device_type: str
) -> None:
    status, output = told(tmp_path, "fit", "pod.yaml", "--profile", "dgx-1v", option, device_type, pod=POD)

    assert status == 2
    assert "'random' is not one of" in output
    assert "binpack" in output


@pytest.mark.parametrize(
    ("profile", "status", "said"),
    [
        (NO_ADDRESS, 2, "cannot be simulated: '' is not a PCI address such as 0000:1b:00.0"),
        (NO_FOLDER, 2, "cannot be simulated: '' is not a PCI address such as 0000:1b:00.0"),
        (NO_KEY, 2, "cannot be simulated: it needs the key"),
        (OF_NOBODY, 1, "which no vendor module supports"),
    ],
)
def test_a_profile_that_cannot_be_simulated_says_what_it_lacks(
    tmp_path: Path, profile: str, status: int, said: str
) -> None:
    assert told(tmp_path, "discover", "--simulate", "odd.yaml", odd=profile)[0] == status
    assert said in told(tmp_path, "discover", "--simulate", "odd.yaml", odd=profile)[1]


@pytest.mark.parametrize("profile", ["", ","])
def test_a_demonstration_needs_the_name_of_a_machine(tmp_path: Path, profile: str) -> None:
    status, output = told(tmp_path, "demo", "--profile", profile)

    assert status == 2
    assert "--list-profiles" in output


def test_a_host_without_any_hardware_is_told_of_in_whole_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hami_plugin.daemon.startup.open_drivers", lambda *_: ())

    assert told(tmp_path, "discover") == (
        1,
        "Error: no devices found: this host has no hardware of any vendor; try --simulate dgx-h100\n",
    )
