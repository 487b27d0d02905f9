"""Case w: what a running container uses and may use, by a process in it that counts as HAMi-core does."""

import json
import os
import resource
import shutil
import struct
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.realnode.asked import NAMESPACE, container, manifest
from tests.realnode.release import DAEMON
from tests.realnode.release import NAMESPACE as OURS
from tests.realnode.servers import until
from tests.support.region_writer import LAYOUTS, built
from tools.image.application import HOME
from vendors.nvidia.region import LAYOUTS as READ

pytestmark = [
    pytest.mark.full,
    pytest.mark.case("w", "a container is resized while it runs, or stays as it was; usage agrees everywhere"),
]
INSIDE = "/usr/local/vgpu"
MIB = 1 << 20
LIMITS = {one.name: one.memory_limits for one in READ}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return built(tmp_path_factory.mktemp("writer"))


def command(node, daemon, *words):
    """A command of ours in the daemon's own pod."""
    return node.kubectl("-n", OURS, "exec", daemon.pod()["metadata"]["name"], "--", "hami-plugin", *words)


def refused(node, daemon, *words):
    """What a command that fails says."""
    with pytest.raises(AssertionError) as failure:
        command(node, daemon, *words)
    return str(failure.value)


PAGE = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9394/status.json').read().decode())"


def page(node, daemon):
    """What the status page shows, which only the pod itself may see."""
    pod = daemon.pod()["metadata"]["name"]
    return json.loads(node.kubectl("-n", OURS, "exec", pod, "--", f"/{HOME}/bin/python", "-c", PAGE))


def usage_of(node, daemon, name):
    """MiB that the pod uses, as each place has them."""
    document = {"top": json.loads(command(node, daemon, "top", "--json")), "page": page(node, daemon)}
    shown = {
        place: [one["memoryUsed"] for device in each["devices"] for one in device["containers"] if one["pod"] == name]
        for place, each in document.items()
    }
    for key, value in daemon.metrics().items():
        if f'pod="{name}"' in key and key.startswith(USED):
            shown.setdefault(key.partition("{")[0], []).append(value)
    return {place: sum(bytes_ or 0 for bytes_ in amounts) / MIB for place, amounts in shown.items()}


USED = "hami_plugin_container_memory_used_bytes{"


def folder(node, pods, name) -> Path:
    return node.path(f"{INSIDE}/containers/{pods.get(name)['metadata']['uid']}_main")


def facts(node, daemon, pods, name, layout):
    """MiB, as each place has them: region, ledger, annotation, metric, ``top``; and what the process reads."""
    there = folder(node, pods, name)
    (region,) = there.glob("*.cache")
    journal = [json.loads(line) for line in node.path("/var/lib/hami-plugin/journal").read_text().splitlines() if line]
    held = [one for one in journal if one.get("pod") == name and one["op"] == "hold"][-1]
    top = json.loads(command(node, daemon, "top", "--json"))
    shown = [one for device in top["devices"] for one in device["containers"] if one["pod"] == name]
    metric = [
        value for key, value in daemon.metrics().items() if "container_memory_bytes{" in key and f'"{name}"' in key
    ]
    return {
        "region": struct.unpack_from("<Q", region.read_bytes(), LIMITS[layout])[0] // MIB,
        "ledger": held["grants"][0][2],
        "annotation": int(pods.annotation(name, "hami.io/vgpu-devices-allocated").split(",")[2]),
        "metric": metric[0] / MIB,
        "top": shown[0]["memoryLimit"] / MIB,
        "process": int((there / "said").read_text().split()[-1]),
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_running_container_of_each_layout_is_seen_and_resized(layout, daemon, pods, node, program, record_property):
    name = pods.run(manifest(f"writer-{layout.replace('.', '-')}", container(count=1, memory=2000, cores=100)))
    pods.await_settled(name)
    shutil.copy(program, folder(node, pods, name) / "writer")
    card = pods.annotation(name, "hami.io/vgpu-devices-allocated").split(",")[0]
    writes = f'{INSIDE}/writer {layout} "$CUDA_DEVICE_MEMORY_SHARED_CACHE" 1000 {card}'
    node.kubectl("exec", name, "--", "/bin/sh", "-c", f"{writes} > {INSIDE}/said 2>&1 < /dev/null &")
    took = until(lambda: set(usage_of(node, daemon, name).values()) == {1000}, "the usage of the process", 30)
    before = facts(node, daemon, pods, name, layout)
    assert set(before.values()) == {2000}, before

    said = command(node, daemon, "resize", f"{NAMESPACE}/{name}", "--gpumem", "3000")

    assert "3000 MiB" in said
    until(lambda: facts(node, daemon, pods, name, layout)["process"] == 3000, "the process to see it", 10)
    after = facts(node, daemon, pods, name, layout)
    assert set(after.values()) == {3000}, after

    node.kubectl("exec", name, "--", "/bin/sh", "-c", f"{writes.replace(' 1000 ', ' 300 ')} crash || test $? = 137")
    until(lambda: set(usage_of(node, daemon, name).values()) == {1300}, "the usage with a process that died", 30)
    agreed = usage_of(node, daemon, name)
    assert set(agreed) == {"top", "page", "hami_plugin_container_memory_used_bytes"}
    less = refused(node, daemon, "resize", f"{NAMESPACE}/{name}", "--gpumem", "1299")
    assert "ask for 1300 MiB or more" in less
    record_property(
        "figures",
        f"{layout}: usage seen after {took:.1f} s; before {before}; after {after}; died amid a write: {agreed}",
    )


@pytest.mark.parametrize("step", ["intent", "limits", "pod"])
def test_a_resize_whose_step_fails_leaves_a_running_container_as_it_was(
    step, daemon, pods, node, program, record_property
):
    layout = LAYOUTS[-1]
    name = pods.run(manifest(f"fails-{step}", container(count=1, memory=2000, cores=100)))
    pods.await_settled(name)
    there = folder(node, pods, name)
    shutil.copy(program, there / "writer")
    card = pods.annotation(name, "hami.io/vgpu-devices-allocated").split(",")[0]
    writes = f'{INSIDE}/writer {layout} "$CUDA_DEVICE_MEMORY_SHARED_CACHE" 1000 {card}'
    node.kubectl("exec", name, "--", "/bin/sh", "-c", f"{writes} > {INSIDE}/said 2>&1 < /dev/null &")
    until(lambda: set(usage_of(node, daemon, name).values()) == {1000}, "the usage of the process", 30)
    before = facts(node, daemon, pods, name, layout)

    with FAILING[step](node, daemon, there):
        said = refused(node, daemon, "resize", f"{NAMESPACE}/{name}", "--gpumem", "3000")

    until(lambda: facts(node, daemon, pods, name, layout) == before, "everything as it was", 30)
    assert set(before.values()) == {2000}
    done = "hami_plugin_resizes_total"
    counts = {key: value for key, value in daemon.metrics().items() if key.startswith(done)}
    assert counts[f'{done}{{outcome="undone"}}'] >= 1
    record_property("figures", f"{step} fails: {' '.join(said.split())[-160:]}; everywhere {before['region']} MiB")
    command(node, daemon, "resize", f"{NAMESPACE}/{name}", "--gpumem", "3000")
    until(lambda: set(facts(node, daemon, pods, name, layout).values()) == {3000}, "the new limit everywhere", 10)


@contextmanager
def no_room_for_the_journal(node, daemon, _there):
    """The daemon's process may write no further than the journal's end, as on a full disk."""
    size = node.path("/var/lib/hami-plugin/journal").stat().st_size
    before = resource.prlimit(daemon.pid(), resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid(), resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(daemon.pid(), resource.RLIMIT_FSIZE, before)


@contextmanager
def two_names_for_the_region(_node, _daemon, there):
    """As a container may make it, to have something else written to."""
    (region,) = there.glob("*.cache")
    os.link(region, there / "other")
    try:
        yield
    finally:
        (there / "other").unlink()


@contextmanager
def no_right_to_patch_pods(node, _daemon, _there):
    place = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{DAEMON}"
    role = node.api.call("GET", place)
    rules = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "patch" or "pods" not in rule["resources"]]}
        for rule in role["rules"]
    ]
    assert rules != role["rules"]
    node.api.call("PUT", place, {**role, "rules": rules})
    try:
        yield
    finally:
        now = node.api.call("GET", place)
        node.api.call("PUT", place, {**now, "rules": role["rules"]})


FAILING = {
    "intent": no_room_for_the_journal,
    "limits": two_names_for_the_region,
    "pod": no_right_to_patch_pods,
}
