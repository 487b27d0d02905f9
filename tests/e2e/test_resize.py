"""``hami-plugin resize``: region, ledger, annotation and metrics of a running container, before and after."""

from __future__ import annotations

import asyncio
import json
import lzma
import signal
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.model.views import pod_view
from hami_plugin.protocol.pods import RESIZE, RESIZE_GRANTED, RESIZE_REFUSED, decode_devices
from tests.e2e import dying
from tests.e2e.manifests import NAMESPACE, asking, manifest
from tests.e2e.steps import WITHIN_S, bring_up, reported, start
from tests.e2e.test_restarted_containers import begin
from tests.e2e.test_usage import ran, until_read
from tests.e2e.truth import journal
from tests.support.promql import series
from tests.support.scheduling import HURRY, serving

REGION = Path(__file__).parents[1] / "vectors/regions/v1.2-two-cards.bin.xz"
LIMITS = 1600
"""Of memory, in this layout."""
LAUNCHER = str(Path(dying.__file__))
MIB = 1 << 20


def uses(region: Path) -> None:
    """The container has used its cards, under the limits that it was started with."""
    region.write_bytes(lzma.decompress(REGION.read_bytes()))


def in_force(region: Path) -> tuple[int, ...]:
    """The memory that HAMi-core lets the container have of each card, in MiB."""
    return tuple(limit // MIB for limit in struct.unpack_from("<2Q", region.read_bytes(), LIMITS))


def said(stage: Any, pod: Any) -> tuple[int, ...]:
    now = pod_view(stage.api.pod(pod.namespace, pod.name))
    return tuple(
        grant.memory
        for piece in decode_devices(now.annotations[stage.family.rules.annotations.allocated])
        for grant in piece
    )


def held(stage: Any) -> tuple[int, ...]:
    return tuple(grant.memory for one in journal(stage) for grant in one.grants)


async def begun(stage: Any, memory: int = 4096) -> tuple[Any, Path]:
    """A pod with two cards that runs, and has used them."""
    asks = [asking("main", stage.family.resources, count=2, memory=memory, cores=30)]
    pod = await bring_up(stage, manifest("busy", asks))
    region = await begin(stage, pod, "main")
    uses(region)
    await until_read(stage, "ok")
    return pod, region


async def measured(stage: Any, name: str) -> set[float]:
    _status, text = await stage.get("/metrics")
    return set(series(text, name).values())


async def until_measured(stage: Any, name: str, value: float) -> None:
    async with asyncio.timeout(WITHIN_S):
        while await measured(stage, name) != {value}:
            pass


async def until_in_force(stage: Any, region: Path, limits: tuple[int, ...]) -> None:
    await stage.until(lambda: in_force(region) == limits, f"limits of {limits} MiB", WITHIN_S)


async def test_a_running_container_is_resized_and_everything_agrees(running: Any) -> None:
    stage = await running(usageSeconds=0.05, hamiMetrics=True)
    pod, region = await begun(stage)

    status, out, err = await ran(stage, f"{NAMESPACE}/busy", "--gpumem", "8000", "--gpucores", "50", command="resize")

    assert (status, err) == (0, "")
    assert out.count("8000 MiB") == out.count("4096 MiB") == 2
    assert in_force(region) == said(stage, pod) == held(stage) == (8000, 8000)
    assert await measured(stage, "hami_plugin_container_memory_bytes") == {8000 * MIB}
    assert await measured(stage, "hami_plugin_container_cores_ratio") == {0.5}
    await until_measured(stage, "hami_vgpu_memory_limit_bytes", 8000 * MIB)
    assert await measured(stage, "hami_plugin_container_limits_changed") == {0}
    assert "8000 MiB and 50 %" in await reported(stage, "Resized")
    assert series((await stage.get("/metrics"))[1], "hami_plugin_resizes_total")[frozenset({("outcome", "done")})] == 1

    again = await begin(stage, pod, "main")  # with the limits that the kubelet keeps for it
    assert again == region
    uses(region)
    await until_in_force(stage, region, (8000, 8000))


@pytest.mark.full
async def test_what_cannot_be_is_refused_with_what_to_change_and_nothing_changes(running: Any) -> None:
    stage = await running(usageSeconds=0.05)
    pod, region = await begun(stage)

    for amount, words in (("1000", "ask for 2473 MiB or more"), ("999999", "ask for less")):
        status, _out, err = await ran(stage, f"{NAMESPACE}/busy", "--gpumem", amount, command="resize")
        assert status == 1
        assert words in err
    assert said(stage, pod) == held(stage) == (4096, 4096)
    assert in_force(region) != (1000, 1000)

    body = json.dumps({"namespace": NAMESPACE, "pod": "busy", "memory": 5000}).encode()
    assert await posted(stage, body) == 403  # as of a page in a browser, which cannot set the header
    assert await posted(stage, body, "Hami-Plugin-Resize: 1\r\n") == 200
    assert await posted(stage, b"[" * 5000, "Hami-Plugin-Resize: 1\r\n") == 400


async def posted(stage: Any, body: bytes, header: str = "") -> int:
    host, port = stage.options["--http"].rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /debug/resize HTTP/1.1\r\nHost: {host}\r\n{header}Content-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
    async with asyncio.timeout(WITHIN_S):
        answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


async def test_a_pod_that_asks_in_its_annotation_is_resized_as_the_scheduler_grants_it(
    running: Any, tmp_path: Path
) -> None:
    stage = await running(usageSeconds=0.05, resizeByAnnotation=True)
    pod, region = await begun(stage)
    options = replace(HURRY, resizes=True, resize_period=0.1)
    async with serving(stage.api, tmp_path, options, families=[stage.family]) as service:
        await stage.until(lambda: bool(service.cache.nodes.node_infos), "the node", WITHIN_S)

        stage.api.annotate_pod(NAMESPACE, "busy", {RESIZE: "memory=1000"})
        assert "it uses" in await reported(stage, "ResizeRefused")
        assert held(stage) == (4096, 4096)

        stage.api.annotate_pod(NAMESPACE, "busy", {RESIZE: "container=main,memory=9000,cores=60"})
        await stage.until(lambda: held(stage) == (9000, 9000), "the new amounts", WITHIN_S)
        await stage.until(lambda: RESIZE not in notes(stage), "an answer", WITHIN_S)

    assert in_force(region) == said(stage, pod) == (9000, 9000)
    assert not notes(stage).keys() & {RESIZE_GRANTED, RESIZE_REFUSED}


def notes(stage: Any) -> dict[str, str]:
    return stage.api.pod(NAMESPACE, "busy")["metadata"]["annotations"]


@pytest.mark.parametrize("step", dying.OF_A_RESIZE)
@pytest.mark.full
async def test_sigkill_in_a_resize_leaves_all_of_it_or_nothing(step: str, set_up: Any) -> None:
    stage = await set_up(usageSeconds=0.05)
    await start(stage, LAUNCHER, step, str(stage.directory / "unused"))
    pod, region = await begun(stage)
    struct_limits = (4096, 4096)
    with region.open("r+b") as file:
        file.seek(LIMITS)
        file.write(struct.pack("<2Q", *(limit * MIB for limit in struct_limits)))

    status, _out, _err = await ran(stage, f"{NAMESPACE}/busy", "--gpumem", "8000", command="resize")

    assert status == 1
    async with asyncio.timeout(WITHIN_S):
        assert await stage.daemon.wait() == -signal.SIGKILL
    stage.daemon = None
    await start(stage)
    expected = (8000, 8000) if step == "pod told" else struct_limits
    await until_in_force(stage, region, expected)
    await stage.until(lambda: said(stage, pod) == held(stage) == expected, "agreement", WITHIN_S)
