"""The daemon from its start to its end: what a container receives, what probes say, and the other modes."""

import asyncio
import time
from pathlib import Path

import pytest

from hami_plugin.demo.node import NODE
from hami_plugin.model.views import pod_view
from hami_plugin.protocol import keys
from hami_plugin.protocol.nodes import decode_legacy
from hami_plugin.simulation.kubelet import AdmissionError, StartError
from tests.e2e.manifests import asking, idle, manifest, small
from tests.e2e.steps import WITHIN_S, bring_up, fresh, offered, probed, refusal, sound, start, take_down
from tests.e2e.truth import annotation, journal

pytestmark = pytest.mark.executed
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
ALLOCATED = "hami.io/vgpu-devices-allocated"


async def test_the_golden_pod_of_the_protocol_receives_exactly_what_hami_would_give_it(set_up):
    stage = await set_up()
    hook = stage.directory / "hook"
    (hook / "vgpu" / "libvgpu.so.v2.10.0").touch()
    await start(stage)
    uuid = stage.hardware.machine.devices[0].uuid
    decision = f"{uuid},NVIDIA,3000,30:;"
    item = manifest("golden", [asking("main", stage.family.resources, memory=3000, cores=30)])
    item |= {"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Pending"}}
    item["spec"]["nodeName"] = NODE
    item["metadata"] |= {
        "uid": "1111",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {
            TO_ALLOCATE: decision,
            ALLOCATED: decision,
            keys.ASSIGNED_NODE: NODE,
            keys.BIND_PHASE: keys.PHASE_ALLOCATING,
        },
    }
    lock = "2026-01-01T00:00:00Z,demo,golden"
    stage.api.annotate_node(NODE, {keys.NODE_LOCK: lock})
    pod = pod_view(stage.api.store._store("pods", ("demo", "golden"), None, item))

    ids = (await stage.kubelet.admit(pod))["main"][stage.resource]
    edits = (await stage.kubelet.start_container("1111", "main")).edits

    cache = edits.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
    assert dict(edits.env) == {
        "NVIDIA_VISIBLE_DEVICES": uuid,
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": cache,
        "LIBCUDA_LOG_LEVEL": "1",
    }
    assert Path(cache).parent == hook / "vgpu"
    assert cache.endswith(".cache")
    assert {(mount.container_path, mount.host_path, mount.read_only) for mount in edits.mounts} == {
        (f"{hook}/vgpu/libvgpu.so", f"{hook}/vgpu/libvgpu.so.v2.10.0", True),
        (f"{hook}/vgpu", f"{hook}/vgpu/containers/1111_main", False),
        ("/tmp/vgpulock", f"{hook}/vgpu/containers/1111_main", False),
        ("/etc/ld.so.preload", f"{hook}/vgpu/ld.so.preload", True),
    }
    assert [replica.rpartition("-")[0] for replica in ids] == [uuid]
    assert (hook / "vgpu/containers/1111_main").stat().st_mode & 0o777 == 0o777
    await stage.until(lambda: not annotation(stage, keys.NODE_LOCK), "the lock's release")
    after = fresh(stage, pod).annotations
    assert after[TO_ALLOCATE].strip(";") == ""
    assert (after[keys.BIND_PHASE], after[ALLOCATED]) == (keys.PHASE_SUCCESS, decision)


@pytest.mark.scenario("A10")
async def test_every_share_stands_at_the_container_that_receives_it(running):
    """Init containers and those that ask for nothing stand before, between and behind. Each share is another one."""
    stage = await running()
    names = stage.family.resources
    inits = [idle("setup"), asking("warm", names, memory=1000, cores=10, sidecar=True)]
    apps = [idle("proxy"), asking("one", names, memory=2000, cores=20), idle("log"), asking("two", names, memory=3000)]

    pod = await bring_up(stage, manifest("places", [*apps, idle("last")], inits=inits))

    entries = fresh(stage, pod).annotations[ALLOCATED].split(";")
    assert entries.pop() == ""
    order = ["setup", "warm", "proxy", "one", "log", "two", "last"]
    assert [container.name for container in pod.containers] == order
    received = {}
    for container in pod.containers:
        env = (await stage.kubelet.start_container(pod.uid, container.name)).edits.env
        limit = env.get("CUDA_DEVICE_MEMORY_LIMIT_0", "m")[:-1]
        received[container.name] = env.get("NVIDIA_VISIBLE_DEVICES"), limit
    assert [received[name][1] for name in ("warm", "one", "two")] == ["1000", "2000", "3000"]
    for name, entry in zip(order, entries, strict=True):
        uuid, _word, memory, _cores = entry.removesuffix(":").split(",") if entry else (None, "", "", "")
        assert received[name] == (uuid, memory), name


@pytest.mark.full
@pytest.mark.scenario("X1")
@pytest.mark.parametrize(
    ("moved", "why"),
    [
        (lambda entries: sorted(entries, key=bool), "devices for container last"),  # to the end
        (lambda entries: entries[::-1], "devices for container last"),
        (lambda entries: [entries[1], entries[0], entries[2]], "1000 MiB"),  # the other one's, so that one has more
    ],
    ids=["end", "reversed", "exchanged"],
)
async def test_shares_that_were_moved_to_other_containers_are_refused(running, moved, why):
    stage = await running()
    names = stage.family.resources
    apps = [asking("one", names, memory=1000, cores=10), asking("two", names, memory=2000, cores=10), idle("last")]
    pod = stage.scheduler.place(manifest("moved", apps))
    decision = "".join(f"{entry};" for entry in moved(pod.annotations[ALLOCATED].split(";")[:-1]))
    stage.api.annotate_pod(pod.namespace, pod.name, {TO_ALLOCATE: decision, ALLOCATED: decision})

    assert why in await refusal(stage, fresh(stage, pod))


async def test_probes_and_metrics_follow_the_daemons_life(running):
    stage = await running()
    resource = f'resource="{stage.resource}"'
    await bring_up(stage, small("served", stage.family.resources))
    stage.api.create_pod(manifest("stranger", [asking("main", stage.family.resources)], scheduler="other"))
    words = await refusal(stage, pod_view(stage.api.bind("demo", "stranger", NODE)))

    assert (await stage.get("/healthz"))[0] == 200
    await probed(stage, 200)
    _status, metrics = await stage.get("/metrics")
    assert f'hami_plugin_allocations_total{{outcome="ok",{resource}}} 1.0' in metrics
    assert f'hami_plugin_allocations_total{{outcome="NotScheduledByHAMi",{resource}}} 1.0' in metrics
    assert f"hami_plugin_registered{{{resource}}} 1.0" in metrics
    assert metrics.count("hami_plugin_device_healthy{") == len(stage.hardware.machine.devices)
    assert "unannotatedPods" in words

    await stage.api.refuse()
    assert "api server" in await probed(stage, 503)
    assert (await stage.get("/healthz"))[0] == 200
    await stage.api.accept()
    await probed(stage, 200)


@pytest.mark.full
async def test_the_legacy_format_writes_a_handshake_beside_the_register(running):
    stage = await running(registerFormat="legacy")
    key = stage.family.rules.annotations.register

    devices = decode_legacy(annotation(stage, key))

    assert [device.id for device in devices] == [device.uuid for device in stage.hardware.machine.devices]
    assert not annotation(stage, key).startswith("[")
    assert annotation(stage, stage.family.rules.annotations.handshake).startswith("Reported")
    await bring_up(stage, small("served", stage.family.resources))


@pytest.mark.full
@pytest.mark.scenario("A11")
async def test_a_pod_of_another_scheduler_may_be_served_a_whole_device_that_nobody_shares(running):
    stage = await running(unannotatedPods="serve")
    shared = await bring_up(stage, small("shared", stage.family.resources))
    stage.api.create_pod(manifest("stranger", [asking("main", stage.family.resources)], scheduler="other"))
    stranger = pod_view(stage.api.bind("demo", "stranger", NODE))

    await stage.kubelet.admit(stranger)
    env = (await stage.kubelet.start_container(stranger.uid, "main")).edits.env

    used = (await stage.kubelet.start_container(shared.uid, "main")).edits.env["NVIDIA_VISIBLE_DEVICES"]
    device = next(d for d in stage.hardware.machine.devices if d.uuid == env["NVIDIA_VISIBLE_DEVICES"])
    assert device.uuid != used
    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{device.memory}m"


@pytest.mark.scenario("H10")
async def test_sigterm_during_an_allocate_ends_in_time_and_the_next_daemon_serves(running, tell):
    stage = await running(decisionWaitSeconds=10)
    waiting = pod_view(stage.api.create_pod(manifest("waiting", [asking("main", stage.family.resources)])))
    call = asyncio.create_task(stage.kubelet.plugin(stage.resource).allocate([f"{stage.registered()[0].id}-0"]))
    await asyncio.wait([call], timeout=0.2)
    assert not call.done()

    began = time.monotonic()
    stage.daemon.terminate()
    async with asyncio.timeout(30):
        assert await stage.daemon.wait() == 0
    tell(f"ended {time.monotonic() - began:.2f} s after SIGTERM")
    with pytest.raises(Exception, match=r"UNAVAILABLE|CANCELLED|FAILED_PRECONDITION"):
        await call

    stage.daemon = None
    await start(stage)
    take_down(stage, waiting)
    await bring_up(stage, small("later", stage.family.resources))
    await sound(stage)


async def test_a_daemon_that_is_updated_keeps_what_running_pods_have(running):
    stage = await running()
    pods = [await bring_up(stage, small(f"kept-{n}", stage.family.resources)) for n in range(3)]
    held = {share.key: share.ids for share in journal(stage)}
    assert {key[0] for key in held} == {pod.uid for pod in pods}

    await stage.stop_daemon()
    assert annotation(stage, stage.family.rules.annotations.register)
    await start(stage)
    await offered(stage)

    assert {share.key: share.ids for share in journal(stage)} == held
    for pod in pods:
        assert (await stage.kubelet.start_container(pod.uid, "main")).edits.env
    await bring_up(stage, small("later", stage.family.resources))
    for pod in pods:
        take_down(stage, pod)
    await sound(stage)


async def test_a_decision_that_grants_more_than_was_asked_for_is_refused_and_told(running):
    stage = await running()
    pod = stage.scheduler.place(small("greedy", stage.family.resources, memory=1000))
    text = fresh(stage, pod).annotations[TO_ALLOCATE].replace(",1000,", ",70000,")
    stage.api.annotate_pod("demo", "greedy", {TO_ALLOCATE: text, ALLOCATED: text})

    with pytest.raises(AdmissionError, match="may have 1000 MiB"):
        await stage.kubelet.admit(pod)

    await stage.until(lambda: any(e["reason"] == "ExceedsRequest" for e in stage.api.events()), "the Event")
    await stage.until(lambda: fresh(stage, pod).annotations[keys.BIND_PHASE] == keys.PHASE_FAILED, "the failed phase")
    await stage.until(lambda: not annotation(stage, keys.NODE_LOCK), "the lock's release")


@pytest.mark.full
async def test_a_pod_that_binds_itself_with_a_decision_of_its_own_gets_nothing_on_top_of_others(running):
    stage = await running()
    memory = stage.hardware.machine.devices[0].memory
    victim = await bring_up(stage, small("victim", stage.family.resources, memory=memory - 500))
    decided = fresh(stage, victim).annotations[ALLOCATED].replace(f",{memory - 500},", ",1000,")
    item = small("forged", stage.family.resources, memory=1000)
    item["metadata"]["annotations"] = {TO_ALLOCATE: decided, ALLOCATED: decided, keys.ASSIGNED_NODE: NODE}
    stage.api.create_pod(item)
    forged = pod_view(stage.api.bind("demo", "forged", NODE))

    with pytest.raises(AdmissionError, match=f"has {memory} MiB of memory, of which demo/victim holds {memory - 500}"):
        await stage.kubelet.admit(forged)

    await stage.until(lambda: any(e["reason"] == "DeviceOvercommitted" for e in stage.api.events()), "the Event")
    take_down(stage, forged)
    take_down(stage, victim)
    await bring_up(stage, small("next", stage.family.resources, memory=memory))
    await sound(stage)


@pytest.mark.full
@pytest.mark.parametrize(("check", "served"), [("hami", True), ("exact", False), ("off", True)])
async def test_the_operator_says_how_a_pod_with_an_init_container_is_counted(running, check, served):
    stage = await running(overcommitCheck=check)
    resources, memory = stage.family.resources, stage.hardware.machine.devices[0].memory
    first = manifest("first", [asking("main", resources, memory=memory)], inits=[idle("init")])
    uuid = fresh(stage, await bring_up(stage, first)).annotations[ALLOCATED].split(",")[0].strip(";")
    decided = f"{uuid},{stage.family.resources.device_type},1000,0:;"
    item = small("second", resources, memory=1000, cores=0)
    item["metadata"]["annotations"] = {TO_ALLOCATE: decided, ALLOCATED: decided, keys.ASSIGNED_NODE: NODE}
    stage.api.create_pod(item)
    second = pod_view(stage.api.bind("demo", "second", NODE))

    if served:
        assert "main" in await stage.kubelet.admit(second)
    else:
        with pytest.raises(AdmissionError, match=f"demo/first holds {memory}"):
            await stage.kubelet.admit(second)


@pytest.mark.full
async def test_a_preload_file_that_names_another_library_than_the_mounted_one_stops_containers_and_readiness(running):
    """As where HAMi-core was installed for another ``hookPath``: its library would be there, and loaded by nobody."""
    stage = await running()
    vgpu = stage.directory / "hook/vgpu"
    pod = await bring_up(stage, small("before", stage.family.resources))
    await probed(stage, 200)

    (vgpu / "ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so\n")

    body = await probed(stage, 503)
    assert f"{vgpu}/ld.so.preload names /usr/local/vgpu/libvgpu.so, and not {vgpu}/libvgpu.so" in body
    with pytest.raises(StartError, match=r"names /usr/local/vgpu/libvgpu\.so"):
        await stage.kubelet.start_container(pod.uid, "main")
    await stage.until(lambda: any(e["reason"] == "HostNotPrepared" for e in stage.api.events()), "the Event")

    (vgpu / "ld.so.preload").write_text(f"# ours\n/opt/other.so {vgpu}/libvgpu.so\n")
    await probed(stage, 200)
    assert (await stage.kubelet.start_container(pod.uid, "main")).edits.env


@pytest.mark.full
async def test_a_host_without_the_library_is_not_ready_until_it_is_there(set_up):
    stage = await set_up()
    library = stage.directory / "hook/vgpu/libvgpu.so"
    library.unlink()
    await start(stage)

    assert f"no file {library} on the host" in await probed(stage, 503)

    library.touch()
    await probed(stage, 200)


@pytest.mark.full
@pytest.mark.parametrize(("says", "served"), [(b"set core utilization limit to  %d", False), (b"", True)])
async def test_core_limits_that_differ_are_served_only_where_the_installed_library_obeys_them(running, says, served):
    stage = await running()
    (stage.directory / "hook/vgpu/libvgpu.so").write_bytes(b"\x7fELF" + says)
    pod = stage.scheduler.place(manifest("two", [asking("main", stage.family.resources, count=2, cores=30)]))
    text = fresh(stage, pod).annotations[TO_ALLOCATE].replace(",30:", ",20:", 1)
    stage.api.annotate_pod("demo", "two", {TO_ALLOCATE: text, ALLOCATED: text})

    if not served:
        with pytest.raises(AdmissionError, match=r"one limit for all cards; install HAMi-core of after April 2026"):
            await stage.kubelet.admit(pod)
        return
    await stage.kubelet.admit(pod)
    env = (await stage.kubelet.start_container(pod.uid, "main")).edits.env
    assert sorted(env[f"CUDA_DEVICE_SM_LIMIT_{i}"] for i in range(2)) == ["20", "30"]


@pytest.mark.full
async def test_a_configured_compute_mode_is_set_on_every_card_or_the_card_says_why_not(set_up):
    exclusive = {"computeMode": "ExclusiveProcess", "deviceSplitCount": 1}
    stage = await set_up("t4-4-pcie", vendors={"nvidia": {"enabled": True, **exclusive}})
    stage.hardware.simulator.inject("compute-mode", None, 0)
    stage.hardware.simulator.inject("fail-call", 2, "nvmlDeviceSetComputeMode:4")
    await stage.start_daemon()

    def ailing():
        registered = stage.registered()
        return [info.index for info in registered if not info.health] if len(registered) == 4 else None

    def events():
        return [e for e in stage.api.events() if e["reason"] == "ComputeModeNotSet"]

    await stage.until(lambda: ailing() == [2], "the register of one card that is not well", WITHIN_S)
    await stage.until(events, "the Event", WITHIN_S)
    told = events()[0]["message"]
    assert "NoPermission" in told
    assert "CAP_SYS_ADMIN" in told
    await stage.until(lambda: stage.kubelet.allocatable(stage.resource) == 3, "the kubelet's count", WITHIN_S)
    await bring_up(stage, small("alone", stage.family.resources))

    stage.hardware.simulator.inject("back", 2)
    await offered(stage)
