"""What the scheduler reads of a node's NPUs, and what a container receives, held against reviewed files."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from cdi.documents import plain_edits, read
from hami_plugin.allocation.preparation import build_answer
from hami_plugin.cli.main import main
from hami_plugin.errors import ConfigError, HamiError, RefusedError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Health, Snapshot
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.node_status.registration import Style, wanted_annotations
from hami_plugin.simulation.machines import machine_names
from tests.support.scale import spread
from vendors.ascend import VENDOR
from vendors.ascend.settings import CHIPS, AscendSettings

GOLDEN = Path(__file__).parent / "golden"
PROFILES = [name for name in machine_names() if name.startswith("ascend-")]
HOOK = Path("/usr/local")
HOST = HostFiles(paths=HostPaths())
SOFT = {"huawei.com/vnpu-mode": "hami-core"}
INLINE = {"deviceListStrategy": "device-specs"}


def assignment(devices, *, memory, cores=0, annotations=None, uid="0a1b2c3d-0000-4000-8000-000000000001"):
    shares = [
        Share(grant=Grant(uuid=device.uuid, device_type=device.family, memory=memory, cores=cores), device=device)
        for device in devices
    ]
    pod = PodView(uid=uid, namespace="team", name="job", annotations=annotations or {})
    return Assignment(pod=pod, container=ContainerView(name="main"), shares=tuple(shares))


def answer(family, asked):
    """As the kubelet is answered, without the names of CDI."""
    described = family.node.shared_edits(HOST).merged(*(family.node.device_edits(s.device, HOST) for s in asked.shares))
    return build_answer(family.node.delivery, asked, family.node.inject(asked, HOST).edits, described).edits


def against(name, edits, directory):
    """The same as in the reviewed file, with the machine's folder called ``/machine`` there."""
    text = json.dumps(plain_edits(edits), indent=2).replace(str(directory), "/machine") + "\n"
    golden = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def registered(family, devices):
    """What the family's scheduler side reads of a node with these devices."""
    wanted = wanted_annotations(family, Snapshot(devices=tuple(devices), ready=True, reason=""), Style())
    return wanted, family.rules.node_devices(NodeView(name="n", annotations=wanted))


@pytest.mark.parametrize("profile", PROFILES)
def test_the_register_is_read_back_as_the_same_npus(rig, profile):
    built = rig(profile)
    family, devices = built.family(), built.devices()
    _name, allocatable, _capacity, cores, _cpus, templates = CHIPS[family.resources.device_type]

    wanted, infos = registered(family, devices)

    assert [(i.id, i.index, i.devmem, i.devcore, i.type, i.numa, i.health, i.count) for i in infos] == [
        (
            d.uuid,
            d.index,
            allocatable,
            cores,
            family.resources.device_type,
            d.numa,
            True,
            allocatable // templates[0][1],
        )
        for d in built.machine.devices
    ]
    assert wanted["hami-vnpu-core"] == "false"


@pytest.mark.parametrize(
    ("profile", "networks"),
    [("ascend-910b3-8", [0] * 4 + [1] * 4), ("ascend-910c-16", [0] * 16), ("ascend-310p-8", [None] * 8)],
)
def test_npus_say_their_network_where_the_scheduler_asks_for_it(rig, profile, networks):
    built = rig(profile)

    _wanted, infos = registered(built.family(), built.devices())

    assert [(info.custom or {}).get("NetworkID") for info in infos] == networks


def test_a_node_of_hami_core_registers_percent_and_says_so(rig):
    built = rig("ascend-910b3-8", hamiVnpuCore=True)

    wanted, infos = registered(built.family(), built.devices())

    assert (wanted["hami-vnpu-core"], {info.devcore for info in infos}) == ("true", {100})


def test_an_ill_npu_is_registered_as_ill(rig):
    built = rig("ascend-910b3-8")
    first, *rest = built.devices()

    _wanted, infos = registered(built.family(), [replace(first, health=Health.UNHEALTHY), *rest])

    assert [info.health for info in infos] == [False] + [True] * 7


def test_a_chip_without_templates_is_for_one_container(rig):
    built = rig("ascend-310p-8", configs=[{"commonWord": "Ascend310P", "templates": []}])

    assert built.family().node.replicas(built.devices()[0]) == 1


def test_a_share_by_template_is_the_reviewed_one(rig):
    built = rig("ascend-910b3-8")

    edits = answer(built.family(), assignment(built.devices()[5:6], memory=16384))

    against("template", edits, built.simulator.directory)


@pytest.mark.parametrize(("name", "configuration"), [("whole", {}), ("whole-inline", INLINE)])
def test_whole_npus_are_the_reviewed_ones(rig, name, configuration):
    built = rig("ascend-910c-16", **configuration)

    edits = answer(built.family(), assignment(built.devices()[2:4], memory=65536))

    against(name, edits, built.simulator.directory)


@pytest.mark.parametrize(("name", "configuration"), [("hami-core", {}), ("hami-core-inline", INLINE)])
def test_a_share_of_hamis_core_is_the_reviewed_one(rig, name, configuration):
    built = rig("ascend-910b-8-interleaved", hamiVnpuCore=True, **configuration)
    asked = assignment(built.devices()[1:2], memory=8000, cores=30, annotations=SOFT)

    against(name, answer(built.family(), asked), built.simulator.directory)
    assert built.family().node.inject(asked, HOST).directories == (
        HOOK / "hami-shared-region",
        HOOK / f"hami-vnpu-core/containers/{asked.pod.uid}_main",
    )


def test_a_container_never_sees_another_npu(rig):
    built = rig("ascend-910b3-8", **INLINE)

    edits = answer(built.family(), assignment(built.devices()[6:7], memory=65536))

    assert [node.path for node in edits.device_nodes if node.path[-1].isdigit()] == ["/dev/davinci6"]


@pytest.mark.parametrize("uid", ["../../etc", "", "a/b"])
@pytest.mark.scenario("X4")
def test_no_forged_name_leads_out_of_its_folder(rig, uid):
    built = rig("ascend-910b3-8")

    with pytest.raises(RefusedError, match="no pod UID"):
        built.family().node.inject(assignment(built.devices()[:1], memory=1, annotations=SOFT, uid=uid), HOST)


@pytest.mark.parametrize(
    ("node", "words"), [("davinci3", "000003 has no node"), ("hisi_hdc", "Ascend's driver has no node")]
)
def test_a_node_that_is_missing_is_named(rig, node, words):
    built = rig("ascend-910b3-8", **INLINE)
    devices = built.devices()
    (built.simulator.directory / "dev" / node).unlink()

    with pytest.raises(HamiError, match=f"{words} .*{node}"):
        answer(built.family(), assignment(devices[3:4], memory=65536))


def test_a_host_without_hamis_core_is_told_of_before_pods_come(tmp_path):
    paths = HostPaths(hook=tmp_path, hook_view=tmp_path)
    family = VENDOR.families(AscendSettings.model_validate({"hamiVnpuCore": True}))[0]
    assert "libvnpu.so; install it there" in family.node.host_problem(HostFiles(paths=paths))

    (tmp_path / "hami-vnpu-core").mkdir()
    for name in ("libvnpu.so", "ld.so.preload"):
        (tmp_path / "hami-vnpu-core" / name).touch()

    assert family.node.host_problem(HostFiles(paths=paths)) == ""
    assert VENDOR.families(AscendSettings())[0].node.host_problem(HOST) == ""


def test_every_chip_has_a_cdi_kind_of_its_own():
    kinds = [
        family.node.delivery.kind
        for family in VENDOR.families(AscendSettings.model_validate({"cdi": {"enabled": True}}))
    ]

    assert kinds == [f"hami.io/npu-{chip}" for chip in ("910a", "910b2", "910b3", "910b4-1", "910b4", "310p", "910c")]


def test_a_way_that_is_not_served_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match="choose from: cdi-annotations, cdi-cri, device-specs, envvar"):
        AscendSettings.model_validate({"deviceListStrategy": "volume-mounts"})


@pytest.mark.parametrize("profile", spread(PROFILES, part=2))
def test_the_command_prints_a_spec_that_a_runtime_reads(profile):
    done = CliRunner().invoke(main, ["cdi", "generate", "--simulate", profile])

    assert done.exit_code == 0, done.output
    spec = read(done.stdout, "spec.json", yaml=yaml.safe_load)
    assert len(spec.devices) == 2 * (16 if "910c" in profile else 8) + 1
    assert str(spec.kind).startswith("hami.io/npu-")


def test_configuration_of_a_chip_is_checked_with_the_rest():
    with pytest.raises((ConfigError, ValueError), match="absolute path"):
        AscendSettings.model_validate({"devRoot": "dev"})
