"""Somebody removes, spoils or blocks the daemon's own files while it runs, and it is killed."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from hami_plugin.demo.node import NODE
from hami_plugin.model.views import pod_view
from hami_plugin.protocol import keys
from hami_plugin.simulation.kubelet import AdmissionError
from tests.e2e.manifests import small
from tests.e2e.steps import WITHIN_S, bring_up, fresh, removed, sound, start, take_down
from tests.e2e.truth import journal
from tests.support.scale import spread


def state_of(stage):
    return Path(stage.options["--state-dir"])


async def a_forged_pod_gets_nothing_of(stage, holder):
    """One that binds itself, with a decision for as much of the same device."""
    decision = stage.family.rules.annotations
    decided = fresh(stage, holder).annotations[decision.allocated]
    memory = int(decided.split(",")[2])
    item = small("forged", stage.family.resources, memory=memory)
    item["metadata"]["annotations"] = {
        decision.to_allocate: decided,
        decision.allocated: decided,
        keys.ASSIGNED_NODE: NODE,
    }
    stage.api.create_pod(item)
    forged = pod_view(stage.api.bind("demo", "forged", NODE))
    with pytest.raises(AdmissionError, match=f"of which demo/{holder.name} holds {memory}"):
        await stage.kubelet.admit(forged)
    take_down(stage, forged)


@pytest.mark.scenario("A5")
@pytest.mark.parametrize(
    "when", spread(["while it runs", "after it was killed", "while it runs and after it was killed"], part=3)
)
async def test_a_state_directory_that_is_removed_gives_away_nothing_that_is_in_use(running, when):
    stage = await running()
    memory = stage.hardware.machine.devices[0].memory
    kept = await bring_up(stage, small("kept", stage.family.resources, memory=memory - 500))
    if "runs" in when:
        removed(state_of(stage))
        await bring_up(stage, small("later", stage.family.resources))
        assert {held.pod for held in journal(stage)} == {"kept", "later"}  # written anew with the next share
    await stage.stop_daemon(kill=True)
    if "killed" in when:
        removed(state_of(stage))

    await start(stage)
    await a_forged_pod_gets_nothing_of(stage, kept)

    assert "kept" in {held.pod for held in journal(stage)}
    assert (await stage.readiness())["components"]["holdings"] == ""
    await bring_up(stage, small("more", stage.family.resources))
    await sound(stage)


@pytest.mark.full
async def test_files_that_nobody_can_read_do_not_keep_the_daemon_from_starting(running):
    stage = await running()
    memory = stage.hardware.machine.devices[0].memory
    kept = await bring_up(stage, small("kept", stage.family.resources, memory=memory - 500))
    await stage.stop_daemon(kill=True)
    with (state_of(stage) / "journal").open("ab") as file:
        file.write(b'{"op":"hold","uid":1e999}\n' + b"[" * 100_000 + b"\n\xff\xfe\n" + b'{"op":"drop","key":1e999}\n')
        file.write(b'{"op":"hold","uid":"u","namespace":"n","pod":"p","container":"c","resource":"r","ids":[],')
        file.write(b'"grants":[["u","w",1e999,0,null]],"init":false,"settled":false}\n')
    (state_of(stage) / "health.json").write_bytes(b"[" * 100_000)

    await start(stage)
    await a_forged_pod_gets_nothing_of(stage, kept)

    log = stage.log_lines()
    assert sum("journal line skipped" in line for line in log) == 2
    assert sum("journal entry skipped" in line for line in log) == 3
    assert any("remembered health not read" in line for line in log)
    await bring_up(stage, small("more", stage.family.resources))


def put_in_the_way_of(directory):
    """A file where the directory was. The daemon may make it anew in between."""
    while True:
        removed(directory)
        with suppress(IsADirectoryError):
            directory.write_text("in the way")
            return


@pytest.mark.full
async def test_a_state_directory_that_cannot_be_made_again_is_told_until_it_can_and_nobody_is_served_meanwhile(running):
    stage = await running()
    await bring_up(stage, small("kept", stage.family.resources))
    put_in_the_way_of(state_of(stage))

    await told(stage, "state", state_of(stage).name)
    pod = stage.scheduler.place(small("refused", stage.family.resources))
    with pytest.raises(AdmissionError, match="host could not be prepared"):
        await stage.kubelet.admit(pod)
    take_down(stage, pod)
    state_of(stage).unlink()

    await told(stage, "state", "")
    await stage.until(lambda: {held.pod for held in journal(stage)} == {"kept"}, "the journal", WITHIN_S)
    await bring_up(stage, small("more", stage.family.resources))


@pytest.mark.full
@pytest.mark.scenario("A5")
async def test_without_a_checkpoint_what_pods_hold_is_known_by_their_annotations_and_this_is_told(running):
    stage = await running()
    memory = stage.hardware.machine.devices[0].memory
    kept = await bring_up(stage, small("kept", stage.family.resources, memory=memory - 500))
    await stage.stop_daemon(kill=True)
    removed(state_of(stage))
    checkpoint = stage.kubelet.directory / "kubelet_internal_checkpoint"
    text = checkpoint.read_bytes()
    checkpoint.write_bytes(text[: len(text) // 2])

    await start(stage)
    await a_forged_pod_gets_nothing_of(stage, kept)

    await told(stage, "holdings", "not in a known format")
    checkpoint.write_bytes(text)
    await told(stage, "holdings", "")
    assert all(held.ids for held in journal(stage))


async def told(stage, component, words):
    """Wait until the readiness tells these words of a component, or nothing."""
    async with asyncio.timeout(60):
        while True:
            said = (await stage.readiness())["components"][component]
            if words in said and bool(words) == bool(said):
                return
            await asyncio.sleep(0.1)
