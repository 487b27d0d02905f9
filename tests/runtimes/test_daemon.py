"""The daemon's own answers in real containers: the process allocates, the runtime is handed what the kubelet got."""

import asyncio
import re
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from hami_plugin.demo.stage import CONFIGURATION, Stage, staged
from hami_plugin.kubelet.messages import allocate_response
from hami_plugin.model.views import PodView
from tests.e2e.manifests import idle, manifest, small
from tests.e2e.steps import start
from tests.runtimes.image import GREEDY
from tests.runtimes.inside import Inside
from tests.runtimes.machines import CORES, MACHINES, MEMORY, Machine
from tests.runtimes.simulated import prepare
from tests.runtimes.wanted import Wanted

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
BY_PROFILE = {machine.profile: machine for machine in MACHINES}
LOCKS = "/tmp/vgpulock"  # where HAMi-core's processes of all containers meet


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine with the daemon running on it."""

    machine: Machine
    stage: Stage

    async def allocate(self, pod_manifest) -> tuple[PodView, Wanted]:
        """Place a pod; what its container is to get, by the kubelet's account."""
        pod = self.stage.scheduler.place(pod_manifest)
        await self.stage.kubelet.admit(pod)
        answer = await self.stage.kubelet.start_container(pod.uid, "main")
        return pod, Wanted.of_answer(allocate_response(answer))

    async def share(self, name: str) -> tuple[str, Wanted]:
        """Allocate a share of one card: the card, and what the container is to get."""
        pod, wanted = await self.allocate(small(name, self.stage.family.resources, memory=MEMORY, cores=CORES))
        told = pod.annotations[self.stage.family.annotations.allocated]
        (card,) = (device.uuid for device in self.stage.hardware.machine.devices if device.uuid in told)
        return card, wanted

    @property
    def hook(self) -> str:
        return self.stage.options["--hook-path"]

    def here(self, text: str) -> str:
        return text.format(hook=self.hook)


@pytest.fixture
def running(shown, enclosure, monkeypatch):
    """``running(profile, ways)``: a node whose files and spec directories the enclosure has."""
    monkeypatch.setattr(tempfile, "tempdir", str(shown))
    enclosure.path(LOCKS).mkdir(exist_ok=True)

    @asynccontextmanager
    async def run(profile: str, ways: str):
        machine, directories = BY_PROFILE[profile], [str(enclosure.path(path)) for path in DIRECTORIES]
        configuration = {
            **CONFIGURATION,
            "cdiDirs": directories,
            "vendors": {machine.vendor: {"deviceListStrategy": ways}},
        }
        async with staged(profile, configuration=configuration) as stage:
            prepare(stage.directory / "machine", machine.nodes)
            for path in (stage.directory / "hook" / "vgpu").iterdir():
                path.write_text(path.name)
            await start(stage)
            yield Node(machine=machine, stage=stage)
        for directory in DIRECTORIES:
            for path in enclosure.path(directory).iterdir():
                path.unlink()

    return run


def seen(inside: Inside):
    return {
        "env": inside.env,
        "nodes": {path: (node.major, node.minor) for path, node in inside.devices.items()},
        "mounts": {path: (mount.source, mount.read_only) for path, mount in inside.mounts.items()},
    }


def check(node: Node, card: str, inside: Inside) -> None:
    """The container has the card's nodes and files, and the limits of its share, and nothing else."""
    machine = node.machine
    limits = {key: value for key, value in inside.env.items() if key not in machine.env}
    assert {**inside.env, **machine.env} == inside.env
    assert limits.keys() == machine.limits.keys()
    for key, pattern in machine.limits.items():
        assert re.fullmatch(node.here(pattern), limits[key]), key
    assert seen(inside)["nodes"] == machine.received((card,))
    assert {path: mount.read_only for path, mount in inside.mounts.items()} == {
        **dict.fromkeys(machine.mounts, True),
        **{node.here(path): read_only for path, read_only in machine.limit_mounts.items()},
    }


async def run(runtime, wanted: Wanted) -> Inside:
    return await asyncio.to_thread(runtime.run, wanted)


@pytest.mark.parametrize("profile", BY_PROFILE)
async def test_a_share_by_the_annotation_by_the_field_and_by_both_is_the_same_container(
    containerd, podman, running, profile
):
    bare = {runtime: await run(runtime, Wanted()) for runtime in (containerd, podman)}
    async with running(profile, "cdi-annotations,cdi-cri") as node:
        card, wanted = await node.share("share")
        by_annotation, by_field = replace(wanted, cdi=()), replace(wanted, annotations={})
        assert by_annotation.annotations
        assert by_field.cdi

        containers = [
            (await run(runtime, given)).beyond(bare[runtime])
            for runtime, given in (
                (containerd, by_annotation),
                (containerd, by_field),
                (containerd, wanted),
                (podman, by_field),
            )
        ]

        for inside in containers:
            check(node, card, inside)
            assert seen(inside) == seen(containers[0])


async def test_the_library_and_what_preloads_it_arrive_in_the_folder_that_can_be_written_to(containerd, running):
    async with running("dgx-h100", "cdi-annotations") as node:
        _card, wanted = await node.share("share")
        library = f"{node.hook}/vgpu/libvgpu.so"

        inside = await run(containerd, replace(wanted, read=("/etc/ld.so.preload", library)))

        assert inside.files == {"/etc/ld.so.preload": b"ld.so.preload", library: b"libvgpu.so"}


async def test_two_shares_of_different_cards_do_not_see_each_other(containerd, running):
    bare = await run(containerd, Wanted())
    async with running("a100-pcie-2-mig", "cdi-cri") as node:
        whole = [small(f"half-{n}", node.stage.family.resources, cores=100) for n in range(2)]
        granted = [await node.allocate(pod) for pod in whole]
        first, second = [seen((await run(containerd, wanted)).beyond(bare))["nodes"] for _pod, wanted in granted]

        assert first.keys() & second.keys() == node.machine.shared


async def test_an_image_that_asks_for_all_cards_gets_those_that_were_granted(containerd, running):
    bare = await run(containerd, Wanted())
    async with running("dgx-h100", "cdi-annotations") as node:
        card, wanted = await node.share("share")
        _pod, nothing = await node.allocate(manifest("nothing", [idle("main")]))

        greedy = await run(containerd, replace(wanted, image=GREEDY))
        refused = await run(containerd, replace(nothing, image=GREEDY))

        check(node, card, greedy.beyond(bare))
        assert (refused.beyond(bare).devices, refused.beyond(bare).mounts) == ({}, {})
        assert refused.env["NVIDIA_VISIBLE_DEVICES"] == "all"  # the image's own, which opens nothing
