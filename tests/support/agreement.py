"""Whether the scheduler, ``fit`` and the daemon say the same of a pod: the three real ones, over a simulated machine.

The node is what the daemon's own code publishes of it; the scheduler's side is the webhook's and the extender's, and
the daemon's is Allocate, asked as a kubelet asks. Where the scheduler says no, a decision is made all the same by one
that does not read what the node says it refuses, as HAMi's does not: the daemon must refuse that one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from hami_plugin.allocation.allocator import Allocator, question_of
from hami_plugin.allocation.capacity import DeviceTable
from hami_plugin.cli.fit.inquiry import Inquiry, answer_inquiry
from hami_plugin.demo.node import install_core
from hami_plugin.errors import HamiError, RefusedError
from hami_plugin.inventory.inventory import part
from hami_plugin.model.delivery import ANSWERED_FOR
from hami_plugin.model.ports import CheckpointEntry
from hami_plugin.model.views import NodeView, PodView, pod_view
from hami_plugin.node_status.registration import FamilySource, Style, desired_annotations
from hami_plugin.process.concurrency import Watched
from hami_plugin.protocol.keys import OWN
from hami_plugin.scheduler.engine.admission import Scheduling, admit_document, defaults, review
from hami_plugin.scheduler.engine.capacity import sizes, why_impossible
from hami_plugin.scheduler.engine.devices import Denied, Given
from hami_plugin.scheduler.engine.filter import ClusterSnapshot, NoDemand, filter_nodes
from hami_plugin.scheduler.engine.fit import PodFit, fit_pod
from hami_plugin.scheduler.engine.node_info import (
    PodIndex,
    insufficient_other,
    patch,
    read_idle_node,
    read_node,
    resource_names,
    scheduling_policies,
    shares_without_device,
    with_legacy_register,
)
from hami_plugin.sdk import Family, load_vendor, vendor_names
from hami_plugin.simulation.hardware import vendor_of
from hami_plugin.simulation.kubelet import AdmissionError, Allotment, DeviceManager, Reuse, wanted
from tests.support.kubelet import FakeCheckpoint
from tests.support.machines import Case
from tests.support.node import Node
from tests.support.rigs import NODE, Rig, rig

NOBODYS = "example.com/quantum"


@cache
def every_family() -> tuple[Family, ...]:
    """All families of all vendors, as the scheduler has them."""
    vendors = [load_vendor(name) for name in vendor_names()]
    families = [family for vendor in vendors for family in vendor.families(vendor.settings.model_validate({}))]
    return tuple(map(with_legacy_register, families))


@dataclass(frozen=True, kw_only=True)
class Ground:
    """A simulated machine as one daemon serves it, and the node that it makes of it."""

    rig: Rig
    parts: tuple[tuple[Family, Watched[Any]], ...]
    node: NodeView
    bare: bool = False

    @property
    def families(self) -> tuple[Family, ...]:
        return tuple(family for family, _ in self.parts)


def ground(case: Case, root: Path, **settings: Any) -> Ground:
    """Set the machine up, look at it once, and publish what is found with the daemon's code."""
    if not case.way.bare:
        install_core(root / "machine" / "hook" / "vgpu")
    served = rig(case.profile, root / "machine", **{**case.way.settings, **settings})
    for fault, device, value in case.way.faults:
        served.simulator.inject(fault, device, value)
    snapshot = served.snapshot()
    served.driver.close()
    vendor = vendor_of(case.machine)
    families = vendor.families(served.settings)
    parts = tuple((family, Watched(part(snapshot, family.resources.device_type))) for family in families)
    sources = [FamilySource(family=family, snapshot=own, vendor=vendor.name) for family, own in parts]
    said = {key: text for one in desired_annotations(sources, Style(), frozenset()) for key, text in one.wanted.items()}
    offers = {
        (units.resource if units else family.resources.count): DeviceTable(family, units, own).offers()
        for family, own in parts
        for units in (None, *family.resources.units)
    }
    kind = str(case.machine.extra.get("instance_type", ""))
    node = NodeView(
        name=NODE,
        labels={"node.kubernetes.io/instance-type": kind} if kind else {},
        annotations={key: text for key, text in said.items() if text is not None},
        capacity={name: str(len(ids)) for name, ids in offers.items()},
        allocatable={name: str(sum(one.healthy for one in ids)) for name, ids in offers.items()},
    )
    return Ground(rig=served, parts=parts, node=node, bare=case.way.bare)


class Remembered(FakeCheckpoint):
    """The kubelet's checkpoint: it is written before the next container is looked at."""

    def __init__(self, ledger: DeviceManager) -> None:
        super().__init__()
        self._ledger = ledger

    async def kept(self, resource: str, ids: frozenset[str] | None = None) -> tuple[CheckpointEntry, ...]:
        return tuple(
            CheckpointEntry(
                uid=uid,
                container=container,
                ids=frozenset(held.ids),
                answered_for=held.answer.annotations[ANSWERED_FOR],
            )
            for (uid, container, name), held in self._ledger.allotments.items()
            if name == resource and ids in (None, frozenset(held.ids))
        )


@dataclass(kw_only=True)
class Trial:
    """One node over a sequence of pods. ``asked`` counts the answers; ``against`` are those that contradict. ``dice``
    is the kubelet's, which takes what init containers leave in any order.
    """

    ground: Ground
    root: Path
    asked: Counter[str] = field(default_factory=Counter)
    against: list[str] = field(default_factory=list)
    pods: list[PodView] = field(default_factory=list)
    number: int = 0
    dice: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        if not self.ground.bare:
            install_core(self.root / "hook" / "vgpu")
        self.kubelet = DeviceManager()
        self.daemon = Node(root=self.root, devices=0, wait=0.0, checkpoint=Remembered(self.kubelet))
        self.allocators: dict[str, Allocator] = {}
        questions = []
        for family, own in self.ground.parts:
            for units in (None, *family.resources.units):
                made = self.daemon._allocator(family, units, own)
                if own.value.devices:
                    self.allocators[made.resource] = made
                    self.kubelet.listed(made.resource, made.offers.value)
                    questions.append(question_of(family, units))
        self.daemon.settlement.questions = questions
        self.daemon.reaper._questions = questions

    async def close(self) -> None:
        await self.daemon.settlement.close()
        self.daemon.journal.close()

    async def ask(self, manifest: Mapping[str, Any]) -> bool:
        """One pod, asked of all three. Whether it fits; then it stays."""
        self.number += 1
        name = f"p{self.number}"
        meta = {
            **manifest["metadata"],
            "name": name,
            "namespace": "default",
            "uid": f"00000000-0000-4000-8000-{self.number:012}",
        }
        made = {**manifest, "metadata": meta, "status": {"phase": "Pending"}}
        told = self._fit(made)
        found = self._scheduled(made)
        if told is not bool(found):
            self.against.append(f"fit says {told} and the scheduler {not told}: {_shown(made)}")
        if found:
            self.asked["yes"] += 1
            pod, given = found
            problem = await self._admitted(pod, given)
            if problem:
                self.against.append(f"it fits, and the daemon refuses: {problem}: {_shown(made)}: {pod.annotations}")
                await self._gone(pod)
            else:
                self.pods.append(self.daemon.cluster.pod(pod))
            return True
        self.asked["no"] += 1
        if forced := self._forced(made):
            self.asked["no, and decided all the same"] += 1
            pod, given = forced
            if not await self._admitted(pod, given):
                self.against.append(f"it does not fit, and the daemon serves it: {_shown(made)}: {pod.annotations}")
            await self._gone(pod)
        return False

    async def start(self, number: int) -> None:
        """The init containers of one of the pods are over, and the others run."""
        await self.daemon.settled()
        self.pods[number] = self.daemon.cluster.change(self.pods[number], phase="Running")

    async def end(self, number: int) -> None:
        """One of the pods is over."""
        await self._gone(self.pods.pop(number))

    def _fit(self, manifest: Mapping[str, Any]) -> bool:
        inquiry = Inquiry(
            pod=pod_view(manifest), nodes=(self.ground.node,), families=every_family(), pods=tuple(self.pods)
        )
        try:
            return answer_inquiry(inquiry).choice.best is not None
        except HamiError:
            return False

    def _scheduled(self, manifest: Mapping[str, Any]) -> tuple[PodView, Given] | None:
        """By the webhook and the extender. None where there is no node for it."""
        families = every_family()
        verdict = review(manifest, families, Scheduling())
        admitted = admit_document(manifest, families)
        if isinstance(verdict, Denied) or isinstance(admitted, Denied):
            return None
        pod, ledger = pod_view(admitted), PodIndex()
        for one in self.pods:
            ledger.see(one, families)
        node_info = read_idle_node(self.ground.node, families).node_info
        snapshot = ClusterSnapshot(families=families, nodes={NODE: node_info}, pods=ledger)
        if insufficient_other(pod, self.ground.node, families) or why_impossible(
            pod, families, sizes(node_info, families)
        ):
            return None
        found = filter_nodes(snapshot, pod, [NODE])
        if isinstance(found, NoDemand):
            return replace(pod, node=NODE), {}
        return self._decided(pod, found.placed) if found.placed else None

    def _forced(self, manifest: Mapping[str, Any]) -> tuple[PodView, Given] | None:
        """By rules that do not read what the node refuses; None where they too find nothing to give."""
        families = every_family()
        admitted = defaults(pod_view(manifest), families)
        if isinstance(admitted, Denied) or shares_without_device(admitted.pod, families):
            return None
        node_info = read_idle_node(self.ground.node, families).node_info
        if insufficient_other(admitted.pod, self.ground.node, families) or why_impossible(
            admitted.pod, families, sizes(node_info, families)
        ):
            return None  # kube-scheduler or the webhook says no by itself, whatever is free
        said = {key: text for key, text in self.ground.node.annotations.items() if not key.startswith(OWN)}
        node_info = read_node(replace(self.ground.node, annotations=said), families, self.pods).node_info
        found = fit_pod(admitted.pod, scheduling_policies(families), node_info)
        if not isinstance(found, PodFit) or not found.given:
            return None
        return self._decided(admitted.pod, found)

    def _decided(self, pod: PodView, placed: PodFit) -> tuple[PodView, Given]:
        written = patch(every_family(), pod, placed)
        return replace(pod, node=NODE, annotations={**pod.annotations, **written}), placed.given

    async def _admitted(self, pod: PodView, given: Given) -> str:
        """Why the kubelet would not run it with all that was decided; empty when it does."""
        self.daemon.cluster.add(pod)
        reuse = Reuse()
        try:
            for number, container in enumerate(pod.containers):
                took = {}
                for resource, amount in wanted(container, self.allocators).items():
                    took[resource] = await self._allotted(pod, container.name, resource, amount, reuse)
                reuse.after(container, took)
                if problem := self._missing(given, number, container.name, took):
                    return problem
        except (RefusedError, AdmissionError) as error:
            return str(error)
        return ""

    async def _allotted(self, pod: PodView, container: str, resource: str, amount: int, reuse: Reuse) -> Allotment:
        allocator = self.allocators[resource]
        reusable = sorted(reuse.of(resource))
        must = self.dice.sample(reusable, k=min(amount, len(reusable)))
        left = amount - len(must)
        free = sorted(self.kubelet.free(resource, left)) if left else []
        asked = await allocator.prefer([*must, *free], must, amount) if left else ()
        chosen = list(asked) or [*must, *free[:left]]
        ids = (*must, *[one for one in chosen if one not in must])[:amount]
        answer = await allocator.allocate(ids)
        held = Allotment(ids=tuple(ids), answer=answer)
        self.kubelet.allotments[pod.uid, container, resource] = held
        return held

    def _missing(self, given: Given, number: int, container: str, took: Mapping[str, Allotment]) -> str:
        """What was decided for a container and never asked for by the kubelet."""
        for device_type, pieces in given.items():
            if pieces[number] and not any(resource in resource_names(_family(device_type)) for resource in took):
                return f"the kubelet asks for nothing of {device_type} for container {container}"
        return ""

    async def _gone(self, pod: PodView) -> None:
        await self.daemon.settled()
        self.kubelet.remove(pod.uid)
        self.daemon.cluster.remove(pod)
        self.daemon._gone(pod)


@cache
def _family(device_type: str) -> Family:
    return next(family for family in every_family() if family.resources.device_type == device_type)


def _shown(manifest: Mapping[str, Any]) -> str:
    spec = manifest["spec"]
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    asked = [(one["name"], one.get("restartPolicy", ""), one["resources"]["limits"]) for one in containers]
    return f"{asked} {manifest['metadata']['annotations']}"


class Questions:
    """Random pods for one machine, the same for the same seed."""

    def __init__(self, ground: Ground, dice: random.Random) -> None:
        self._ground = ground
        self._dice = dice
        self._own = ground.families
        self._others = [
            one
            for one in every_family()
            if one.resources.device_type not in {own.resources.device_type for own in ground.families}
        ]
        self._devices = {family.resources.device_type: list(own.value.devices) for family, own in ground.parts}

    def pod(self) -> Mapping[str, Any]:
        dice = self._dice
        if dice.random() < 0.5:  # one container that asks for what there is
            limits = self._asking(self._likely())
            main = {"name": "main", "image": "i", "resources": {"limits": limits}}
            return {"metadata": {"annotations": self._annotations()}, "spec": {"containers": [main]}}
        containers = [self._container(f"c{n}") for n in range(dice.choice((1, 1, 1, 2, 3)))]
        inits = [self._container(f"i{n}") for n in range(dice.choice((0, 0, 0, 1, 2)))]
        for one in inits:
            if dice.random() < 0.3:
                one["restartPolicy"] = "Always"
        spec = {"containers": containers, **({"initContainers": inits} if inits else {})}
        return {"metadata": {"annotations": self._annotations()}, "spec": spec}

    def _container(self, name: str) -> dict[str, Any]:
        return {"name": name, "image": "i", "resources": {"limits": self._limits()}}

    def _limits(self) -> dict[str, str]:
        dice, kind = self._dice, self._dice.random()
        if kind < 0.08:
            return {}
        if kind < 0.12:
            return {NOBODYS: "1"}
        if kind < 0.2:
            return self._asking(dice.choice(self._others))
        limits = self._asking(self._likely())
        if kind < 0.24:
            limits |= self._asking(self._likely())
        return limits

    def _likely(self) -> Family:
        """Mostly a family of which there is something."""
        there = [family for family in self._own if self._devices[family.resources.device_type]]
        return self._dice.choice(there if there and self._dice.random() < 0.9 else self._own)

    def _asking(self, family: Family) -> dict[str, str]:
        dice, names = self._dice, family.resources
        devices = len(self._devices.get(family.resources.device_type, ())) or 8
        limits = {names.count: dice.choice((1, 1, 1, 1, 1, 2, 2, 4, devices, devices + 1))}
        if dice.random() < 0.05:
            del limits[names.count]
        if names.memory and dice.random() < 0.5:
            limits[names.memory] = self._memory(family)
        if names.memory_percent and dice.random() < 0.4:
            limits[names.memory_percent] = dice.choice((1, 10, 16, 17, 25, 33, 34, 50, 51, 75, 100, 100, 101))
        if names.cores and dice.random() < 0.4:
            limits[names.cores] = dice.choice((1, 2, 8, 10, 16, 25, 30, 32, 50, 99, 100, 100, 101, 150, 200))
        for units in family.resources.units:
            if units.resource not in limits and dice.random() < 0.05:
                limits[units.resource] = dice.choice((1, 2, 100))
        return {name: str(amount) for name, amount in limits.items() if name}

    def _memory(self, family: Family) -> int:
        dice, devices = self._dice, self._devices.get(family.resources.device_type)
        total = (devices[0].memory if devices else 65536) // max(1, family.resources.memory_factor)
        some = (total // 8, total // 4, total // 3, total // 2, total - 1, total, total, total + 1, total * 2)
        return max(1, dice.choice((*some, 1, 2, 3, 8, 12, 16, 24, 32, 64, 96, 4096, 8192, 24576)))

    def _annotations(self) -> dict[str, str]:
        dice = self._dice
        annotations: dict[str, str] = {}
        devices = [one for found in self._devices.values() for one in found]
        if dice.random() < 0.3 and devices:
            picked = dice.sample(devices, k=min(len(devices), dice.choice((1, 1, 2, 4))))
            key = dice.choice(_selectors(self._own))
            annotations[key] = ",".join(one.uuid for one in picked)
        if dice.random() < 0.3:
            annotations["hami.io/gpu-scheduler-policy"] = dice.choice(
                ("binpack", "spread", "mutex", "numa", "topology-aware", "spread,topology-aware")
            )
        if dice.random() < 0.15:
            annotations["huawei.com/vnpu-mode"] = "hami-core"
        if dice.random() < 0.15:
            annotations["metax-tech.com/sgpu-qos-policy"] = dice.choice(("best-effort", "fixed-share", "burst-share"))
        return annotations


def _selectors(families: Iterable[Family]) -> Sequence[str]:
    """Annotations by which pods name devices, the vendors' own and those of other vendors."""
    words = [family.resources.device_type for family in families]
    vendors = ("nvidia.com", "amd.com", "cambricon.com", "enflame.com", "mthreads.ai", "hygon.com", "birentech.com")
    vendors += ("vastaitech.com", "metax-tech.com", "aws.amazon.com", "baidu.com", "habana.com")
    own = {resource.partition("/")[0] for family in families for resource in resource_names(family)}
    likely = [one for one in vendors if one in own or one.partition(".")[0] in {o.partition(".")[0] for o in own}]
    chosen = likely or list(vendors)
    return [
        *(f"{vendor}/{use}-gpuuuid" for vendor in chosen for use in ("use", "nouse")),
        *(f"hami.io/{use}-{device_type}-uuid" for device_type in words for use in ("use", "no-use")),
        *(f"{vendor}/{use}-gpu-uuid" for vendor in chosen for use in ("use", "nouse")),
    ]
