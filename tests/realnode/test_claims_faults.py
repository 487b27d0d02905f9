"""Case v, too: claims through a boot and an eviction, with a hanging daemon, for administrators, and many of them."""

import os
import re
import signal
import time
from statistics import quantiles

import grpc
import pytest

from hami_plugin.kubelet.api import dra_v1_pb2
from hami_plugin.kubelet.api.dra_v1_pb2_grpc import DRAPluginStub
from tests.realnode import versions
from tests.realnode.asked import NAMESPACE, container, manifest
from tests.realnode.claims import CLAIM, DRIVER, GROUP, OWN, STOCK, Claims, receiving, request
from tests.realnode.ground import NAME
from tests.realnode.mig import TRAP
from tests.realnode.pods import Pods
from tests.realnode.servers import until
from tests.realnode.test_claims import BACK_S, CARDS, CONTROL, MEMORY, gpus, has, limits, nodes, only, wipe
from tests.runtimes.simulated import HOOK, HOOK_SCRIPT

pytestmark = [
    pytest.mark.case("v", "devices by ResourceClaims: a boot, an eviction, a daemon that hangs, administrators, many"),
    pytest.mark.since(versions.CONSUMABLE),
]
LABEL = "hami-plugin.io/nvidia-front-end"
ADMIN = "resource.kubernetes.io/admin-access"
OWN_NAME = "example.com/whole-gpu"
"""Of which no device plugin ever had any."""
BOOT = """
from pathlib import Path
from hami_plugin.daemon import node
assert node._boot_id
node._boot_id = lambda _proc: Path(__file__).with_name("boot").read_text()
"""
"""Beside the daemon's own code: a host of which the test says which boot it has."""
MANY, TOGETHER, THOUSAND = 100, 10, 1000
SLOTS = 10
"""Of a card."""
STATE = "/var/lib/hami-plugin"
LOCAL = (("grpc.enable_http_proxy", 0), ("grpc.default_authority", "localhost"))


@pytest.fixture(scope="module")
def by_label(installed, node):
    """Cards go by claims as the node's label says, faults evict, and the test says which boot it is."""
    installed.await_ready()
    folder = node.path(TRAP)
    folder.mkdir(exist_ok=True)
    before = {path: path.read_bytes() for path in folder.glob("*.py")}
    (folder / "sitecustomize.py").write_text(BOOT)
    (folder / "boot").write_text("boot-1")
    node.kubectl("label", "--overwrite", "node", NAME, f"{LABEL}=dra")
    by = "auto" if node.kubernetes.minor >= versions.CONSUMABLE else "dra"  # which is never chosen before, gates or not
    installed.configure(
        nvidia={"frontEnd": by, "faultTaints": "no-execute"}, extraEnv=[{"name": "PYTHONPATH", "value": TRAP}]
    )
    machine = installed.machine()
    machine.make_nodes_real()
    (machine.directory / HOOK).write_bytes(HOOK_SCRIPT.read_bytes())
    yield installed
    node.kubectl("label", "node", NAME, f"{LABEL}-")
    installed.configure()
    for path, text in before.items():
        path.write_bytes(text)
    until(lambda: node.allocatable("nvidia.com/gpu") == CARDS * 10, "all shares", BACK_S)


@pytest.fixture
def claims(by_label, node):
    by_label.await_ready()
    made = Claims(node=node, pods=Pods(node=node, place=node.api.create_pod))
    until(lambda: len(made.devices()) == CARDS, "all cards in the slices", BACK_S)
    yield made
    made.clear()


def test_after_a_boot_a_claim_is_as_it_was_and_what_its_container_counted_is_gone(claims, by_label, node):
    name = claims.run("booted", request(memory="2000Mi", cores="20"), restartPolicy="Always")
    spec, pid = only(claims, node), by_label.pid()
    uid = claims.pods.get(name)["metadata"]["uid"]
    (folder,) = node.path("/").glob(f"usr/local/vgpu/containers/{uid}_main")
    (folder / "counted.cache").touch()

    node.path(f"{TRAP}/boot").write_text("boot-2")
    by_label.kill()
    wipe(node)

    until(lambda: by_label.pid_or_none() not in (None, pid), "another process", BACK_S)
    until(lambda: len(claims.specs()) == 1, "the spec", BACK_S)
    assert only(claims, node) == spec
    until(lambda: not (folder / "counted.cache").exists(), "the end of what was counted", BACK_S)
    os.kill(claims.pods.pid(name), signal.SIGKILL)
    until(lambda: claims.pods.restarts(name) == 1, "another start of the container", BACK_S)
    claims.pods.await_running(name)
    assert limits(claims, name) == ("2000m", "20")
    claims.end(name)
    claims.await_free()


def test_a_fault_that_asks_for_a_reset_evicts_the_pods_of_its_card_and_no_others(claims, by_label, record_property):
    sick, well = claims.uuids()[3], claims.uuids()[4]
    claims.run("sick", request(uuid=sick, memory="1000Mi"))
    claims.run("well", request(uuid=well, memory="1000Mi"))
    number, machine = has(claims, "sick"), by_label.machine()

    machine.inject("xid", number, "79")
    machine.inject("lost", number)
    try:
        gone = until(lambda: claims.node.api.find_pod(NAMESPACE, "sick") is None, "the eviction", BACK_S)
        effects = {t["effect"] for one in claims.devices().values() for t in one.get("taints", ())}
        assert effects == {"NoExecute"}
        assert claims.pods.phase("well") == "Running"
    finally:
        machine.inject("back", number)
    until(lambda: not any(one.get("taints") for one in claims.devices().values()), "the end of the taint", BACK_S)
    claims.pods.names.remove("sick")
    claims.run("again", request(uuid=sick, memory="1000Mi"))
    record_property("figures", f"a pod of a card that needs a reset was gone {gone:.1f} s after the fault")


def test_an_administrators_claim_has_a_card_that_others_have_and_no_limits(claims, node):
    """It asks for a small amount: the scheduler adds up what administrators ask for, too."""
    pinned = claims.uuids()[6]
    user = claims.run("user", request(uuid=pinned, memory="80000Mi", cores="100"))
    node.kubectl("label", "--overwrite", "namespace", NAMESPACE, f"{ADMIN}=true")
    try:
        asked = request(uuid=pinned, memory="1Mi")
        asked["exactly"]["adminAccess"] = True
        name = claims.run("admin", asked)
    finally:
        node.kubectl("label", "namespace", NAMESPACE, f"{ADMIN}-")

    (result,) = claims.results(name)
    assert result["adminAccess"] is True
    assert gpus(claims.pods.report(name)) == nodes(has(claims, user))
    assert limits(claims, name) == (None, None)
    assert limits(claims, user) == ("80000m", "100")
    claims.end(name)
    assert len(claims.specs()) == 1


def test_two_containers_of_a_pod_have_parts_of_one_card_by_a_claim_each(claims):
    pinned = claims.uuids()[1]
    own = {
        which: claims.template(f"of-{which}", request(uuid=pinned, memory=f"{amount}Mi", cores=str(amount // 100)))
        for which, amount in (("a", 1000), ("b", 2000))
    }
    listed = [{"name": which, "resourceClaimTemplateName": template} for which, template in own.items()]
    parts = [{**container(which), "resources": {"claims": [{"name": which}]}} for which in own]
    name = claims.pods.create(claims.asked("apart", containers=parts, resourceClaims=listed))
    claims.pods.await_running(name)

    assert limits(claims, name, "a") == ("1000m", "10")
    assert limits(claims, name, "b") == ("2000m", "20")
    assert gpus(claims.pods.report(name, "a")) == gpus(claims.pods.report(name, "b")) == nodes(1)
    claims.end(name)
    claims.await_free()


def test_a_pod_has_a_whole_card_by_a_resource_that_no_device_plugin_ever_had(claims, node):
    """The scheduler makes the claim: the pod names none, and nothing of ours takes part."""
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "own.example.com"},
        "spec": {"selectors": [selector], "extendedResourceName": OWN_NAME},
    }
    node.api.call("POST", f"{GROUP}/deviceclasses", body)
    try:
        asked = container(limits={OWN_NAME: 1})
        name = claims.pods.create(claims.asked("plain", containers=[asked], resourceClaims=[]))
        claims.pods.await_running(name)
        seen = claims.pods.granted(name)
        assert len(gpus(seen) - CONTROL) == 1
        assert limits(claims, name)[0] == f"{MEMORY}m"
        claims.end(name)
        claims.await_free()
    finally:
        node.api.call("DELETE", f"{GROUP}/deviceclasses/own.example.com")


@pytest.mark.full
@pytest.mark.since(versions.DEVICE_HEALTH, gates=False)
def test_health_is_unknown_at_a_pod_while_the_daemon_hangs_and_known_again_after(claims, by_label, record_property):
    name = claims.run("watched", request(memory="1000Mi"))

    def health():
        (status,) = claims.pods.get(name)["status"]["containerStatuses"]
        told = {one["name"]: one["resources"] for one in status.get("allocatedResourcesStatus", ())}
        return [device["health"] for device in told.get(f"claim:{CLAIM}", ())]

    until(lambda: health() == ["Healthy"], "health in the pod's status", BACK_S)
    pid = by_label.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        took = until(lambda: health() == ["Unknown"], "the end of what is known", 120)
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: health() == ["Healthy"], "health in the pod's status again", BACK_S)
    assert claims.pods.phase(name) == "Running"
    record_property("figures", f"health was unknown {took:.0f} s after the daemon stood still")


@pytest.mark.full
def test_many_claims_leave_no_file_and_each_is_answered_fast(claims, by_label, record_property):
    template = claims.template("many", request(memory="1000Mi", cores="1"))
    listed = [{"name": CLAIM, "resourceClaimTemplateName": template}]
    before = answered(by_label)
    for begin in range(0, MANY, TOGETHER):
        names = [
            claims.pods.create(claims.asked(f"many-{begin + n}", claim="none", resourceClaims=listed))
            for n in range(TOGETHER)
        ]
        claims.pods.await_running(*names, within_s=120)
        claims.end(*names)
    claims.await_free()

    after = answered(by_label)
    counts = {bound: count - before.get(bound, 0) for bound, count in after.items()}
    assert counts[float("inf")] == MANY
    within = min(bound for bound, count in counts.items() if count >= 0.99 * MANY)
    assert within <= 1.0
    assert claims.specs() == set()
    assert claims.prepared() == {}
    record_property("figures", f"99 of {MANY} claims, {TOGETHER} at a time, were prepared within {within:g} s each")


@pytest.mark.full
def test_a_thousand_claims_prepared_and_released_leave_no_file(claims, by_label, node, record_property):
    """In the place of the kubelet, which would start their pods: as many at a time as the node has slots."""
    node.servers["kubelet"].end()
    try:
        with Kubelet(node, DRIVER) as kubelet:
            devices = sorted(claims.devices())
            slots = [(device, share) for device in devices for share in range(SLOTS)]
            prepared, released = [], []
            for begin in range(0, THOUSAND, len(slots)):
                numbers = range(begin, min(begin + len(slots), THOUSAND))
                made = [allocated(node, f"direct-{n}", *slots[n - begin]) for n in numbers]
                prepared += [kubelet.prepare(one) for one in made]
                assert len(claims.specs()) == len(claims.prepared()) == len(made)
                released += [kubelet.unprepare(one) for one in made]
                assert (claims.specs(), claims.prepared()) == (set(), {})
                for one in made:
                    removed(node, one["metadata"]["name"])
    finally:
        node.servers["kubelet"].start()
    until(node.is_ready, "the node", BACK_S)

    assert len(prepared) == len(released) == THOUSAND
    assert [path.name for path in node.path(STATE).glob(".*.tmp")] == []
    for what, times in (("prepared", prepared), ("released", released)):
        cuts = quantiles(times, n=100)
        told = f"p50 {cuts[49] * 1000:.1f} ms, p99 {cuts[98] * 1000:.1f}, at most {max(times) * 1000:.0f}"
        record_property("figures", f"{THOUSAND} claims {what} one after the other: {told}")


class Kubelet:
    """Its calls of a driver, as the kubelet makes them."""

    def __init__(self, node, driver):
        (self._socket,) = node.path(f"/var/lib/kubelet/plugins/{driver}").glob("dra.*.sock")

    def __enter__(self):
        self._channel = grpc.insecure_channel(f"unix:{self._socket}", options=LOCAL)
        self._stub = DRAPluginStub(self._channel)
        return self

    def __exit__(self, *_exc):
        self._channel.close()

    def prepare(self, claim):
        """How many seconds it took."""
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[named(claim)])
        began = time.monotonic()
        (answer,) = self._stub.NodePrepareResources(request, timeout=45).claims.values()
        took = time.monotonic() - began
        assert not answer.error
        (device,) = answer.devices
        assert device.cdi_device_ids
        return took

    def unprepare(self, claim):
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[named(claim)])
        began = time.monotonic()
        (answer,) = self._stub.NodeUnprepareResources(request, timeout=45).claims.values()
        assert not answer.error
        return time.monotonic() - began


def named(claim):
    meta = claim["metadata"]
    return dra_v1_pb2.Claim(namespace=meta["namespace"], uid=meta["uid"], name=meta["name"])


def allocated(node, name, device, share):
    """A pod of this node with a claim for a slot of a device, as the scheduler leaves both."""
    spec = {"devices": {"requests": [request(memory="1000Mi", cores="1")]}}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
    claim = node.api.call("POST", f"{OWN}/resourceclaims", body)
    listed = [{"name": CLAIM, "resourceClaimName": name}]
    pod = node.api.create_pod(manifest(name, receiving(), nodeName=NAME, schedulerName=STOCK, resourceClaims=listed))
    result = {
        "request": CLAIM,
        "driver": DRIVER,
        "pool": NAME,
        "device": device,
        "shareID": f"00000000-0000-4000-8000-{share:012}",
        "consumedCapacity": {"memory": "1000Mi", "cores": "1", "slots": "1"},
    }
    claim["status"] = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}],
    }
    return node.api.call("PUT", f"{OWN}/resourceclaims/{name}/status", claim)


def removed(node, name):
    node.api.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}?gracePeriodSeconds=0")
    node.api.call("DELETE", f"{OWN}/resourceclaims/{name}")


def answered(daemon):
    """How many claims were prepared within so many seconds."""
    pattern = re.compile(r'hami_plugin_claim_seconds_bucket\{(?=.*operation="prepare").*le="([^"]+)".*\}')
    found = {}
    for name, value in daemon.metrics().items():
        if match := pattern.match(name):
            found[float(match[1].replace("+Inf", "inf"))] = value
    return found


@pytest.mark.full
@pytest.mark.since(versions.CONSUMABLE, gates=False)
def test_the_nodes_label_turns_cards_to_the_device_plugin_and_back_while_the_daemon_runs(claims, node):
    node.kubectl("label", "--overwrite", "node", NAME, f"{LABEL}=device-plugin")
    until(lambda: node.allocatable("nvidia.com/gpu") == CARDS * 10, "all shares", BACK_S)
    until(lambda: not claims.devices(), "the end of the slices", BACK_S)

    node.kubectl("label", "--overwrite", "node", NAME, f"{LABEL}=dra")
    until(lambda: node.allocatable("nvidia.com/gpu") == 0, "the end of the shares", BACK_S)
    until(lambda: len(claims.devices()) == CARDS, "all cards in the slices", BACK_S)
    claims.run("after", request(memory="1000Mi"))
