"""Others in the cluster mean harm: they open connections, write odd pods, and let the watch stall."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import pytest

from hami_plugin.demo.node import NODE
from tests.e2e.manifests import manifest, small
from tests.e2e.steps import WITHIN_S, bring_up, logged, offered, probed, sound, start
from tests.e2e.truth import annotation
from tests.support.scale import spread

ATTEMPTS = 10_000
HELD = 400
"""So many of them the other side keeps open at a time: more than the daemon may open files."""
FLOOD = """
import socket, sys
from collections import deque
port, attempts, held = map(int, sys.argv[1:])
kept, done = deque(maxlen=held), 0
for number in range(attempts):
    try:
        kept.append(socket.create_connection(("127.0.0.1", port), timeout=5))
        done += 1
    except OSError:
        pass
print(done, flush=True)
sys.stdin.read()
"""
LIMITED = (
    "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}));"
    "sys.argv[0] = 'hami-plugin'; runpy.run_module('hami_plugin', run_name='__main__')"
)


def limited(soft, hard):
    """Start the daemon with so many files."""
    return "-c", LIMITED.format(soft=soft, hard=hard)


def resident(stage) -> float:
    """MiB."""
    pages = int(Path(f"/proc/{stage.daemon.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def descriptors(stage) -> int:
    return len(list(Path(f"/proc/{stage.daemon.pid}/fd").iterdir()))


async def flood(stage):
    """Ten thousand connections that say nothing, one after the other: the process, which keeps the last open."""
    port = stage.options["--http"].rpartition(":")[2]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", FLOOD, port, str(ATTEMPTS), str(HELD),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.full
@pytest.mark.scenario("A3", "H8")
async def test_ten_thousand_idle_connections_keep_no_pod_waiting(set_up, tell):
    stage = await set_up()
    await start(stage, *limited(256, 320))
    await bring_up(stage, small("before", stage.family.resources))
    size, lines, files = resident(stage), len(stage.log_lines()), descriptors(stage)

    other = await flood(stage)
    seconds, number = [], 0
    reading = asyncio.create_task(other.stdout.readline())
    while not reading.done() or number < 3:
        pod = stage.scheduler.place(small(f"during-{number}", stage.family.resources))
        began = time.monotonic()
        await stage.kubelet.admit(pod)
        seconds.append(time.monotonic() - began)
        stage.api.set_phase(pod.namespace, pod.name, "Running")
        await stage.until(lambda: not annotation(stage, "hami.io/mutex.lock"), "the lock's release", 60)
        number += 1
        if number == 2:
            before = len(stage.kubelet.registrations)
            await stage.kubelet.restart()
            await stage.until(lambda seen=before: len(stage.kubelet.registrations) > seen, "a new registration", 60)
            await offered(stage)
        if number >= 20:
            break
    done = int(await reading)
    await bring_up(stage, small("meanwhile", stage.family.resources))  # while 400 are held
    more = len(stage.log_lines()) - lines
    tell(
        f"{done} connections; Allocate at most {1e3 * max(seconds):.0f} ms; "
        f"RSS {size:.0f} to {resident(stage):.0f} MiB; descriptors {files} to {descriptors(stage)}; {more} log lines"
    )
    probes = [(await stage.get(path))[0] for path in ("/healthz", "/readyz", "/metrics")]
    other.kill()
    await other.wait()

    assert probes == [200, 200, 200]
    assert resident(stage) < size + 16
    assert descriptors(stage) < files + 80
    assert more < 40 + 6 * (number + 2)  # of the pods, and of the kubelet's restart; not one for each connection
    assert "EMFILE" not in "".join(stage.log_lines())
    assert "Too many open files" not in "".join(stage.log_lines())


@pytest.mark.full
@pytest.mark.scenario("H8")
async def test_with_64_descriptors_pods_start_and_nothing_spins(set_up, tell):
    stage = await set_up()
    await start(stage, *limited(64, 64))
    await bring_up(stage, small("first", stage.family.resources))

    other = await flood(stage)
    for number in range(3):
        await bring_up(stage, small(f"during-{number}", stage.family.resources))
    done = int(await other.stdout.readline())
    tell(f"{done} connections, {descriptors(stage)} descriptors of 64")
    await bring_up(stage, small("last", stage.family.resources))
    other.kill()
    await other.wait()

    assert descriptors(stage) <= 64
    await stage.until(lambda: descriptors(stage) < 60, "some descriptors", WITHIN_S)
    await probed(stage, 200)


def deep(levels):
    return '{"f:a":' * levels + "{}" + "}" * levels


@pytest.mark.parametrize("levels", spread([1_200, 9_000], part=2))
async def test_a_pod_with_a_tree_in_its_managed_fields_stops_nobody(set_up, levels):
    stage = await set_up()

    def edit(body):
        return body.replace(b'"a deep tree"', deep(levels).encode())

    stage.api.edit(edit, "(GET|WATCH) /api/v1/pods")
    odd = manifest("odd", [{"name": "main"}])
    odd["metadata"]["managedFields"] = [{"fieldsV1": "a deep tree"}]
    stage.api.create_pod(odd)
    stage.api.bind("demo", "odd", NODE)

    await start(stage)  # with the pod in the first list
    await bring_up(stage, small("first", stage.family.resources))
    stage.api.annotate_pod("demo", "odd", {"changed": "1"})  # and in the watch
    await bring_up(stage, small("second", stage.family.resources))

    await sound(stage)
    _status, metrics = await stage.get("/metrics")
    assert 'hami_plugin_api_objects_unreadable_total{kind="pods"}' in metrics
    await logged(stage, "an object cannot be read")
    named = [json.loads(line) for line in stage.log_lines() if "an object cannot be read" in line]
    assert [line["object"] for line in named] == ["demo/odd"]


@pytest.mark.full
@pytest.mark.scenario("P7")
async def test_pods_start_although_the_watch_has_stalled_and_nobody_was_told(running, tell):
    stage = await running(decisionWaitSeconds=1.0)
    await bring_up(stage, small("before", stage.family.resources))

    stage.api.stall_watches()
    began = time.monotonic()
    for number in range(4):
        await bring_up(stage, small(f"unseen-{number}", stage.family.resources))

    tell(f"four pods in {time.monotonic() - began:.1f} s behind a watch that has stalled")
    await sound(stage)
