"""``hami-plugin doctor POD``: why a pod is pending, refused or without limits; each planted cause is named first."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.cli.doctor.asking import pod_facts, processes_of
from hami_plugin.cli.doctor.pod import LimitedProcess, pod_findings
from hami_plugin.protocol.keys import ASSIGNED_NODE, BIND_PHASE, PHASE_SUCCESS
from hami_plugin.simulation.objects import RESOURCES
from tests.cli.doctor.sick import Patient, patient
from tests.e2e.manifests import NAMESPACE, asking, idle, manifest
from tests.support.scale import spread


def event(one: Patient, pod, reason: str, message: str, at: str = "2026-01-01T00:00:00Z") -> None:
    meta = pod["metadata"]
    about = {"kind": "Pod", "namespace": NAMESPACE, "name": meta["name"], "uid": meta["uid"]}
    body = {"metadata": {}, "involvedObject": about, "reason": reason, "message": message, "lastTimestamp": at}
    one.stage.api.store.create(RESOURCES["events"], NAMESPACE, body)


def share(one: Patient, *, memory: int = 3000, **more):
    return asking("main", one.stage.family.resources, memory=memory, cores=30, **more)


def created(one: Patient, *containers, **more):
    return one.stage.api.create_pod(manifest("busy", containers or [share(one)], **more))


def running(one: Patient, **changes):
    """A pod that has its devices, as scheduler, kubelet and daemon leave it."""
    api = one.stage.api
    pod = one.stage.scheduler.place(manifest("busy", [{**share(one), **changes}]))
    to_allocate = one.stage.family.rules.annotations.to_allocate
    done = {BIND_PHASE: PHASE_SUCCESS, to_allocate: ";"}
    api.annotate_pod(NAMESPACE, "busy", done)
    api.set_phase(NAMESPACE, "busy", "Running")
    return pod


def patched(pod, **status):
    return ("pods", NAMESPACE, "busy"), {"status": status}


def nobody(_one):
    pass


def asks_for_nothing(one):
    created(one, idle("main"))


def asks_in_an_annotation(one):
    created(one, idle("main"), annotations={"nvidia.com/gpumem": "3000"})


def memory_alone(one):
    created(one, {"name": "main", "resources": {"limits": {"nvidia.com/gpumem-percentage": "10"}}})


def kept_from_the_webhook(one):
    spec = manifest("busy", [share(one)])
    spec["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    one.stage.api.create_pod(spec)


def never_admitted(one):
    created(one, scheduler="default-scheduler")


def too_large(one):
    event(one, created(one, share(one, memory=10**6)), "FilteringFailed", "no node fits: 8/8 CardInsufficientMemory")


def too_large_and_nobody_says_so(one):
    created(one, share(one, memory=10**6))


def scheduler_silent(one):
    created(one)


def node_cannot(one):
    one.annotate(**{one.stage.family.rules.annotations.register: None})
    created(one)


def on_another_node(one):
    running(one)
    one.stage.api.annotate_pod(NAMESPACE, "busy", {ASSIGNED_NODE: "elsewhere"})


def refused_by_the_node(one):
    pod = created(one)
    one.stage.api.bind(NAMESPACE, "busy", one.stage.node)
    one.stage.api.annotate_pod(NAMESPACE, "busy", {ASSIGNED_NODE: one.stage.node, BIND_PHASE: PHASE_SUCCESS})
    message = "Allocate failed due to rpc error: code = FailedPrecondition desc = DeviceMismatch: it waits for others"
    key, patch = patched(pod, phase="Failed", reason="UnexpectedAdmissionError", message=message)
    one.stage.api.store.patch(key, patch, part="status")


def container_refused(one):
    pod = running(one)
    waiting = {"reason": "CreateContainerError", "message": "PreStartContainer: WrongHolder: of another container"}
    statuses = [{"name": "main", "state": {"waiting": waiting}}]
    one.stage.api.store.patch(*patched(pod, containerStatuses=statuses), part="status")


def decision_damaged(one):
    running(one)
    one.stage.api.annotate_pod(NAMESPACE, "busy", {one.stage.family.rules.annotations.allocated: "GPU-0,NVIDIA;"})


def privileged(one):
    running(one, securityContext={"privileged": True})


def limits_switched_off(one):
    running(one, env=[{"name": "CUDA_DISABLE_CONTROL", "value": "true"}])


def region_damaged(one):
    running(one)
    container = {"namespace": NAMESPACE, "pod": "busy", "container": "main", "state": "corrupt", "detail": "cut off"}
    one.usage = {"node": one.stage.node, "devices": [{"containers": [container]}]}


PLANTED = {
    nobody: ("pod", "none of this name"),
    asks_for_nothing: ("request", "no container asks"),
    asks_in_an_annotation: ("request", "stands among the annotations"),
    memory_alone: ("request", "only nvidia.com/gpumem-percentage"),
    kept_from_the_webhook: ("admission", "hami.io/webhook"),
    never_admitted: ("admission", "the webhook has not seen"),
    too_large: ("scheduler", "8/8 CardInsufficientMemory"),
    too_large_and_nobody_says_so: ("rules", "1 of 1 nodes"),
    scheduler_silent: ("scheduler", "has said nothing"),
    node_cannot: ("rules", "1 of 1 nodes"),
    on_another_node: ("binding", "decided on node elsewhere"),
    refused_by_the_node: ("kubelet", "DeviceMismatch"),
    container_refused: ("kubelet", "WrongHolder"),
    decision_damaged: ("decision", "memory"),
    privileged: ("limits", "is privileged"),
    limits_switched_off: ("limits", "CUDA_DISABLE_CONTROL"),
    region_damaged: ("usage", "corrupt: cut off"),
}


async def examined(one: Patient):
    return pod_findings(await pod_facts(NAMESPACE, "busy", one.options, {}))


@pytest.mark.parametrize("plant", spread(PLANTED, part=3), ids=lambda plant: plant.__name__)
async def test_what_keeps_a_pod_from_its_devices_or_its_limits_is_named_first(plant):
    check, text = PLANTED[plant]
    async with patient() as one:
        plant(one)
        found = await examined(one)

    first = next(line for line in found if line.mark.failed)
    assert (first.check, first.remedy != "") == (check, True), [(line.check, line.text) for line in found]
    assert text in first.text


async def test_a_pod_that_runs_within_its_limits_fails_in_nothing():
    async with patient() as one:
        running(one)
        found = {"state": "ok", "memoryLimit": 3000 << 20, "memoryUsed": 1 << 20, "processes": 1, "detail": ""}
        container = {"namespace": NAMESPACE, "pod": "busy", "container": "main", **found}
        one.usage = {"node": one.stage.node, "devices": [{"containers": [container]}]}

        lines = await examined(one)

    assert [line for line in lines if line.mark.failed] == []
    said = "\n".join(line.text for line in lines)
    assert "main has 3000 MiB and 30 cores" in said
    assert "counts 1048576 of 3145728000 bytes" in said


async def test_events_that_may_not_be_listed_are_a_warning():
    async with patient() as one:
        running(one)
        one.stage.api.error(403, count=None, match="GET .*/events", message="no")

        lines = await examined(one)

    assert [(line.check, line.mark.value) for line in lines if line.check == "Events"] == [("Events", "warning")]


def a_process(proc: Path, pid: int, *, group: str, mounted: bool = True, mapped: bool = True) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    library = "/usr/local/vgpu/libvgpu.so"
    (folder / "cgroup").write_text(f"0::/kubepods/pod1/cri-containerd-{group}.scope\n")
    (folder / "comm").write_text("train\n")
    (folder / "mountinfo").write_text(
        f"1 2 8:1 /usr/local/vgpu/libvgpu.so {library} ro - ext4 d rw\n" if mounted else ""
    )
    (folder / "maps").write_text(f"7f00-7f01 r-xp 0 8:1 7 {library if mapped else '/bin/static'}\n")


def test_a_process_that_has_not_loaded_the_limiter_is_seen(tmp_path):
    a_process(tmp_path, 10, group="c1")
    a_process(tmp_path, 11, group="c1", mapped=False)
    a_process(tmp_path, 12, group="c1", mounted=False, mapped=False)
    a_process(tmp_path, 13, group="c2", mapped=False)
    (tmp_path / "14").mkdir()
    (tmp_path / "version").write_text("")

    found = sorted(processes_of({"c1": "main"}, Path("/usr/local"), tmp_path), key=lambda one: one.pid)

    assert found == [
        LimitedProcess(pid=10, name="train", container="main", limited=True),
        LimitedProcess(pid=11, name="train", container="main", limited=False),
    ]


async def test_a_static_program_is_why_a_container_is_without_limits(tmp_path, monkeypatch):
    monkeypatch.setattr("hami_plugin.cli.doctor.asking.PROC", tmp_path)
    async with patient() as one:
        pod = running(one)
        statuses = [{"name": "main", "containerID": "containerd://c1"}]
        one.stage.api.store.patch(*patched(pod, containerStatuses=statuses), part="status")
        a_process(tmp_path, 11, group="c1", mapped=False)
        hook = one.options["hook_path"]
        for file in ("mountinfo", "maps"):
            path = tmp_path / "11" / file
            path.write_text(path.read_text().replace("/usr/local/vgpu", f"{hook}/vgpu"))

        lines = await examined(one)

    first = next(line for line in lines if line.mark.failed)
    assert (first.check, "process 11 (train) of container main" in first.text) == ("processes", True)


async def test_a_pod_without_a_decision_is_no_failure_where_such_pods_are_served():
    async with patient(unannotatedPods="serve") as one:
        created(one, scheduler="default-scheduler")
        one.stage.api.bind(NAMESPACE, "busy", one.stage.node)

        lines = await examined(one)

    assert [line.check for line in lines if line.mark.failed] == []
    assert [line.check for line in lines if line.mark == "warning"][:2] == ["admission", "binding"]


async def test_a_profile_that_the_kubelet_alone_hands_out_needs_no_decision():
    async with patient() as one:
        created(one, {"name": "main", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}})

        lines = await examined(one)

    assert [(line.check, line.mark.value) for line in lines] == [("request", "ok")]
