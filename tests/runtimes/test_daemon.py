"""The daemon's own answers in real containers: the process allocates, the runtime is handed what the kubelet got."""

import asyncio
import re
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from cdi.names import annotated
from hami_plugin.demo.node import CONFIGURATION, NODE, SimulatedNode, simulated_node
from hami_plugin.kubelet.servicer import allocate_response
from hami_plugin.model.views import NodeView, PodView, pod_view
from hami_plugin.protocol import keys
from tests.e2e.manifests import idle, manifest, small
from tests.runtimes.image import GREEDY
from tests.runtimes.inside import Inside
from tests.runtimes.machines import MACHINES, Machine
from tests.runtimes.simulated import prepare
from tests.runtimes.wanted import Wanted
from tests.support.rigs import decision

CONTENTS = {"vgpu/ld.so.preload": "{hook}/vgpu/libvgpu.so"}
DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
BY_PROFILE = {machine.profile: machine for machine in MACHINES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine with the daemon running on it."""

    machine: Machine
    stage: SimulatedNode

    async def allocate(self) -> tuple[str, Wanted]:
        """Bring up a pod of one container: the device that the scheduler chose, and what the container is to get."""
        portion = self.machine.portion
        limits = {resource: str(amount) for resource, amount in portion.limits.items()}
        containers = [{"name": "main", "resources": {"limits": limits}}]
        made = manifest("portion", containers, annotations=dict(portion.annotations))
        pod = pod_view(self.stage.api.create_pod(made))
        told = {
            **decision(self.stage.family, self._seen_by_the_scheduler(), pod),
            keys.ASSIGNED_NODE: NODE,
            keys.BIND_PHASE: keys.PHASE_ALLOCATING,
        }
        self.stage.api.annotate_pod(pod.namespace, pod.name, told)
        chosen = told[self.stage.family.rules.annotations.allocated].partition(",")[0]
        return chosen, await self.admit(pod_view(self.stage.api.bind(pod.namespace, pod.name, NODE)))

    async def admit(self, pod: PodView) -> Wanted:
        """Return what the pod's container is to get, by the kubelet's account."""
        await self.stage.kubelet.admit(pod)
        return Wanted.of_answer(allocate_response(await self.stage.kubelet.start_container(pod.uid, "main")))

    def _seen_by_the_scheduler(self) -> NodeView:
        return NodeView(
            name=NODE,
            annotations=self.stage.api.node(NODE)["metadata"].get("annotations", {}),
            labels={"node.kubernetes.io/instance-type": self.stage.hardware.machine.extra.get("instance_type", "")},
            capacity={name: str(self.stage.kubelet.capacity(name)) for name in self._resources},
        )

    async def ready(self) -> None:
        register = self.stage.family.rules.annotations.register

        def offered() -> bool:
            known = self.stage.api.node(NODE)["metadata"].get("annotations", {})
            shares = [self.stage.kubelet.allocatable(name) for name in self._resources]
            return all(shares) and (not register or register in known)

        await self.stage.until(offered, "the offer", 20)

    @property
    def _resources(self) -> tuple[str, ...]:
        family = self.stage.family
        return (family.resources.count, *(units.resource for units in family.resources.units))

    @property
    def hook(self) -> str:
        return self.stage.options["--hook-path"]


@pytest.fixture
def running(shown, enclosure, monkeypatch):
    """``running(profile, ways)``: a node whose files and spec directories the enclosure has."""
    monkeypatch.setattr(tempfile, "tempdir", str(shown))

    @asynccontextmanager
    async def run(profile: str, ways: str, **settings: object):
        machine = BY_PROFILE[profile]
        own = {"deviceListStrategy": ways, **machine.portion.settings, **settings}
        directories = [enclosure.path(path) for path in DIRECTORIES]
        configuration = {**CONFIGURATION, "cdiDirs": [*map(str, directories)], "vendors": {machine.vendor: own}}
        try:
            async with simulated_node(profile, configuration=configuration) as stage:
                for name in machine.portion.files:
                    path = stage.directory / "hook" / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(CONTENTS.get(name, name).format(hook=stage.directory / "hook"))
                await stage.start_daemon()
                node = Node(machine=machine, stage=stage)
                await node.ready()
                prepare(stage.directory / "machine", machine.nodes)  # now: a daemon that starts makes plain files
                yield node
                await stage.stop_daemon(kill=True)  # saves its second of politeness
        finally:
            for directory in directories:
                for path in directory.iterdir():
                    path.unlink()

    return run


def seen(inside: Inside):
    return {
        "env": inside.env,
        "nodes": {path: (node.major, node.minor) for path, node in inside.devices.items()},
        "mounts": {path: (mount.source, mount.read_only) for path, mount in inside.mounts.items()},
        "groups": inside.groups,
    }


def check(node: Node, card: str, inside: Inside) -> None:
    """The container has the card's nodes and files, and the limits of its portion, and nothing else."""
    machine, portion = node.machine, node.machine.portion
    assert inside.env.items() >= machine.env.items()
    limits = {name: value for name, value in inside.env.items() if name not in machine.env}
    assert limits.keys() == portion.env.keys()
    for name, pattern in portion.env.items():
        assert re.fullmatch(pattern.format(hook=node.hook, card=card), limits[name]), f"{name}={limits[name]}"
    assert seen(inside)["nodes"] == machine.received([card])
    assert {path: mount.read_only for path, mount in inside.mounts.items()} == {
        **dict.fromkeys(machine.mounts, True),
        **{path.format(hook=node.hook): read_only for path, read_only in portion.mounts.items()},
    }


async def run(runtime, wanted: Wanted) -> Inside:
    return await asyncio.to_thread(runtime.run, wanted)


@pytest.mark.parametrize("profile", {machine.vendor: machine.profile for machine in reversed(MACHINES)}.values())
async def test_an_answer_by_the_annotation_by_the_field_and_by_both_is_the_same_container(
    containerd, podman, running, profile
):
    bare = {runtime: await run(runtime, Wanted()) for runtime in (containerd, podman)}
    async with running(profile, "cdi-annotations,cdi-cri") as node:
        card, wanted = await node.allocate()
        by_annotation, by_field = replace(wanted, cdi=()), replace(wanted, annotations={})
        assert by_annotation.annotations
        assert by_field.cdi
        assert wanted.devices == ()

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


@pytest.mark.parametrize("profile", [machine.profile for machine in MACHINES if machine.vendor != "nvidia"])
async def test_devices_in_the_answer_itself_are_the_same_container_as_by_cdi(containerd, running, profile):
    bare = await run(containerd, Wanted())
    async with running(profile, "device-specs") as node:
        card, wanted = await node.allocate()
        assert (wanted.cdi, annotated(wanted.annotations)) == ((), ())

        check(node, card, (await run(containerd, wanted)).beyond(bare))


async def test_nodes_of_nvidia_beside_their_cdi_names_change_nothing(containerd, running):
    bare = await run(containerd, Wanted())
    async with running("dgx-h100", "cdi-cri", passDeviceSpecs=True) as node:
        card, wanted = await node.allocate()
        assert wanted.devices
        assert wanted.cdi

        check(node, card, (await run(containerd, wanted)).beyond(bare))


async def test_two_pods_on_different_cards_have_no_cards_node_in_common(containerd, running):
    bare = await run(containerd, Wanted())
    async with running("dgx-h100", "cdi-cri") as node:
        pods = [node.stage.scheduler.place(small(f"pod-{n}", node.stage.family.resources)) for n in range(2)]

        first, second = [(await run(containerd, await node.admit(pod))).beyond(bare).devices for pod in pods]

        assert first.keys() & second.keys() == node.machine.shared


@pytest.mark.scenario("X8")
async def test_hamis_library_is_readable_and_preloaded_and_an_image_that_asks_for_all_cards_gets_one(
    containerd, running
):
    bare = await run(containerd, Wanted())
    async with running("dgx-h100", "cdi-annotations") as node:
        card, wanted = await node.allocate()
        nothing = await node.admit(node.stage.scheduler.place(manifest("nothing", [idle("main")])))
        library, preload = f"{node.hook}/vgpu/libvgpu.so", "/etc/ld.so.preload"

        greedy = await run(containerd, replace(wanted, image=GREEDY, read=(library, preload)))
        refused = await run(containerd, replace(nothing, image=GREEDY))

        check(node, card, greedy.beyond(bare))
        assert greedy.files == {library: b"vgpu/libvgpu.so", preload: library.encode()}
        assert (refused.beyond(bare).devices, refused.beyond(bare).mounts) == ({}, {})
        assert refused.env["NVIDIA_VISIBLE_DEVICES"] == "all"  # the image's own, which opens nothing
