"""Case v: devices by ResourceClaims, with Kubernetes' own scheduler, kubelet and API server."""

import contextlib
import json
import os
import signal

import pytest

from hami_plugin.model.views import Json
from tests.realnode import readme, release, versions
from tests.realnode.api import ApiError
from tests.realnode.asked import NAMESPACE, container
from tests.realnode.claims import CLAIM, DRIVER, GROUP, SPECS, Claims, receiving, request
from tests.realnode.ground import NAME
from tests.realnode.late import CTR
from tests.realnode.late import NAME as MISSING
from tests.realnode.pods import Pods
from tests.realnode.processes import pid_of
from tests.realnode.servers import until
from tests.runtimes import image
from tests.runtimes.inside import OPENED
from tests.runtimes.simulated import HOOK, HOOK_SCRIPT

pytestmark = [
    pytest.mark.case("v", "devices by ResourceClaims: shared, whole, and through every restart"),
    pytest.mark.since(versions.CLAIMS),
]
PARTS = pytest.mark.since(versions.CONSUMABLE)
NEWER = pytest.mark.since(versions.CONSUMABLE, gates=False)
"""What 1.34's first form of the same does not do."""
CARDS, MEMORY, SLOTS = 8, 81559, "10"
CONTROL = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}
MEMORY_LIMIT, CORE_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT"
BACK_S = 60
GPU = "nvidia.com/gpu"
GUIDES = "first-claim"
"""The pod of the guide in docs/dra.md."""


@pytest.fixture(scope="module")
def by_claims(installed, node):
    """While this module runs, cards go by claims alone."""
    installed.await_ready()
    installed.configure(nvidia={"frontEnd": "dra"})
    machine = installed.machine()
    machine.make_nodes_real()
    (machine.directory / HOOK).write_bytes(HOOK_SCRIPT.read_bytes())  # the simulated one is in Python
    yield installed
    installed.configure()
    until(lambda: node.allocatable("nvidia.com/gpu") == CARDS * 10, "all shares", BACK_S)


@pytest.fixture
def claims(by_claims, node):
    by_claims.await_ready()
    made = Claims(node=node, pods=Pods(node=node, place=node.api.create_pod))
    until(lambda: len(made.devices()) == CARDS, "all cards in the slices", BACK_S)
    yield made
    made.clear()


def card(uuid: str) -> int:
    """Its number; the simulated UUIDs begin with it."""
    return int(uuid.removeprefix("GPU-")[:8])


def has(claims: Claims, pod: str) -> int:
    """The number of the one card that the scheduler has allocated to a pod."""
    (result,) = claims.results(pod)
    return card(claims.devices()[result["device"]]["attributes"]["uuid"]["string"])


def nodes(number: int) -> set[str]:
    return {*CONTROL, f"/dev/nvidia{number}"}


def limits(claims: Claims, pod: str, name: str = "main") -> tuple[str | None, str | None]:
    """Of memory and of cores, as a container sees them."""
    env = claims.pods.report(pod, name).env
    return env.get(MEMORY_LIMIT), env.get(CORE_LIMIT)


def written(claims: Claims) -> list[tuple[str, str]]:
    """Every version of the node's slices."""
    return [(one["metadata"]["uid"], one["metadata"]["resourceVersion"]) for one in claims.slices()]


def gpus(seen) -> set[str]:
    """The nodes of the driver in a container, without those for pictures."""
    return {path for path in seen.devices if path.startswith("/dev/nvidia")}


def test_the_api_server_keeps_every_field_of_the_slices_and_the_kubelet_counts_no_card(claims, node, by_claims):
    (one,) = claims.slices()

    assert one["metadata"]["ownerReferences"][0]["uid"] == node.api.node(NAME)["metadata"]["uid"]
    assert one["spec"]["pool"] == {
        "name": NAME,
        "generation": one["spec"]["pool"]["generation"],
        "resourceSliceCount": 1,
    }
    assert [device["attributes"]["index"]["int"] for device in one["spec"]["devices"]] == list(range(CARDS))
    if node.kubernetes.as_new_as >= versions.CONSUMABLE:
        for device in one["spec"]["devices"]:
            assert device["allowMultipleAllocations"] is True
            assert device["capacity"]["memory"]["value"] == f"{MEMORY}Mi"
            policies = {name: sorted(value["requestPolicy"]) for name, value in device["capacity"].items()}
            assert policies == {what: ["default", "validRange"] for what in ("memory", "cores", "slots")}
        assert "fields of slices dropped" not in by_claims.log()
    until(lambda: node.allocatable("nvidia.com/gpu") == 0, "the end of the shares", BACK_S)  # the kubelet tells it late


@PARTS
def test_a_part_of_a_card_is_in_the_container_as_booked_and_nothing_is_left_of_it(claims, node, record_property):
    before = written(claims)
    name = claims.run("small", request(memory="3000Mi", cores="30"))

    (result,) = claims.results(name)
    assert result["consumedCapacity"] == {"memory": "3000Mi", "cores": "30", "slots": "1"}
    assert result["shareID"]
    seen = claims.pods.granted(name)
    assert (seen.env[MEMORY_LIMIT], seen.env[CORE_LIMIT], seen.env["NVIDIA_VISIBLE_DEVICES"]) == ("3000m", "30", "void")
    assert gpus(seen) == nodes(has(claims, name))
    assert {seen.devices[path].reading for path in gpus(seen)} == {OPENED}
    assert any(path.endswith("/libcuda.so.570.124.06") for path in seen.mounts)
    assert "/etc/ld.so.preload" in seen.mounts
    told = result["shareID"] if node.kubernetes.minor >= versions.SHARES_TOLD else ""
    assert claims.told_by_kubelet(name) == {"main": {(result["device"], told)}}
    assert len(claims.specs()) == len(claims.prepared()) == 1
    own = claims.of(name)["metadata"]["name"]

    claims.end(name)

    freed = claims.await_free()
    until(lambda: claims.find(own) is None, "the end of the template's claim", BACK_S)
    assert written(claims) == before
    record_property("figures", f"nothing was left of a claim {freed:.1f} s after its pod was gone")


@PARTS
def test_the_guides_commands_lead_from_an_empty_cluster_to_a_pod_with_a_part_of_a_card(claims, node):
    """The first two have been typed: the release is installed, ``by_claims`` gives it the value, and the node is known
    by its label.
    """
    first, label, apply, wait, logs = readme.commands(NAME, readme.CLAIMS)
    assert first == [*readme.HELM_INSTALL, "--set", "devicePlugin.nvidia.frontEnd=dra"]
    file = apply[-1]
    node.enclosure.write(f"/{file}", (readme.ROOT / file).read_bytes())
    claims.pods.names.append(GUIDES)

    node.kubectl(*label[1:], "--overwrite")
    node.kubectl(*apply[1:])
    node.kubectl(*wait[1:], deadline_s=150)

    assert node.kubectl(*logs[1:]).startswith("3000m of ")
    claims.end(GUIDES)
    node.kubectl("delete", *apply[2:], "--ignore-not-found")


@PARTS
def test_two_pods_share_a_card_held_to_their_amounts_and_a_third_waits_until_one_ends(claims, record_property):
    pinned = claims.uuids()[5]
    first = claims.run("first", request(uuid=pinned, memory="40000Mi", cores="60"))
    second = claims.run("second", request(uuid=pinned, memory="30000Mi", cores="40"))
    claims.create("over-memory", request(uuid=pinned, memory=f"{MEMORY - 69999}Mi"))
    claims.create("over-cores", request(uuid=pinned, memory="1Mi", cores="1"))

    claims.await_waiting("over-memory", "over-cores")
    assert (has(claims, first), has(claims, second)) == (5, 5)
    assert limits(claims, first) == ("40000m", "60")
    assert limits(claims, second) == ("30000m", "40")
    shares = {claims.results(name)[0]["shareID"] for name in (first, second)}
    assert len(shares) == 2

    claims.end(first)
    waited = claims.pods.await_running("over-memory", "over-cores")
    assert limits(claims, "over-cores") == ("1m", "1")
    record_property("figures", f"pods that waited for a card ran {waited:.1f} s after another's end")


@PARTS
def test_a_whole_card_is_one_pods(claims):
    pinned = claims.uuids()[2]
    whole = claims.run("whole", request(uuid=pinned, slots=SLOTS))
    claims.create("beside", request(uuid=pinned, memory="1Mi"))

    claims.await_waiting("beside")
    assert limits(claims, whole)[0] == f"{MEMORY}m"


@NEWER
def test_four_cards_of_one_request_are_different_ones_beside_a_whole_one(claims):
    claims.run("whole", request(uuid=claims.uuids()[2], slots=SLOTS))
    four = claims.run("four", request(count=4, memory="1000Mi"))

    given = {card(claims.devices()[one["device"]]["attributes"]["uuid"]["string"]) for one in claims.results(four)}
    assert len(given) == 4
    seen = claims.pods.report(four)
    assert gpus(seen) == set().union(*map(nodes, given))
    assert {seen.env.get(f"CUDA_DEVICE_MEMORY_LIMIT_{n}") for n in range(4)} == {"1000m"}


@PARTS
def test_requests_of_one_claim_are_of_the_containers_that_list_them(claims):
    name = claims.run(
        "apart",
        request("one", memory="1000Mi", cores="10"),
        request("two", memory="2000Mi", cores="20"),
        containers=[receiving(container("a"), "one"), receiving(container("b"), "two"), container("c")],
    )

    assert limits(claims, name, "a") == ("1000m", "10")
    assert limits(claims, name, "b") == ("2000m", "20")
    assert gpus(claims.pods.report(name, "c")) == set()


@PARTS
def test_a_part_for_two_containers_is_refused_with_the_reason_at_the_pod(claims):
    both = [receiving(container("a")), receiving(container("b"))]
    claims.create("both", request(memory="1000Mi"), containers=both)

    wanted = "limits are counted for one container"
    until(
        lambda: any("FailedPrepareDynamicResources" in line and wanted in line for line in claims.pods.told("both")),
        "the refusal",
        BACK_S,
    )
    assert claims.specs() == set()


@PARTS
def test_a_claim_of_two_pods_is_released_after_the_second_one(claims):
    shared = claims.claim("shared", request(memory="1000Mi", cores="10"))
    first = claims.run("first", claim=shared)
    second = claims.run("second", claim=shared)

    assert has(claims, first) == has(claims, second)
    assert limits(claims, second) == limits(claims, first) == ("1000m", "10")
    claims.end(first)
    assert len(claims.specs()) == 1
    assert len(claims.get(shared)["status"]["reservedFor"]) == 1

    claims.end(second)
    claims.await_free()


@PARTS
def test_a_claim_that_is_deleted_while_it_is_used_stays_until_its_pod_has_ended(claims, node):
    used = claims.claim("used", request(memory="1000Mi"))
    name = claims.run("user", claim=used, restartPolicy="Always")

    node.api.call("DELETE", f"{GROUP}/namespaces/{NAMESPACE}/resourceclaims/{used}")
    assert claims.get(used)["metadata"]["deletionTimestamp"]
    os.kill(claims.pods.pid(name), signal.SIGKILL)
    until(lambda: claims.pods.restarts(name) == 1, "another start of the container", BACK_S)
    claims.pods.await_running(name)
    assert limits(claims, name)[0] == "1000m"

    claims.end(name)
    until(lambda: claims.find(used) is None, "the end of the claim", BACK_S)
    claims.await_free()


@PARTS
def test_a_pod_that_is_deleted_by_force_keeps_its_card_until_it_has_ended(claims, node, by_claims):
    pinned = claims.uuids()[4]
    old = claims.run("old", request(uuid=pinned, slots=SLOTS))
    new = claims.create("new", request(uuid=pinned, slots=SLOTS))
    claims.await_waiting(new)
    uids = [claims.of(name)["metadata"]["uid"] for name in (old, new)]

    claims.pods.delete(old)

    claims.pods.await_running(new)
    assert set(claims.prepared()) == {uids[1]}
    assert moments(by_claims, old, new)[-2:] == [("claim released", old), ("claim prepared", new)]
    assert not any("FailedPrepareDynamicResources" in line for line in claims.pods.told(new))


@PARTS
def test_the_daemon_is_killed_between_prepare_and_start_and_its_specs_are_gone(claims, node, by_claims):
    """After a kill nobody serves for a while; the runtime does not find the names, and the kubelet tries again."""
    node.enclosure.run(*CTR, "rm", MISSING, deadline_s=20)
    waits = receiving({**container(), "image": MISSING})
    name = claims.create("late-claim", request(memory="1234Mi", cores="12"), containers=[waits])
    until(lambda: any("ErrImageNeverPull" in line for line in claims.pods.told(name)), "the missing image", BACK_S)
    before, pid = claims.specs(), by_claims.pid()
    assert len(before) == 1

    by_claims.kill()
    wipe(node)
    node.run(*CTR, "tag", image.PLAIN, MISSING)

    until(lambda: by_claims.pid_or_none() not in (None, pid), "another process", BACK_S)
    until(lambda: claims.specs() == before, "the specs", BACK_S)
    claims.pods.await_running(name, within_s=90)
    assert limits(claims, name) == ("1234m", "12")


@PARTS
def test_the_kubelet_restarts_its_slices_come_back_and_a_new_sandbox_gets_the_same(
    claims, node, by_claims, record_property
):
    """A kubelet deletes all slices of its node when it starts, and asks anew about claims of a new sandbox."""
    name = claims.run("stays", request(memory="2000Mi", cores="20"), restartPolicy="Always")
    before, spec = claims.pods.containers(name), only(claims, node)
    old, kubelet = {one["metadata"]["uid"] for one in claims.slices()}, node.servers["kubelet"]

    kubelet.end(signal.SIGKILL)
    kubelet.start()

    def back():
        now = {one["metadata"]["uid"] for one in claims.slices()}
        return now and not now & old and len(claims.devices()) == CARDS

    took = until(back, "other slices", BACK_S)
    until(node.is_ready, "the node", BACK_S)
    assert (claims.pods.containers(name), claims.pods.phase(name)) == (before, "Running")
    os.kill(sandbox(node, claims.pods.get(name)), signal.SIGKILL)
    until(lambda: claims.pods.containers(name)["main"] not in ("", before["main"]), "another sandbox", BACK_S)
    claims.pods.await_running(name, within_s=90)
    assert limits(claims, name) == ("2000m", "20")
    assert only(claims, node) == spec
    record_property("figures", f"the slices were back {took:.1f} s after the kubelet's start")
    claims.end(name)


@PARTS
def test_a_wiped_directory_of_specs_is_filled_again_before_a_container_restarts(claims, node):
    name = claims.run("wiped", request(memory="1500Mi", cores="15"), restartPolicy="Always")
    before = claims.specs()

    wipe(node)
    until(lambda: claims.specs() == before and any(node.path(SPECS).glob("hami-plugin_*")), "the specs", BACK_S)
    os.kill(claims.pods.pid(name), signal.SIGKILL)

    until(lambda: claims.pods.restarts(name) == 1, "another start of the container", BACK_S)
    claims.pods.await_running(name)
    assert limits(claims, name) == ("1500m", "15")
    assert gpus(claims.pods.report(name)) == nodes(has(claims, name))


@PARTS
def test_a_card_that_fails_is_tainted_in_the_slices_and_unhealthy_at_its_pod_until_it_heals(
    claims, node, by_claims, record_property
):
    """Of health the pod's status says nothing in 1.34, whatever its gates."""
    name = claims.run("patient", request(memory="1000Mi"))
    (result,) = claims.results(name)
    number, machine = has(claims, name), by_claims.machine()

    def shows(what: str) -> bool:
        return node.kubernetes.minor < versions.DEVICE_HEALTH or health() == [what]

    def health():
        (status,) = claims.pods.get(name)["status"]["containerStatuses"]
        told = {one["name"]: one["resources"] for one in status.get("allocatedResourcesStatus", ())}
        return [device["health"] for device in told.get(f"claim:{CLAIM}", ())]

    def taints():
        return claims.devices()[result["device"]].get("taints", [])

    until(lambda: shows("Healthy"), "health in the pod's status", BACK_S)
    machine.inject("xid", number, "79")
    machine.inject("lost", number)
    try:
        ill = until(lambda: shows("Unhealthy"), "the fault in the pod's status", BACK_S)
        until(lambda: [one["effect"] for one in taints()] == ["NoSchedule"], "the taint of the card", BACK_S)
        claims.create(
            "next", request(uuid=claims.devices()[result["device"]]["attributes"]["uuid"]["string"], memory="1Mi")
        )
        claims.await_waiting("next")
    finally:
        machine.inject("back", number)
    well = until(lambda: shows("Healthy"), "healing in the pod's status", BACK_S)
    until(lambda: not taints(), "the end of the taint", BACK_S)
    claims.pods.await_running("next")

    assert (claims.pods.phase(name), claims.pods.restarts(name)) == ("Running", 0)
    if node.kubernetes.minor >= versions.DEVICE_HEALTH:
        record_property("figures", f"a claim's pod tells an XID after {ill:.1f} s, and its end after {well:.1f} s")


@PARTS
def test_ten_pods_at_once_each_have_their_own_limits_while_the_daemon_is_replaced(claims, by_claims, record_property):
    """Two daemons serve for a while: whichever the kubelet asks, no pod notices."""
    slices = {one["metadata"]["uid"] for one in claims.slices()}
    names = [claims.create(f"burst-{n}", request(memory=f"{1000 + n}Mi", cores=str(1 + n))) for n in range(10)]
    by_claims.replace()
    took = claims.pods.await_running(*names, within_s=120)

    assert {name: limits(claims, name) for name in names} == {
        f"burst-{n}": (f"{1000 + n}m", str(1 + n)) for n in range(10)
    }
    assert {one["metadata"]["uid"] for one in claims.slices()} == slices
    claims.end(*names)
    freed = claims.await_free()
    record_property(
        "figures", f"ten claims' pods ran {took:.1f} s after a daemon's replacement; free after {freed:.1f} s"
    )


@NEWER
def test_a_pod_that_asks_for_the_resource_of_the_former_device_plugin_has_a_whole_card(claims, node):
    """The kubelet of this node had one until ``by_claims`` changed the front end."""
    name = claims.pods.create(
        claims.asked(
            "by-name", containers=[container(limits={GPU: 1})], resourceClaims=[], labels={"hami.io/webhook": "ignore"}
        )
    )

    claims.pods.await_running(name)
    seen = claims.pods.granted(name)
    assert len(gpus(seen) - CONTROL) == 1
    assert seen.env[MEMORY_LIMIT] == f"{MEMORY}m"
    assert not [line for line in claims.pods.told(name) if "no devices found allocated" in line]
    claims.end(name)
    claims.await_free()
    assert node.allocatable(GPU) == 0


@NEWER
def test_a_pod_that_asks_for_the_class_as_a_resource_has_a_whole_card(claims):
    """The scheduler makes the claim: the pod names none."""
    asked = container(limits={f"deviceclass.resource.kubernetes.io/{DRIVER}": 1})
    name = claims.pods.create(claims.asked("plain", containers=[asked], resourceClaims=[]))

    claims.pods.await_running(name)
    seen = claims.pods.granted(name)
    assert len(gpus(seen) - CONTROL) == 1
    assert seen.env[MEMORY_LIMIT] == f"{MEMORY}m"
    claims.end(name)
    claims.await_free()


def test_a_daemons_token_is_good_for_the_slices_of_its_own_node_and_drivers_only(claims, node, by_claims):
    pod = by_claims.pod()["metadata"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
    account = f"/api/v1/namespaces/{release.NAMESPACE}/serviceaccounts/{release.DAEMON}/token"
    api = node.api.as_bearer(node.api.call("POST", account, asked)["status"]["token"])

    def slice_of(of: str, driver: str) -> Json:
        pool = {"name": of, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": of, "pool": pool, "devices": []}
        meta = {"name": "forged"}
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta, "spec": spec}

    for of, driver, why in (("node-2", DRIVER, "of another node"), (NAME, "gpu.nvidia.com", "of driver")):
        with pytest.raises(ApiError, match=why) as error:
            api.call("POST", f"{GROUP}/resourceslices", slice_of(of, driver))
        assert error.value.status in (403, 422)


@contextlib.contextmanager
def without_parts(node):
    """The API server has the gate off that parts of devices need, as older ones have by default."""
    if node.kubernetes.as_new_as < versions.CONSUMABLE:
        yield
        return
    server = node.servers["apiserver"]
    before = server.command

    def run(command):
        server.end()
        server.command = command
        server.start()
        until(node.api.is_up, "the API server", BACK_S)

    try:
        run((*before, "--feature-gates=DRAConsumableCapacity=false"))
        yield
    finally:
        run(before)


@pytest.mark.full
def test_without_the_gate_cards_go_whole_and_the_daemon_says_so_and_writes_no_slice_again(claims, node, by_claims):
    with without_parts(node):
        node.api.call("DELETE", f"{GROUP}/resourceslices/{claims.slices()[0]['metadata']['name']}")
        until(lambda: len(claims.devices()) == CARDS, "the slices", BACK_S)
        (device, *_) = claims.devices().values()
        assert "allowMultipleAllocations" not in device
        told = "ResourceSliceFieldsDropped"
        until(lambda: any(one["reason"] == told for one in node.api.events("default", NAME)), "the Event", BACK_S)
        before = written(claims)

        name = claims.run("whole", request())

        assert limits(claims, name)[0] == f"{MEMORY}m"
        assert written(claims) == before
        claims.end(name)
        claims.await_free()
        claims.clear()

    if node.kubernetes.as_new_as < versions.CONSUMABLE:
        return
    node.api.call("DELETE", f"{GROUP}/resourceslices/{claims.slices()[0]['metadata']['name']}")
    until(lambda: any("allowMultipleAllocations" in one for one in claims.devices().values()), "parts", BACK_S)
    until(by_claims.is_ready, "the daemon", BACK_S)


def wipe(node) -> None:
    """Remove every CDI spec, as a reboot does."""
    for path in node.path(SPECS).iterdir():
        path.unlink()


def only(claims: Claims, node) -> bytes:
    """The text of the one spec of a claim."""
    (name,) = claims.specs()
    return (node.path(SPECS) / name).read_bytes()


def sandbox(node, pod) -> int:
    """The process that holds a pod's namespaces."""
    uid = pod["metadata"]["uid"]
    wanted = f'labels."io.kubernetes.pod.uid"=={uid},labels."io.cri-containerd.kind"==sandbox'
    return pid_of(node, node.run("ctr", "--namespace=k8s.io", "containers", "ls", "-q", wanted).split()[-1])


def moments(daemon, *pods) -> list[tuple[str, str]]:
    """What the daemon has told of the claims of these pods, in its order."""
    found = []
    for line in daemon.log().splitlines():
        _, _, text = line.partition(" F ")
        with contextlib.suppress(ValueError):
            said = json.loads(text)
            pod = next(
                (one for one in pods if str(said.get("claim", "")).startswith(f"{NAMESPACE}/{one}-{CLAIM}")), None
            )
            if pod and said["event"] in ("claim prepared", "claim released"):
                found.append((said["event"], pod))
    return found
