"""Case w: what a running container uses and may use, by a process in it that counts as HAMi-core does."""

import json
import shutil
import struct
from pathlib import Path

import pytest

from tests.realnode.asked import NAMESPACE, container, manifest
from tests.realnode.release import NAMESPACE as OURS
from tests.realnode.servers import until
from tests.support.region_writer import LAYOUTS, built
from vendors.nvidia.region import LAYOUTS as READ

pytestmark = [
    pytest.mark.full,
    pytest.mark.case("w", "a running container is resized; region, ledger, annotation and metrics before and after"),
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
    used = 'hami_plugin_container_memory_used_bytes{container="main"'

    def seen():
        found = [value for key, value in daemon.metrics().items() if key.startswith(used) and f'"{name}"' in key]
        return found == [1000 * MIB]

    took = until(seen, "the usage of the process", 30)
    before = facts(node, daemon, pods, name, layout)
    assert set(before.values()) == {2000}, before

    said = command(node, daemon, "resize", f"{NAMESPACE}/{name}", "--gpumem", "3000")

    assert "3000 MiB" in said
    until(lambda: facts(node, daemon, pods, name, layout)["process"] == 3000, "the process to see it", 10)
    after = facts(node, daemon, pods, name, layout)
    assert set(after.values()) == {3000}, after
    record_property("figures", f"{layout}: usage seen after {took:.1f} s; before {before}; after {after}")
