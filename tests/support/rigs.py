"""A vendor's node side on a simulated machine, from its file trees to the answer that the kubelet would be given."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cdi.documents import plain_edits
from cdi.spec import ContainerEdits
from hami_plugin.allocation.allocator import question_of
from hami_plugin.allocation.capacity import beyond_request
from hami_plugin.allocation.preparation import build_answer
from hami_plugin.cli.snapshot import snapshot_of
from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device, Snapshot
from hami_plugin.model.machine import Machine
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.node_status.registration import Style, wanted_annotations
from hami_plugin.protocol.keys import ASSIGNED_NODE
from hami_plugin.protocol.pods import decided_shares
from hami_plugin.scheduler.engine.devices import Context, Demand
from hami_plugin.scheduler.engine.fit import Granted, Refused, fit
from hami_plugin.scheduler.engine.node_info import device_pool
from hami_plugin.sdk import Driver, Family, Simulator
from hami_plugin.simulation.hardware import vendor_of
from hami_plugin.simulation.machines import load_machine

NODE = "n1"


@dataclass(frozen=True)
class Rig:
    """``root`` is the folder of the machine's files; ``family`` is the first of the vendor's."""

    root: Path
    machine: Machine
    simulator: Simulator
    settings: Any
    driver: Driver
    family: Family

    def snapshot(self) -> Snapshot:
        return snapshot_of(self.driver)

    def faults(self) -> dict[int, str]:
        """Index and reason of each device that is not well."""
        return {s.device.index: s.fault.reason for s in self.driver.discover().sightings if s.fault}

    def node(self, snapshot: Snapshot, **labels: str) -> NodeView:
        """The node as the API server has it, once the kubelet and the daemon have spoken."""
        written = wanted_annotations(self.family, snapshot, Style())
        capacity = {self.family.resources.count: sum(map(self.family.node.replicas, snapshot.devices))}
        for units in self.family.resources.units:
            capacity[units.resource] = sum(map(units.of_device, snapshot.devices))
        return NodeView(
            name=NODE,
            labels=labels,
            annotations={key: text for key, text in written.items() if text is not None},
            capacity={name: str(count) for name, count in capacity.items()},
        )

    def decided(self, node: NodeView, limits: Mapping[str, object], **annotations: str) -> PodView:
        """A pod of one container with HAMi's decision about it, as its scheduler writes it down."""
        container = ContainerView(name="main", limits={name: str(value) for name, value in limits.items()})
        pod = PodView(uid="u1", namespace="default", name="p1", node=NODE, containers=(container,))
        pod = replace(pod, annotations={**annotations, ASSIGNED_NODE: NODE})
        return replace(pod, annotations={**pod.annotations, **decision(self.family, node, pod)})

    def refused(self, node: NodeView, limits: Mapping[str, object]) -> str:
        """Why a scheduler gives a container with these limits nothing on the idle node; empty where it does."""
        container = ContainerView(name="main", limits={name: str(value) for name, value in limits.items()})
        outcome = decided(self.family, node, PodView(uid="u1", namespace="default", name="p1", containers=(container,)))
        return str(outcome) if isinstance(outcome, Refused) else ""

    def received(self, limits: Mapping[str, object], **labels: str) -> dict[str, Any]:
        """What a container with these limits is answered, on a node with nothing else. ``labels`` are the node's."""
        snapshot = self.snapshot()
        return self.answer(self.decided(self.node(snapshot, **labels), limits), snapshot.devices)

    def answer(self, pod: PodView, devices: Sequence[Device], others: Sequence[Grant] = ()) -> dict[str, Any]:
        """What the pod's container receives, in plain values, with ``ROOT`` in place of the machine's folder.

        ``others`` are what other containers hold already.
        """
        questions = [
            question_of(self.family),
            *(question_of(self.family, units) for units in self.family.resources.units),
        ]
        question = next(one for one in questions if pod.containers[0].amount(one.resource))
        (claim,) = decided_shares(pod, question)
        by_uuid = {device.uuid: device for device in devices}
        offered = {uuid: self.family.node.register(device, False).devmem for uuid, device in by_uuid.items()}
        assert (
            beyond_request(claim, question, offered, {u: self.family.node.every_core(d) for u, d in by_uuid.items()})
            == ""
        )
        placed = (self._placed(grant, by_uuid[grant.uuid], others) for grant in claim.grants)
        shares = tuple(sorted(placed, key=lambda share: share.device.index))
        assignment = Assignment(pod=pod, container=claim.container, shares=shares)
        host = HostFiles(paths=HostPaths(hook=self.root / "hook", hook_view=self.root / "hook"))
        injection = self.family.node.inject(assignment, host)
        described = [self.family.node.device_edits(share.device, host) for share in shares]
        edits = ContainerEdits().merged(self.family.node.shared_edits(host), *described)
        given = build_answer(self.family.node.delivery, assignment, injection.edits, edits)
        plain = {
            "ids": list(claim.devices),
            "edits": plain_edits(given.edits),
            "annotations": dict(given.annotations),
            "cdiDevices": list(given.cdi_devices),
        }
        shown = json.loads(json.dumps(plain).replace(str(self.root), "ROOT"))
        return {key: value for key, value in shown.items() if value}

    def _placed(self, grant: Grant, device: Device, others: Sequence[Grant]) -> Share:
        held = [other for other in others if other.uuid == grant.uuid]
        return Share(grant=self.family.node.place(grant, device, held), device=device)


def decision(family: Family, node: NodeView, pod: PodView) -> Mapping[str, str]:
    """How HAMi's scheduler writes down what the one container of ``pod`` gets on an idle ``node``."""
    outcome = decided(family, node, pod)
    assert isinstance(outcome, Granted), outcome
    return family.rules.patch(family, pod, {family.resources.device_type: (outcome.grants,)})


def decided(family: Family, node: NodeView, pod: PodView) -> Granted | Refused:
    """What the family's rules say of the one container of ``pod`` on an idle ``node``."""
    assert family.rules.policy
    demand = family.rules.policy.request(pod.containers[0])
    assert isinstance(demand, Demand)
    return fit(family.rules.policy, device_pool(node, family, ()).states, Context(demand=demand, pod=pod, node=node))


@cache
def known(profile: str) -> Machine:
    """The machine of a profile, read once."""
    return load_machine(profile)


def rig(profile: str, root: Path, **settings: Any) -> Rig:
    """The machine's own vendor on a simulated machine. ``settings`` by their keys go over the simulator's."""
    machine = known(profile)
    vendor = vendor_of(machine)
    assert vendor.open
    simulator = vendor.simulate(machine, root)
    plain = {"deviceListStrategy": vendor.settings.plain}
    chosen = vendor.settings.model_validate({**plain, **simulator.settings(), **settings})
    driver = vendor.open(chosen, HostPaths(node=NODE, hook=root / "hook", hook_view=root / "hook"))
    return Rig(
        root=root,
        machine=machine,
        simulator=simulator,
        settings=chosen,
        driver=driver,
        family=vendor.families(chosen)[0],
    )


def golden(file: Path, value: Any) -> None:
    """``value`` is what ``file`` says. With ``UPDATE_GOLDEN=1`` it is written, to be looked at before it is kept."""
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    assert value == json.loads(file.read_text(encoding="utf-8"))


def kept_back_and_healed(rig: Rig, fault: str, reason: str, index: int = 2) -> None:
    """A device with this fault is told of with its reason, keeps what is known of it, and heals to what it was."""
    before = rig.snapshot().devices
    rig.simulator.inject(fault, index)
    assert [(event.uuid, event.fault.reason) for event in rig.driver.poll(2.0)] == [(before[index].uuid, reason)]
    assert rig.faults() == {index: reason}
    assert rig.driver.discover().sightings[index].device == before[index]
    rig.simulator.inject("back", index)
    assert rig.faults() == {}
    assert rig.snapshot().devices == before


def lost_alone(rig: Rig, index: int) -> None:
    """A device that falls off the bus is told of as gone, and all others are what they were."""
    before = rig.snapshot().devices
    rig.simulator.inject("lost", index)
    assert [(event.uuid, event.fault.reason) for event in rig.driver.poll(2.0)] == [(before[index].uuid, "DeviceGone")]
    assert rig.snapshot().devices == (*before[:index], *before[index + 1 :])


def absent_and_back(rig: Rig, fault: str, reason: DriverReason, words: str | None = None) -> None:
    """Without its driver, devices or tool the vendor says what is missing; with it again every device is well."""
    rig.simulator.inject(fault)
    with pytest.raises(DriverUnavailableError, match=words) as caught:
        rig.driver.discover()
    assert caught.value.reason is reason
    rig.simulator.inject("tool-back" if fault.startswith("tool") else "driver-back")
    assert rig.faults() == {}
