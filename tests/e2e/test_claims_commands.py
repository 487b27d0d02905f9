"""``hami-plugin dra`` and the metrics and Events of claims, with the daemon's process and the API server's port."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from hami_plugin.demo.node import GUARD_S
from hami_plugin.dra.slices import device_name, normalize
from hami_plugin.simulation.dra import PrepareError, UnschedulableError
from tests.e2e.claiming import DRIVER, NAMESPACE, spec_directories, staged


@pytest.fixture
async def stage(set_up, tmp_path):
    async with staged(set_up, spec_directories(tmp_path)) as one:
        await one.start()
        yield one


async def ran(*arguments):
    """Exit status, standard output and standard error of the command."""
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hami_plugin", "dra", *arguments, stdout=-1, stderr=-1
    )
    async with asyncio.timeout(GUARD_S):
        out, error = await command.communicate()
    return command.returncode, out.decode(), error.decode()


def daemon(stage):
    return ("--url", f"http://{stage.node.options['--http']}")


def cluster(stage):
    return ("--kubeconfig", stage.node.options["--kubeconfig"], *daemon(stage))


async def metric(stage, name, **labels):
    """The value of one series; None where there is none."""
    _status, text = await stage.node.get("/metrics")
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if series.partition("{")[0] == name and all(f'{key}="{one}"' in series for key, one in labels.items()):
            return float(value)
    return None


@pytest.mark.full
async def test_what_would_be_published_is_what_the_daemon_publishes(stage):
    arguments = ("slices", "--simulate", "hgx-a100-4gpu", "--node-name", stage.node.node)
    status, out, error = await ran(*arguments, "--json")
    assert (status, error) == (0, "")
    (wanted,) = json.loads(out)
    (there,) = stage.api.slices()
    assert normalize(wanted)["spec"] == normalize(there)["spec"]
    assert wanted["metadata"]["name"] == there["metadata"]["name"]

    status, out, _error = await ran(*arguments)
    assert status == 0
    assert out.splitlines()[0] == f"{DRIVER}: 4 devices in 1 ResourceSlices"
    assert "40960Mi" in out


@pytest.mark.parametrize(
    ("machine", "settings", "kind", "count"),
    [
        ("hgx-a100-4gpu", {"linkedDevices": "sets"}, "set", 4 + 6 + 1),
        ("a100-pcie-2-mig", {"operatingMode": "mig"}, "partition", 18),
    ],
)
async def test_sets_and_partitions_are_shown_with_the_counters_that_they_share(
    machine, settings, kind, count, tmp_path
):
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({"vendors": {"nvidia": settings}}))

    status, out, _error = await ran("slices", "--simulate", machine, "--config", str(file))

    assert status == 0
    assert out.splitlines()[0] == f"{DRIVER}: {count} devices in 2 ResourceSlices"
    assert out.splitlines()[-1].split()[1] == kind


@pytest.mark.full
async def test_cards_that_are_cut_for_containers_alone_are_named_as_left_out(tmp_path):
    configuration = tmp_path / "device-config.yaml"
    configuration.write_text("cambricon: {smluMode: disabled}")
    status, out, error = await ran("slices", "--simulate", "cambricon-mlu590-8", "--device-config", str(configuration))
    assert status == 0
    assert out.splitlines() == ["cambricon.hami.io: 0 devices in 1 ResourceSlices"]
    assert "refuses frontEnd: dra, as it cuts MLU cards" in error


async def test_claims_are_shown_by_pod_and_counted_from_prepare_to_release(stage):
    status, out, _error = await ran("claims", *daemon(stage))
    assert status == 0
    assert out.splitlines() == [
        f"{stage.node.node}: {DRIVER} registered, 4 devices in 1 slices, generation 1",
    ]
    pod = stage.place("small", memory="3000Mi", cores="30")
    await stage.kubelet.prepare(pod)

    status, out, _error = await ran("claims", *daemon(stage))
    row = out.splitlines()[-1].split()
    device = device_name(stage.node.hardware.machine.devices[0].uuid)
    assert row == [f"{NAMESPACE}/small-gpu", "prepared", "gpu", device, "3000Mi", "30", "1", f"{NAMESPACE}/small/main"]
    _status, out, _error = await ran("claims", "--json", *daemon(stage))
    assert json.loads(out)["claims"][0]["devices"][0]["memory"] == 3000
    own = {"driver": DRIVER}
    assert await metric(stage, "hami_plugin_dra_claims_prepared", **own) == 1
    assert await metric(stage, "hami_plugin_claims_total", operation="prepare", outcome="ok", **own) == 1
    assert await metric(stage, "hami_plugin_claim_seconds_count", operation="prepare", **own) == 1
    assert await metric(stage, "hami_plugin_dra_slices", **own) == 1
    assert await metric(stage, "hami_plugin_dra_slices_generation", **own) == 1
    assert await metric(stage, "hami_plugin_dra_slices_devices", **own) == 4
    assert await metric(stage, "hami_plugin_dra_driver_registered", **own) == 1
    assert await metric(stage, "hami_plugin_slice_writes_total", verb="create", **own) == 1

    await stage.kubelet.unprepare(pod)
    assert await metric(stage, "hami_plugin_dra_claims_prepared", **own) == 0
    assert await metric(stage, "hami_plugin_claims_total", operation="unprepare", outcome="ok", **own) == 1
    await stage.node.until(
        lambda: any(event["reason"] == "ResourceSlicesPublished" for event in stage.api.events()), "the Event", GUARD_S
    )


@pytest.mark.full
async def test_a_claim_that_waits_is_explained_by_what_each_device_lacks(stage):
    for number in range(4):
        await stage.kubelet.prepare(stage.place(f"p{number}", memory="30000Mi", slots="5"))
    with pytest.raises(UnschedulableError):
        stage.place("large", memory="20000Mi")

    status, out, _error = await ran("explain", f"{NAMESPACE}/large-gpu", *cluster(stage))

    assert status == 1
    assert out.splitlines()[0] == f"ResourceClaim {NAMESPACE}/large-gpu: pending"
    assert f"{stage.node.node} has no room for request gpu: 4 with 10960Mi of memory left, and 20000Mi asked" in out


@pytest.mark.full
async def test_a_claim_of_a_class_that_nobody_serves_and_one_with_a_misspelt_capacity_are_explained(stage):
    with pytest.raises(UnschedulableError):
        stage.place("odd", gpumem="20000Mi")
    _status, out, _error = await ran("explain", f"{NAMESPACE}/odd-gpu", *cluster(stage))
    assert "4 without a capacity gpumem" in out

    request = {"name": "gpu", "exactly": {"deviceClassName": "other.example.com"}}
    stage.api.create_claim(
        {"metadata": {"name": "other", "namespace": "default"}, "spec": {"devices": {"requests": [request]}}}
    )
    status, out, _error = await ran("explain", "other", *cluster(stage))
    assert status == 1
    assert "no node publishes devices of driver other.example.com" in out


@pytest.mark.full
async def test_a_claim_is_explained_from_its_allocation_to_its_refusal_and_told_at_its_pod(stage):
    pod = stage.place("small", memory="3000Mi")
    status, out, _error = await ran("explain", f"{NAMESPACE}/small-gpu", *cluster(stage))
    assert (status, out.splitlines()[0]) == (0, f"ResourceClaim {NAMESPACE}/small-gpu: allocated"), out
    assert "the kubelet has not asked for it yet" in out
    await stage.kubelet.prepare(pod)
    status, out, _error = await ran("explain", f"{NAMESPACE}/small-gpu", "--json", *cluster(stage))
    assert (status, json.loads(out)["state"]) == (0, "prepared")

    two = stage.place("two", containers=("a", "b"), memory="3000Mi")
    with pytest.raises(PrepareError, match="limits are counted for one container"):
        await stage.kubelet.prepare(two)

    status, out, _error = await ran("explain", f"{NAMESPACE}/two-gpu", *cluster(stage))
    assert status == 1
    assert "Unsupported: request gpu of ResourceClaim" in out
    _status, out, _error = await ran("claims", *daemon(stage))
    assert f"{NAMESPACE}/two-gpu refused" in out
    count = await metric(stage, "hami_plugin_claims_total", driver=DRIVER, operation="prepare", outcome="Unsupported")
    assert count == 1
    await stage.node.until(
        lambda: any(
            event["reason"] == "ClaimRefused" and event["involvedObject"]["name"] == "two"
            for event in stage.api.events()
        ),
        "the Event",
        GUARD_S,
    )


@pytest.mark.full
async def test_a_claim_is_forgotten_only_when_nobody_has_it(stage):
    pod = stage.place("small", memory="3000Mi")
    await stage.kubelet.prepare(pod)
    name = f"{NAMESPACE}/small-gpu"

    status, _out, error = await ran("forget", name, *daemon(stage))
    assert status == 1
    assert f"not released: {DRIVER}: pod {NAMESPACE}/small lives on this node" in error
    assert stage.claim_files()

    stage.end(pod)
    await stage.node.until(lambda: stage.node.api.pods() == [], "the pod's end", GUARD_S)
    async with asyncio.timeout(GUARD_S):
        while (await ran("forget", name, *daemon(stage)))[0]:  # the watch of pods may be late
            pass
    assert stage.claim_files() == []
    assert stage.entries() == {}
    status, _out, error = await ran("forget", name, *daemon(stage))
    assert status == 1
    assert f"nothing is prepared for {name}" in error


@pytest.mark.full
async def test_wrong_input_and_a_daemon_that_is_away_are_said_in_words(stage):
    status, _out, error = await ran("explain", "none", *cluster(stage))
    assert status == 1
    assert "there is no ResourceClaim default/none" in error
    status, _out, error = await ran("claims", "--url", "http://127.0.0.1:9")
    assert status == 1
    assert "no daemon answers at http://127.0.0.1:9" in error
    status, body = await stage.node.get("/debug/claims/uid")  # a page cannot change anything
    assert status == 405, body


async def demo(*arguments):
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hami_plugin", "demo", "--dra", "--json", *arguments, stdout=-1, stderr=-1
    )
    async with asyncio.timeout(2 * GUARD_S):
        out, _error = await command.communicate()
    return command.returncode, json.loads(out)


@pytest.mark.full
async def test_the_demonstration_shows_a_claims_life_and_what_whole_devices_cannot_show():
    status, shown = await demo("--profile", "hgx-a100-4gpu")
    assert status == 0, shown
    assert [step["problem"] for step in shown["steps"]] == [""] * 7
    assert shown["notShown"] == []

    status, shown = await demo("--profile", "gaudi2-8")
    assert status == 0, shown
    assert "two pods share a card" in shown["notShown"]


@pytest.mark.full
async def test_the_commands_of_the_guide_for_a_closer_look_do_what_it_says(stage):
    page = (Path(__file__).parents[2] / "docs/dra.md").read_text()
    section = page.partition("\n## Looking closer\n")[2]
    commands = [line.split() for line in section.partition("```\n")[2].partition("```")[0].splitlines()]
    assert [command[:2] for command in commands] == [["hami-plugin", "demo"]] + [["hami-plugin", "dra"]] * 4
    _demo, slices, claims, explain, forget = (command[2:] for command in commands)

    status, shown = await demo(*_demo[1:])
    assert status == 0, shown
    status, out, _error = await ran(*slices)
    assert (status, out.splitlines()[0]) == (0, f"{DRIVER}: 4 devices in 1 ResourceSlices")
    pod = stage.place("small", memory="3000Mi")
    await stage.kubelet.prepare(pod)
    status, out, _error = await ran(*claims, *daemon(stage))
    assert status == 0
    assert f"{NAMESPACE}/small-gpu" in out
    status, out, _error = await ran(*explain, *cluster(stage))
    assert (status, out.splitlines()[0]) == (0, f"ResourceClaim {NAMESPACE}/small-gpu: prepared")
    status, _out, error = await ran(*forget, *daemon(stage))
    assert status == 1
    assert "lives on this node" in error
