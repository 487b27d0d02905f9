"""``hami-plugin doctor`` on broken nodes: each fault is planted, and must be the first that is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hami_plugin.cli.doctor.findings import Directory, NodeFacts, node_findings
from hami_plugin.protocol.keys import NODE_LOCK
from tests.cli.doctor.sick import Patient, patient
from tests.support.scale import spread

Plant = Callable[[Patient], Awaitable[None] | None]


def misspelt_key(one):
    one.configure(deviceSplitCuont=4)


def no_node_name(one):
    one.options["node_name"] = None


def state_on_a_file(one):
    state = Path(one.options["state_dir"])
    state.rmdir()
    state.write_text("")


def no_kubelet_directory(one):
    one.options["kubelet_dir"] = Path("/proc/1/none")


def no_library(one):
    one.options["nvml_library"] = one.root / "gone.so"


def driver_unloaded(one):
    one.stage.hardware.simulator.inject("driver-gone")


def driver_replaced(one):
    one.stage.hardware.simulator.inject("mismatch")


def card_lost(one):
    one.stage.hardware.simulator.inject("lost", 3)


def runtime_without_cdi(one):
    (one.folder / "containerd.toml").write_text("version = 2\n")


def runtime_too_old(one):
    one.status(nodeInfo={"containerRuntimeVersion": "containerd://1.6.24"})


def spec_removed(one):
    for file in (one.folder / "cdi").iterdir():
        file.unlink()


def spec_of_others(one):
    (own,) = (one.folder / "cdi").iterdir()
    shutil.copy(own, own.with_name("other.json"))


def library_not_installed(one):
    (one.root / "hook/vgpu/libvgpu.so").unlink()


def preload_of_another_place(one):
    (one.root / "hook/vgpu/ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so\n")


def preload_is_a_directory(one):
    (one.root / "hook/vgpu/ld.so.preload").unlink()
    (one.root / "hook/vgpu/ld.so.preload").mkdir()


async def kubelet_stopped(one):
    await one.stage.kubelet.stop()


def kubelet_elsewhere(one):
    one.options["kubelet_dir"] = one.root / "other"


def kubelet_socket_replaced(one):
    socket = one.root / "device-plugins/kubelet.sock"
    socket.unlink()
    socket.touch()


def pod_resources_elsewhere(one):
    one.options["pod_resources_socket"] = one.root / "none.sock"


def checkpoint_damaged(one):
    (one.root / "device-plugins/kubelet_internal_checkpoint").write_text("{")


async def api_server_down(one):
    await one.stage.api.refuse()


def api_server_silent(one):
    one.stage.api.hang()


def token_refused(one):
    one.stage.api.trust("another")


def no_credentials(one):
    one.options["kubeconfig"] = None


def right_missing(one):
    one.stage.api.deny("patch", "nodes")


def policy_against_nodes(one):
    message = 'ValidatingAdmissionPolicy "own-node" denied request'
    one.stage.api.error(403, count=None, match="PATCH /api/v1/nodes", message=message)


def policy_against_events(one):
    one.stage.api.error(403, count=None, match="POST .*/events", message="events are restricted")


def other_node_name(one):
    one.options["node_name"] = "elsewhere"


def clock_ahead(one):
    def late(body: bytes) -> bytes:
        event = json.loads(body)
        there = datetime.now(UTC) - timedelta(minutes=5)
        event["metadata"]["creationTimestamp"] = there.strftime("%Y-%m-%dT%H:%M:%SZ")
        return json.dumps(event).encode()

    one.stage.api.edit(late, "POST .*/events")


async def daemon_stopped(one):
    await one.port.stop()


def daemon_beside(one):
    one.components = {"daemon": "another daemon (pid 7) holds the state directory"}


def displaced(one):
    resource = one.stage.resource
    why = f"displaced: the kubelet left us for another plugin of {resource}, probably on nvidia-gpu.sock"
    one.components[f"kubelet {resource}"] = f"{why}; remove one of the two plugins from this node"


def cards_registered_that_are_gone(one):
    register = one.stage.family.rules.annotations.register
    known = json.loads(one.node["metadata"]["annotations"][register])
    known[0]["id"] = "GPU-gone"
    one.annotate(**{register: json.dumps(known)})


def register_removed(one):
    one.annotate(**{one.stage.family.rules.annotations.register: None})


def register_overwritten(one):
    one.annotate(**{one.stage.family.rules.annotations.register: "GPU-0,10,8192"})


def lock_left(one):
    since = datetime.now(UTC) - timedelta(minutes=20)
    one.annotate(**{NODE_LOCK: f"{since.isoformat(timespec='seconds')},ns,dead"})


def kubelet_counts_none(one):
    one.status(allocatable={one.stage.resource: "0"})


def node_not_ready(one):
    one.status(conditions=[{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting"}])


def old_kubelet(one):
    one.status(nodeInfo={"kubeletVersion": "v1.19.16", "containerRuntimeVersion": "containerd://1.7.0"})


async def driver_hung(one):
    one.stage.hardware.simulator.inject("hang", 2)


PLANTED: dict[Plant, tuple[str, str]] = {
    misspelt_key: ("configuration", "deviceSplitCuont"),
    no_node_name: ("configuration", "nodeName"),
    state_on_a_file: ("disk state", "not a directory"),
    no_kubelet_directory: ("disk kubelet", "cannot be written to"),
    no_library: ("driver nvidia", "NoLibrary"),
    driver_unloaded: ("driver nvidia", "NoDriver"),
    driver_replaced: ("driver nvidia", "VersionMismatch"),
    card_lost: ("driver nvidia", "device 3"),
    driver_hung: ("driver nvidia", "DriverHung"),
    library_not_installed: ("host nvidia.com/gpu", "libvgpu.so"),
    preload_of_another_place: ("host nvidia.com/gpu", "names /usr/local/vgpu/libvgpu.so"),
    preload_is_a_directory: ("host nvidia.com/gpu", "ld.so.preload"),
    kubelet_stopped: ("kubelet socket", "kubelet.sock"),
    kubelet_elsewhere: ("kubelet socket", "does not exist"),
    kubelet_socket_replaced: ("kubelet socket", "no socket"),
    pod_resources_elsewhere: ("kubelet PodResources", "none.sock"),
    checkpoint_damaged: ("kubelet checkpoint", "cannot be read"),
    api_server_down: ("api server", "no answer"),
    api_server_silent: ("api server", "no answer"),
    token_refused: ("api server", "401"),
    no_credentials: ("api server", "no way to the API server"),
    other_node_name: ("api server", "there is no node elsewhere"),
    right_missing: ("rights", "patch nodes"),
    policy_against_nodes: ("admission of nodes", "ValidatingAdmissionPolicy"),
    policy_against_events: ("admission of Events", "restricted"),
    clock_ahead: ("clock", "ahead of"),
    daemon_stopped: ("daemon", "no daemon answers"),
    daemon_beside: ("daemon: daemon", "another daemon"),
    displaced: ("other plugins: nvidia.com/gpu", "nvidia-gpu.sock"),
    cards_registered_that_are_gone: ("annotation hami.io/node-nvidia-register", "GPU-gone"),
    register_removed: ("annotation hami.io/node-nvidia-register", "is missing"),
    register_overwritten: ("annotation hami.io/node-nvidia-register", "cannot be read"),
    lock_left: ("node lock", "ns/dead is 20 min old"),
    kubelet_counts_none: ("count", "counts 0 nvidia.com/gpu"),
    node_not_ready: ("node", "stopped posting"),
    old_kubelet: ("node", "PodResources v1"),
}
PLANTED_WITH_CDI: dict[Plant, tuple[str, str]] = {
    runtime_without_cdi: ("runtime nvidia", "enable_cdi"),
    runtime_too_old: ("runtime nvidia", "containerd 1.6.24 reads no CDI names"),
    spec_removed: ("cdi nvidia.com/gpu", "CDISpecMissing"),
    spec_of_others: ("cdi nvidia.com/gpu", "CDIConflict"),
}


def with_cdi(folder):
    runtime = folder / "containerd.toml"
    section = 'plugins."io.containerd.cri.v1.runtime"'
    runtime.write_text(f'version = 3\n[{section}]\ncdi_spec_dirs = ["{folder / "cdi"}"]\n')
    vendors = {"nvidia": {"deviceListStrategy": "cdi-annotations"}}
    return {"cdiDirs": [str(folder / "cdi")], "runtimeConfig": str(runtime), "vendors": vendors}


def failures(found):
    return [(one.check, one.text) for one in found if one.mark.failed]


async def named_first(one: Patient, plant: Plant, check: str, text: str) -> None:
    if (planted := plant(one)) is not None:
        await planted
    found = await one.examined()
    first = failures(found)[0]
    assert first[0] == check, failures(found)
    assert text in first[1]
    assert found[0].remedy


async def test_nothing_fails_on_a_node_that_lacks_nothing():
    async with patient() as one:
        found = await one.examined()

    assert [(line.check, line.text) for line in found if line.mark != "ok"] == []


@pytest.mark.parametrize("plant", spread(PLANTED, part=3), ids=lambda plant: plant.__name__)
async def test_what_was_planted_is_named_first(plant, monkeypatch):
    if plant in (api_server_silent, driver_hung):
        limit = {api_server_silent: "live.CALL_S", driver_hung: "doctor.gathering.DRIVER_S"}[plant]
        monkeypatch.setattr(f"hami_plugin.cli.{limit}", 0.5)
    async with patient() as one:
        try:
            await named_first(one, plant, *PLANTED[plant])
        finally:
            one.stage.hardware.simulator.inject("back")


@pytest.mark.parametrize("plant", spread(PLANTED_WITH_CDI, part=3), ids=lambda plant: plant.__name__)
async def test_what_was_planted_on_a_node_with_cdi_is_named_first(plant, tmp_path):
    async with patient(**with_cdi(tmp_path)) as one:
        one.folder = tmp_path
        await named_first(one, plant, *PLANTED_WITH_CDI[plant])


async def test_nothing_fails_on_a_node_with_cdi_that_lacks_nothing(tmp_path):
    async with patient(**with_cdi(tmp_path)) as one:
        assert failures(await one.examined()) == []


def warned(found):
    return [(one.check, one.text) for one in found if one.mark == "warning"]


def plugin_pod(one, name, *, folder=None):
    volumes = [{"name": "plugins", "hostPath": {"path": str(folder or one.options["kubelet_dir"])}}]
    containers = [{"name": "main", "image": f"registry/{name}:1"}]
    spec = {"nodeName": one.stage.node, "containers": containers, "volumes": volumes}
    one.stage.api.create_pod({"metadata": {"name": name, "namespace": "kube-system"}, "spec": spec})


async def test_what_may_go_wrong_is_a_warning_and_fails_nothing():
    async with patient() as one:
        plugin_pod(one, "nvidia-device-plugin")
        plugin_pod(one, "rdma-device-plugin")
        plugin_pod(one, "nvidia-exporter", folder="/somewhere")
        one.in_force |= {"logLevel": "debug"}
        one.usage = {"devices": [{"number": "3", "health": "probation", "reason": "Xid48"}]}
        counted = int(one.node["status"]["allocatable"][one.stage.resource])
        one.status(allocatable={one.stage.resource: str(counted - 10)})

        found = await one.examined()

    assert failures(found) == []
    assert warned(found) == [
        ("configuration", "the running daemon has other values of logLevel"),
        ("other plugins", "pods here look like device plugins for the same devices: kube-system/nvidia-device-plugin"),
        ("count", f"the kubelet counts {counted - 10} nvidia.com/gpu, and {counted} shares are here"),
        ("daemon", "keeps device 3 back: probation: Xid48"),
    ]


@pytest.mark.parametrize(
    ("room", "mark"),
    [({"free": 1 << 20}, "failed"), ({"inodes": 3}, "failed"), ({"free": 40 << 20}, "warning"), ({}, "ok")],
)
def test_a_disk_without_room_is_named(room, mark):
    directory = Directory(what="state", path="/var/lib/x", **{"free": 1 << 30, "inodes": 10**6, **room})

    found = node_findings(NodeFacts(directories=(directory,)))

    assert [one.mark.value for one in found if one.check == "disk state"] == [mark]


async def test_nothing_is_written_while_a_node_is_examined():
    async with patient() as one:
        before = {path: path.stat().st_mtime_ns for path in one.root.rglob("*") if "machine" not in path.parts}
        version = one.stage.api.store.version.value

        await one.examined()

        after = {path: path.stat().st_mtime_ns for path in one.root.rglob("*") if "machine" not in path.parts}
        assert (after, one.stage.api.store.version.value) == (before, version)
