"""Each family's devices, filled to the last bit: whom a scheduler placed is served, and nothing more is given."""

from __future__ import annotations

import json
import lzma
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.allocation.capacity import EXACTLY, Measure, PodGrants, Total, overcommitted, registered_total
from hami_plugin.demo.node import install_core
from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.model.device import physical_counts, physical_id
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import PodView, pod_view
from hami_plugin.protocol.keys import ASSIGNED_NODE
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.admission import admit_document
from hami_plugin.scheduler.engine.fit import PodFit, fit_pod
from hami_plugin.scheduler.engine.node_info import patch, read_node, scheduling_policies
from hami_plugin.sdk import Family, load_vendor, vendor_names
from hami_plugin.simulation.hardware import vendor_of
from tests.support import contract
from tests.support.machines import UNLIMITED, Case, cases, found, named, share_of
from tests.support.node import Node
from tests.support.rigs import NODE
from tests.support.scale import spread

VECTORS = Path(__file__).parents[1] / "vectors"


def ways() -> list[Case]:
    """The first machine of each way in which a vendor serves."""
    seen: dict[tuple[str, str], Case] = {}
    for case in cases():
        seen.setdefault((vendor_of(case.machine).name, case.way.name), case)
    return list(seen.values())


class Filling:
    """One machine with pods on it, each decided beside the others by our rules, and answered by the allocator."""

    def __init__(self, case: Case, root: Path) -> None:
        seen = found(case, root / "look")
        if UNLIMITED in seen.rig.settings.__class__.model_fields:
            seen = found(case, root / "trusting", unlimitedShares=True)
        self.case, self.seen, self.family = case, seen, seen.family
        self.node = Node(root=root, devices=0, counted=EXACTLY)
        self.node.snapshot.set(seen.snapshot)
        install_core(root / "hook" / "vgpu")
        self.served: list[tuple[PodView, Mapping[str, list[str]]]] = []
        self.taken: dict[str, set[str]] = defaultdict(set)

    def decided(self, name: str, limits: Mapping[str, int]) -> PodView | None:
        resources = {"limits": {name: str(amount) for name, amount in limits.items()}}
        manifest = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"00000000-0000-4000-8000-{name:0>12}",
                "annotations": dict(self.case.way.annotations),
            },
            "spec": {"nodeName": NODE, "containers": [{"name": "main", "resources": resources}]},
            "status": {"phase": "Pending"},
        }
        admitted = admit_document(manifest, [self.family])
        assert isinstance(admitted, Mapping), admitted
        pod = pod_view(admitted)
        node_info = read_node(self.seen.node, [self.family], [one for one, _ids in self.served]).node_info
        placed = fit_pod(pod, scheduling_policies([self.family]), node_info)
        if not isinstance(placed, PodFit):
            return None
        return replace(pod, annotations={**pod.annotations, ASSIGNED_NODE: NODE, **patch([self.family], pod, placed)})

    async def serve(self, pod: PodView) -> bool:
        """All that the pod's container is counted by. False where the host lacks something, as a cut partition."""
        self.node.cluster.add(pod)
        taken = {}
        for resource in self._counted_by(pod):
            count = pod.containers[0].amount(resource)
            ids = list(await self.node.allocator.prefer(self.free(resource), (), count))
            try:
                await self.node.allocator.allocate(ids)
            except RefusedError as refusal:
                if refusal.reason is not RefusalReason.NOT_PREPARED:
                    raise
                return False
            taken[resource] = ids
        for resource, ids in taken.items():
            self.taken[resource].update(ids)
        self.served.append((pod, taken))
        return True

    async def forge(self, pod: PodView, ids: Mapping[str, Sequence[str]]) -> RefusedError | None:
        """A pod with another one's decision asks for ids of the same devices. None where the kubelet has too few."""
        forged = replace(pod, uid=f"f{pod.uid[1:]}", name=f"forged-{pod.name}")
        resource = next(self._counted_by(forged))
        wanted = physical_counts(ids[resource])
        free = [one for one in self.free(resource) if physical_id(one) in wanted]
        chosen = [one for uuid, count in wanted.items() for one in [i for i in free if physical_id(i) == uuid][:count]]
        if len(chosen) < wanted.total():
            return None
        self.node.cluster.add(forged)
        with pytest.raises(RefusedError) as caught:
            await self.node.allocator.allocate(chosen)
        self.node.cluster.remove(forged)
        return caught.value

    def free(self, resource: str) -> list[str]:
        """The ids that nobody has, of the resource that was used last."""
        offers = self.node.allocator.offers.value
        return [one.id for one in offers if one.healthy and one.id not in self.taken[resource]]

    def _counted_by(self, pod: PodView) -> Iterator[str]:
        for units in (None, *self.family.resources.units):
            self.node.use(self.family, units)
            if pod.containers[0].amount(self.node.allocator.resource):
                yield self.node.allocator.resource

    async def close(self) -> None:
        await self.node.settlement.close()
        self.node.journal.close()


@pytest.mark.parametrize("case", spread(ways(), part=3), ids=str)
async def test_a_full_machine_has_refused_nobody_and_gives_nothing_on_top(case: Case, tmp_path: Path) -> None:
    filling, chance = Filling(case, tmp_path), random.Random(str(case))
    share, whole = share_of(filling.seen, case.way), named(filling.family, case.way.whole)
    asked = [one for one in (share, whole) if one]
    number = 0
    while asked and number < 60:
        limits = chance.choice(asked)
        if (pod := filling.decided(str(number), limits)) is None:
            asked.remove(limits)
            continue
        if not await filling.serve(pod):
            asked.remove(limits)
        number += 1
    assert number > 0
    refusals = list(filter(None, [await filling.forge(pod, ids) for pod, ids in filling.served[:3]]))
    assert {refusal.reason for refusal in refusals} <= {RefusalReason.OVERCOMMITTED, RefusalReason.NOT_PREPARED}
    measure = Measure.of(filling.family, filling.seen.snapshot.devices[0], masks=True)
    assert bool(refusals) == bool(share and measure and measure.total.memory), measure
    await filling.close()


# What HAMi's own code has granted.


def families() -> dict[str, Family]:
    known = [load_vendor(name) for name in vendor_names()]
    return {family.resources.device_type: family for vendor in known for family in contract.families(vendor)}


def granted(file: Path) -> Iterator[tuple[Mapping[str, Any], str, list[Mapping[str, Any]]]]:
    """Each device of each recorded grant as it was, with what was granted of it."""
    with lzma.open(file, "rt") as lines:
        for case in map(json.loads, lines):
            shares = [one for some in (case["out"].get("devices") or {}).values() for one in some or ()]
            devices = {one["id"]: one for one in case["in"]["devices"]}
            soft = case["in"]["pod"].get("annotations", {}).get("huawei.com/vnpu-mode") if case["in"].get("pod") else ""
            for uuid in {share["uuid"] for share in shares} if case["out"].get("ok") else ():
                if soft and devices[uuid]["totalcore"] < 100:
                    continue  # a node that serves such pods registers 100, and another node gets none
                yield devices[uuid], case["in"]["vendor"], [share for share in shares if share["uuid"] == uuid]


def holds(total: Total, memory: int, cores: int) -> bool:
    taken = Grant(uuid="", device_type="", memory=memory, cores=cores)
    return overcommitted(total, PodGrants(name="", late=(taken,)), ()) is None


@pytest.mark.parametrize("file", sorted(VECTORS.glob("*_fit.jsonl.xz")), ids=lambda file: file.name.split(".")[0])
def test_what_hamis_code_grants_is_within_what_we_count(file: Path) -> None:
    known, compared = families(), 0
    for device, device_type, shares in granted(file):
        family = known[device_type]
        info = DeviceInfo(id=device["id"], devmem=device.get("totalmem", 0), devcore=device.get("totalcore", 0))
        total, count = registered_total(family, info, masks=False), family.resources.core_count
        before = (device.get("usedmem", 0), count(device.get("usedcores", 0)))
        if holds(total, *before):
            memory, cores = (sum(one.get(key, 0) for one in shares) for key in ("usedmem", "usedcores"))
            assert holds(total, before[0] + memory, before[1] + count(cores)), device
            compared += 1
    assert compared > 100
