"""`hami-plugin node clean`: what a real daemon and schedulers have left in a simulated cluster."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from hami_plugin.cli import main
from hami_plugin.demo.node import NODE, environment
from hami_plugin.protocol import keys
from hami_plugin.protocol.nodes import NodeLock, render_answer, render_lock
from hami_plugin.sdk import load_vendor, vendor_names
from tests.e2e.steps import WITHIN_S
from tests.e2e.test_own_scheduler import counted
from tests.support.sleeping import Sleeping

node = importlib.import_module("hami_plugin.cli.node")
FOREIGN = {"example.com/owner": "ml", "hami.io/foreign": "1"}


@pytest.fixture(autouse=True)
def settled_soon(monkeypatch):
    """What writes again after a cleaning is waited for by the one test that has such a writer."""
    monkeypatch.setattr(node, "SETTLE_S", 0.01)


async def clean(stage, *arguments: str) -> tuple[int, str]:
    """The exit status and what was printed, by the command's own code in a thread."""
    words = ("node", "clean", *arguments, "--kubeconfig", str(stage.options["--kubeconfig"]))
    absent: dict[str, str | None] = dict.fromkeys(os.environ.keys() - environment().keys())
    done = await asyncio.to_thread(CliRunner().invoke, main, words, env=absent)
    return done.exit_code, done.output


async def started(stage, *arguments: str) -> asyncio.subprocess.Process:
    """The same as a process."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hami_plugin", "node", "clean", *arguments),
        *("--kubeconfig", str(stage.options["--kubeconfig"])),
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def process(stage, *arguments: str) -> tuple[int, str]:
    """Its exit status, and what it printed."""
    running = await started(stage, *arguments)
    async with asyncio.timeout(60):
        out, _ = await running.communicate()
    return running.returncode or 0, out.decode()


def annotations(stage, name: str = NODE) -> dict[str, str]:
    return stage.api.node(name)["metadata"].get("annotations", {})


def put(stage, texts, name: str = NODE) -> None:
    stage.api.store.patch(("nodes", "", name), {"metadata": {"annotations": texts}})


async def test_a_node_is_cleaned_once_its_daemon_is_gone_and_not_before(running, monkeypatch):
    stage = await running()
    put(stage, FOREIGN)
    await counted(stage)
    before = annotations(stage)
    assert stage.family.rules.annotations.register in before

    refused, why = await process(stage, NODE)
    assert (refused, annotations(stage)) == (1, before)
    assert f"{NODE}: refused: a device plugin offers" in why
    assert "remove the daemon first, or give --force" in why

    async def written_again(_seconds):
        async with asyncio.timeout(WITHIN_S):
            while stage.family.rules.annotations.register not in annotations(stage):  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.05)

    with monkeypatch.context() as patch:  # it looks again when the daemon has written, however slow the machine is
        patch.setattr(node, "asyncio", Sleeping(written_again))
        forced, why = await clean(stage, NODE, "--force")
    assert forced == 1
    assert "again; find the daemon or scheduler that runs" in why

    await stage.stop_daemon()
    status = {"allocatable": {stage.resource: "0"}, "capacity": {stage.resource: "80"}}
    stage.api.store.patch(("nodes", "", NODE), {"status": status}, part="status")
    dry, would = await clean(stage, "--all", "--dry-run")
    assert (dry, stage.family.rules.annotations.register in annotations(stage)) == (0, True)
    assert f"{NODE}: would remove" in would

    done, told = await process(stage, "--all")
    assert (done, annotations(stage)) == (0, FOREIGN)
    assert f"{NODE}: removed {', '.join(sorted(before.keys() - FOREIGN.keys()))}\n" == told
    assert await clean(stage, "--all") == (0, "")
    assert await clean(stage, NODE) == (0, f"{NODE}: nothing to remove\n")


async def test_every_annotation_of_every_vendor_goes_and_labels_are_nobodys(set_up):
    stage = await set_up()
    families = [one for name in vendor_names() for one in load_vendor(name).families(load_vendor(name).settings())]
    ours = {key: "x" for family in families for key in family.rules.annotations.of_nodes}
    ours |= {keys.NODE_LOCK: "x", keys.BIND_LOCK: "x", f"{keys.REFUSES}Some": "x", f"{keys.UNHEALTHY}Some": "1"}
    ours |= {family.rules.lock.annotation: "x" for family in families if family.rules.lock}
    labels = dict(stage.api.node(NODE)["metadata"].get("labels", {}))
    put(stage, {**ours, **FOREIGN})

    assert (await clean(stage, NODE))[0] == 0
    assert annotations(stage) == FOREIGN
    assert stage.api.node(NODE)["metadata"].get("labels", {}) == labels


async def test_the_conditions_of_devices_go_and_those_of_others_stay(set_up):
    stage = await set_up()
    ours = {"type": "GPUDegraded", "status": "True", "reason": "DevicesOutOfService", "message": "1 of 8"}
    others = [
        {"type": "Ready", "status": "True", "reason": "KubeletReady"},
        {"type": "DiskDegraded", "status": "True", "reason": "Slow"},
    ]
    stage.api.store.patch(("nodes", "", NODE), {"status": {"conditions": [ours, *others]}}, part="status")

    dry, would = await clean(stage, "--all", "--dry-run")
    assert (dry, would) == (0, f"{NODE}: would remove condition GPUDegraded\n")

    done, told = await clean(stage, "--all")
    assert (done, told) == (0, f"{NODE}: removed condition GPUDegraded\n")
    assert stage.api.node(NODE)["status"]["conditions"] == others
    assert await clean(stage, NODE) == (0, f"{NODE}: nothing to remove\n")


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (
            lambda now: {keys.NODE_LOCK: render_lock(NodeLock(time=now, namespace="ml", pod="train"))},
            "a scheduler binds pod ml/train (hami.io/mutex.lock)",
        ),
        (lambda now: {keys.BIND_LOCK: render_lock(NodeLock(time=now))}, "a scheduler binds a pod (hami.io/bind.lock)"),
        (
            lambda now: {"hami.io/node-handshake": render_answer(now.replace(tzinfo=None))},
            "a daemon has answered",
        ),
    ],
    ids=["lock", "bind lock", "handshake"],
)
async def test_what_somebody_still_needs_stays_unless_forced(set_up, texts, why):
    stage = await set_up()
    now = datetime.now(tz=UTC)

    put(stage, texts(now))
    refused, told = await clean(stage, "--all")
    assert (refused, annotations(stage)) == (1, texts(now))
    assert why in told
    assert (await clean(stage, "--all", "--force"))[0] == 0
    assert annotations(stage) == {}

    put(stage, texts(now - timedelta(minutes=10)))
    assert (await clean(stage, "--all"))[0] == 0
    assert annotations(stage) == {}


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, "name the nodes, or give --all"),
        ((NODE, "--all"), 2, "name the nodes, or give --all"),
        (("nobody",), 1, "there is no node nobody; kubectl get nodes lists them"),
    ],
)
async def test_a_call_that_cannot_be_meant_changes_nothing(set_up, arguments, status, said):
    stage = await set_up()
    put(stage, {keys.NODE_LOCK: "x"})

    done, told = await clean(stage, *arguments)

    assert (done, annotations(stage)) == (status, {keys.NODE_LOCK: "x"})
    assert said in told


@pytest.mark.full
async def test_the_command_right_after_an_uninstall_waits_for_the_daemons_end(running):
    stage = await running()
    put(stage, FOREIGN)
    await counted(stage)

    cleaning = await started(stage, "--all", "--wait", "60")
    assert cleaning.stdout
    async with asyncio.timeout(60):
        first = (await cleaning.stdout.readline()).decode()
        assert stage.family.rules.annotations.register in annotations(stage)
        await stage.stop_daemon()
        status = {"allocatable": {stage.resource: "0"}, "capacity": {stage.resource: "80"}}
        stage.api.store.patch(("nodes", "", NODE), {"status": status}, part="status")
        rest, _ = await cleaning.communicate()

    assert (cleaning.returncode, annotations(stage)) == (0, FOREIGN)
    assert first.startswith(f"{NODE}: waiting: a device plugin offers")
    assert rest.decode().startswith(f"{NODE}: removed ")


@pytest.mark.parametrize(("ready", "status"), [("Unknown", 0), ("False", 1), ("True", 1)])
async def test_a_node_whose_kubelet_is_not_heard_of_offers_nothing(set_up, ready, status):
    """A node that was named anew leaves such an object behind, with the counts of its last status."""
    stage = await set_up()
    put(stage, {keys.NODE_LOCK: "x"})
    last = {"allocatable": {stage.resource: "80"}, "conditions": [{"type": "Ready", "status": ready}]}
    stage.api.store.patch(("nodes", "", NODE), {"status": last}, part="status")

    done, told = await clean(stage, NODE, "--wait", "1")

    assert (done, keys.NODE_LOCK in annotations(stage)) == (status, bool(status)), told
