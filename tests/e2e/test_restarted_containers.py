"""A container that starts again: what its former life left on the host, and what its neighbours keep."""

import lzma
import os
from pathlib import Path

import pytest

from hami_plugin.demo.node import SimulatedNode
from hami_plugin.model.views import PodView
from hami_plugin.simulation.kubelet import StartError
from tests.e2e.disks import small_disk
from tests.e2e.manifests import asking, manifest, small
from tests.e2e.steps import WITHIN_S, bring_up, confirm, probed, start
from tests.e2e.truth import journal, recorded
from tests.support.scale import spread

REGIONS = Path(__file__).parents[1] / "vectors/regions"
"""Usage files that real builds of HAMi-core wrote: the first of before April 2026, the second of after it."""
LAYOUTS = ("v1.1", "v1.2")


def left_by(layout: str) -> bytes:
    """The file of a container whose process was killed."""
    return lzma.decompress((REGIONS / f"{layout}-killed.bin.xz").read_bytes())


async def begin(stage: SimulatedNode, pod: PodView, container: str) -> Path:
    """Start a container as the kubelet does at each start, the first or a later one: where its region will be."""
    edits = (await stage.kubelet.start_container(pod.uid, container)).edits
    inside = Path(edits.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"])
    return Path(next(m.host_path for m in edits.mounts if m.container_path == str(inside.parent))) / inside.name


@pytest.mark.parametrize("layout", spread(LAYOUTS, part=4))
async def test_every_start_of_a_container_finds_no_region_of_an_earlier_one(running, layout):
    stage = await running()
    asked = stage.family.resources
    pod = await bring_up(
        stage,
        manifest(
            "again",
            [asking("first", asked, memory=3000, cores=30), asking("second", asked, memory=2000, cores=20)],
            inits=[asking("init", asked, memory=1000, cores=10)],
        ),
    )
    assert stage.kubelet.plugin(stage.resource).pre_start_required

    regions = {}
    for name in ("init", "first", "second"):
        regions[name] = await begin(stage, pod, name)
        regions[name].write_bytes(left_by(layout))
    for name in ("first", "second", "second", "first"):
        others = {other: regions[other].stat().st_ino for other in ("first", "second") if other != name}

        assert await begin(stage, pod, name) == regions[name]

        assert not regions[name].exists(), f"{name} finds what it left"
        assert {other: regions[other].stat().st_ino for other in others} == others
        regions[name].write_bytes(left_by(layout))
    assert [path.name for path in regions["first"].parent.iterdir()] == [regions["first"].name]

    regions["init"].write_bytes(left_by(layout))  # the pod's sandbox is made anew, and its init containers run again
    await begin(stage, pod, "init")
    assert not regions["init"].exists()


@pytest.mark.full
async def test_a_daemon_that_was_started_anew_clears_what_an_older_one_left(running):
    stage = await running()
    pod = await bring_up(stage, small("old", stage.family.resources))
    region = await begin(stage, pod, "main")
    hamis = region.with_name("0c5dcd4f-6d3f-4a52-9a4b-8a1ec1a6aa11.cache")  # HAMi's own plugin names it by chance
    await stage.stop_daemon()
    region.write_bytes(left_by("v1.1"))
    hamis.write_bytes(left_by("v1.2"))
    (region.parent / "kept.txt").write_text("the container's own")

    await start(stage)
    await begin(stage, pod, "main")

    assert [path.name for path in region.parent.iterdir()] == ["kept.txt"]


@pytest.mark.full
@pytest.mark.parametrize("check", ["required", "off"])
async def test_the_region_goes_with_and_without_the_identity_check(running, check):
    stage = await running(identityCheck=check)
    pod = await bring_up(stage, small("again", stage.family.resources))
    region = await begin(stage, pod, "main")
    region.write_bytes(left_by("v1.2"))

    await begin(stage, pod, "main")

    assert not region.exists()


def put(kind: str, region: Path, precious: Path) -> None:
    """What a hostile container may put in the place of its region."""
    match kind:
        case "symlink":
            region.symlink_to(precious)
        case "dangling":
            region.symlink_to(precious.with_name("nowhere"))
        case "fifo":
            os.mkfifo(region)
        case "hard link":
            region.hardlink_to(precious)
        case "folder":
            region.mkdir()
        case "crowd":
            for number in range(3000):
                (region.parent / f"{number}.cache").touch()
            region.write_bytes(left_by("v1.1"))


@pytest.mark.full
@pytest.mark.scenario("X5")
async def test_what_a_container_puts_in_the_place_of_its_region_harms_nobody_else(running):
    stage = await running()
    pod = await bring_up(stage, small("hostile", stage.family.resources))
    region = await begin(stage, pod, "main")
    precious = stage.directory / "precious"
    precious.write_text("the host's")

    for kind in ("symlink", "dangling", "fifo", "hard link", "folder", "crowd"):
        put(kind, region, precious)

        await begin(stage, pod, "main")

        assert region not in region.parent.iterdir(), kind
        assert precious.read_text() == "the host's", kind
        assert not (stage.directory / "nowhere").exists()
    await bring_up(stage, small("neighbour", stage.family.resources))


@pytest.mark.full
@pytest.mark.scenario("X5")
async def test_what_cannot_be_cleared_away_stops_that_container_with_the_reason_and_no_other(running):
    stage = await running()
    pod = await bring_up(stage, small("hostile", stage.family.resources))
    region = await begin(stage, pod, "main")
    region.mkdir()
    (region / "inside").touch()

    with pytest.raises(StartError, match=rf"not empty: '{region.name}'"):
        await begin(stage, pod, "main")

    assert (region / "inside").exists()
    await bring_up(stage, small("neighbour", stage.family.resources))
    (region / "inside").unlink()
    await begin(stage, pod, "main")
    assert not region.exists()


@pytest.mark.full
@pytest.mark.scenario("X5")
async def test_a_folder_that_was_replaced_by_a_link_is_not_followed(running):
    stage = await running()
    pod = await bring_up(stage, small("moved", stage.family.resources))
    region = await begin(stage, pod, "main")
    elsewhere = stage.directory / "elsewhere"
    region.parent.rename(elsewhere)
    (elsewhere / region.name).write_bytes(left_by("v1.2"))
    region.parent.symlink_to(elsewhere)

    with pytest.raises(StartError, match="not a directory"):
        await begin(stage, pod, "main")

    assert (elsewhere / region.name).exists()


@pytest.mark.full
@pytest.mark.scenario("X7", "H12")
async def test_a_lock_that_one_container_keeps_or_the_host_sweeps_away_is_nobody_elses(running):
    """HAMi-core up to March 2026 waits for ``/tmp/vgpulock/lock`` before it looks for its process."""
    stage = await running()
    sleeper = await bring_up(stage, small("sleeper", stage.family.resources))
    neighbour = await bring_up(stage, small("neighbour", stage.family.resources))

    (await lock_of(stage, sleeper)).touch(exist_ok=False)  # taken, and never given back

    other = await lock_of(stage, neighbour)
    other.touch(exist_ok=False)
    assert not (await lock_of(stage, sleeper)).exists(), "a killed container's lock stays in its own way"
    assert stage.directory in other.parents, "a directory that the host cleans is nobody's source"


async def lock_of(stage: SimulatedNode, pod: PodView) -> Path:
    """Where the lock of a container that starts now is on the host."""
    mounts = (await stage.kubelet.start_container(pod.uid, "main")).edits.mounts
    return Path(next(m.host_path for m in mounts if m.container_path == "/tmp/vgpulock")) / "lock"


@pytest.mark.full
@pytest.mark.scenario("X6")
async def test_a_container_that_fills_its_folder_harms_no_state_and_the_next_starts_once_there_is_room(set_up):
    """The folders are on a file system of their own here, as docs/operations.md recommends."""
    stage = await set_up()
    folders = stage.directory / "hook/vgpu/containers"
    folders.mkdir()
    with small_disk(folders, "16m"):
        await start(stage)
        greedy = await bring_up(stage, small("greedy", stage.family.resources))
        running = await bring_up(stage, small("running", stage.family.resources))
        filler = (await begin(stage, greedy, "main")).with_name("filler")
        kept = await begin(stage, running, "main")
        kept.write_bytes(left_by("v1.2"))

        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(20 << 20))

        body = await probed(stage, 503)
        assert f"{folders} has less than 8 MiB left" in body
        later = stage.scheduler.place(small("later", stage.family.resources))
        await stage.kubelet.admit(later)  # Allocate, the journal and the annotations do not need that disk
        await stage.until(lambda: recorded(stage, later), "the record", WITHIN_S)
        assert len(journal(stage)) == 3
        with pytest.raises(StartError, match="has less than 8 MiB left"):  # HAMi-core would die without a word
            await begin(stage, later, "main")
        assert kept.stat().st_size == len(left_by("v1.2"))

        filler.unlink()
        await probed(stage, 200)
        await confirm(stage, later)
        await stage.stop_daemon()
