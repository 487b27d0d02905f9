"""The daemon starts again and again, with other settings, or with nobody who reads its log."""

import asyncio
import fcntl
import json
import os
import re
import sys
from pathlib import Path

import pytest

from hami_plugin.demo.node import LAUNCHER, environment
from hami_plugin.errors import HamiError
from hami_plugin.model.device import physical_id
from hami_plugin.simulation.scheduler import SimulatedScheduler
from tests.e2e.manifests import asking, manifest, small
from tests.e2e.steps import bring_up, confirm, offered, sound, start, take_down
from tests.e2e.truth import journal

ROUNDS = 8
SHARES = 4


def configure(stage, **settings) -> None:
    """Settings over those of the configuration file, for the next start. Of NVIDIA: ``nvidia={...}``."""
    path = Path(stage.options["--config"])
    changed = json.loads(path.read_text())
    if "nvidia" in settings:
        changed.setdefault("vendors", {})["nvidia"] = settings.pop("nvidia")
    path.write_text(json.dumps({**changed, **settings}))


def everything(stage) -> set[str]:
    """The files and sockets of the node's directories, but for the log and the simulated hardware's own.

    A daemon's sockets have its generation in their names.
    """
    folders = ("state", "device-plugins", "hook", "cdi", "pod-resources")
    return {
        re.sub(r"\.\d+\.sock$", ".sock", str(path.relative_to(stage.directory)))
        for folder in folders
        for path in (stage.directory / folder).rglob("*")
    }


@pytest.mark.full
@pytest.mark.scenario("H11")
async def test_restarts_in_a_row_killed_or_not_leave_nothing_behind(running, tell):
    stage = await running()
    pod = await bring_up(stage, small("stays", stage.family.resources))
    held = {share.key: share.ids for share in journal(stage)}
    seen: list[set[str]] = []

    for number in range(ROUNDS):
        await stage.stop_daemon(kill=number % 2 == 0)
        await start(stage)
        passing = await bring_up(stage, small(f"passing-{number}", stage.family.resources))
        take_down(stage, passing)
        await sound(stage)
        for folder in stage.directory.glob(f"hook/vgpu/containers/{passing.uid}*"):
            folder.rmdir()  # as HAMi's monitor does
        seen.append(everything(stage))

    assert {share.key: share.ids for share in journal(stage)} == held
    assert seen[-1] == seen[0]
    assert (await stage.kubelet.start_container(pod.uid, "main")).edits.env
    tell(f"{ROUNDS} restarts; {len(seen[-1])} files, sockets and folders after the first and after the last")


@pytest.mark.full
@pytest.mark.scenario("H7")
async def test_fewer_shares_than_are_in_use_leave_running_pods_alone_and_admit_nobody_on_top(set_up):
    stage = await set_up(vendors={"nvidia": {"deviceSplitCount": SHARES}})
    await start(stage)
    crowded, asked = stage.registered()[0].id, [asking("main", stage.family.resources, memory=3000, cores=10)]
    there = {"nvidia.com/use-gpuuuid": crowded}
    pods = [await bring_up(stage, manifest(f"kept-{n}", asked, annotations=there)) for n in range(SHARES)]

    await stage.stop_daemon()
    configure(stage, nvidia={"deviceSplitCount": 2})
    await start(stage)

    assert {share.pod for share in journal(stage)} == {pod.name for pod in pods}
    assert {info.id: info.count for info in stage.registered()}[crowded] == 2
    for pod in pods:
        assert (await stage.kubelet.start_container(pod.uid, "main")).edits.env
    with pytest.raises(HamiError, match="1/8 CardTimeSlicingExhausted"):
        stage.scheduler.place(manifest("nowhere", asked, annotations=there))
    later = await bring_up(stage, manifest("later", asked))
    (share,) = [share for share in journal(stage) if share.pod == later.name]
    assert {physical_id(one) for one in share.ids} != {crowded}
    for pod in (*pods, later):
        take_down(stage, pod)
    await sound(stage)


@pytest.mark.full
@pytest.mark.scenario("H9")
async def test_a_log_that_nobody_reads_holds_up_no_pod(set_up):
    stage = await set_up()
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    os.write(writer, b"x" * size)
    words = [device_type for option in stage.options.items() for device_type in option]
    launched = await asyncio.create_subprocess_exec(
        sys.executable, *LAUNCHER, "run", *words, stdout=writer, stderr=writer, env=environment()
    )
    os.close(writer)
    try:
        await stage.until(lambda: stage.kubelet.registered(stage.resource), "the registration", 60)
        await offered(stage)
        for number in range(3):
            pod = stage.scheduler.place(small(f"unread-{number}", stage.family.resources))
            await stage.kubelet.admit(pod)
            await confirm(stage, pod)
    finally:
        launched.kill()
        await launched.wait()
        os.close(reader)


@pytest.mark.full
async def test_a_node_with_another_name_has_nothing_of_its_former_pods_and_serves_all(running):
    stage = await running()
    names, memory = stage.family.resources, stage.hardware.machine.devices[0].memory
    before = await bring_up(stage, manifest("before", [asking("main", names, count=8, memory=memory)]))
    await sound(stage)

    await stage.stop_daemon(kill=True)
    stage.kubelet.remove(before.uid)  # one with another name ends what it does not know
    stage.api.create_node("renamed")
    stage.options = {**stage.options, "--node-name": "renamed"}
    counted = {names.count: 10 * len(stage.hardware.machine.devices)}
    stage.scheduler = SimulatedScheduler(stage.api, "renamed", [stage.family], lambda: counted)
    await start(stage)
    await bring_up(stage, manifest("after", [asking("main", names, count=8, memory=memory)]))

    assert {share.pod for share in journal(stage)} == {"after"}


async def test_a_node_object_that_was_deleted_and_made_anew_is_registered_at_once(running):
    stage = await running()
    names, memory = stage.family.resources, stage.hardware.machine.devices[0].memory
    await bring_up(stage, small("stays", names, memory=memory - 500))
    registered = stage.registered()

    stage.api.delete_node(stage.node)
    stage.api.create_node(stage.node)

    await stage.until(lambda: stage.registered() == registered, "the register")
    await bring_up(stage, small("later", names, memory=memory - 500))
    assert {share.pod for share in journal(stage)} == {"stays", "later"}
    await sound(stage)
