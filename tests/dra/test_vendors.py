"""Every vendor's machines by claims: a whole device each, and a part where parts are enforced."""

from dataclasses import dataclass
from typing import Any

import pytest

from cdi.documents import to_json
from cdi.spec import ContainerEdits
from cdi.store import load
from hami_plugin.dra.claims import ClaimError
from hami_plugin.dra.explanation import Selection, verdicts
from hami_plugin.dra.slices import device_entry, offered_devices
from hami_plugin.inventory.cdi_specs import describe, file_name
from hami_plugin.model.device import Health
from tests.dra.node import DRIVER, Claims
from tests.dra.test_slices import LENT
from tests.support.builders import NODE
from tests.support.machines import (
    Case,
    cases,
    found,
    reviewed,
    reviewed_device,
    reviewed_mounts,
    reviewed_variables,
)
from tests.support.scale import spread

MACHINES = [case for case in cases() if str(case) not in LENT and "mig" not in str(case)]
BY_CLAIMS = {"deviceListStrategy": ["cdi-cri"], "frontEnd": "dra"}
PART = {"memory": "3000Mi", "cores": "30"}


@dataclass(frozen=True, kw_only=True)
class Had:
    """What containers have of a machine: one of a claim for a ``whole`` device, with its nodes by the CDI specs, and
    one for a ``part`` of some 3000 MiB and 30 %; or ``why`` there is no part.
    """

    whole: ContainerEdits
    own: frozenset[str]
    others: frozenset[str]
    part: ContainerEdits | None
    why: str = ""


async def had(case: Case, folder: Any) -> Had:
    it = found(case, folder, **BY_CLAIMS)
    assert not it.family.node.partitions, "the daemon would refuse to start"
    for file in ("libvnpu.so", "ld.so.preload"):
        (it.rig.root / "hook/hami-vnpu-core").mkdir(parents=True, exist_ok=True)
        (it.rig.root / "hook/hami-vnpu-core" / file).touch()
    claims = Claims(it.rig.root, family=it.family)
    claims.node.snapshot.set(it.snapshot)
    spec, problems = describe(it.family, it.snapshot.devices, claims.node.host)
    assert problems == ()
    (claims.specs / file_name(it.family.node.delivery.kind)).write_text(to_json(spec), encoding="utf-8")
    nodes = {one.name: {node.path for node in one.edits.device_nodes} for one in spec.devices if one.name != "all"}
    published = offered_devices(it.family, it.snapshot)
    assert {one.device.health for one in published} == {Health.HEALTHY}
    one = next(each for each in published if each.device.uuid == reviewed_device(case))

    async def edits(name: str, **asked: str) -> ContainerEdits:
        """Of a container with so much of the device, by all that its claim names."""
        amounts = {"memory": f"{one.memory}Mi", "cores": str(one.cores), "slots": str(one.slots)} | asked
        booked = {what: amounts[what] for what in device_entry(one)["capacity"]}
        result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": one.name}
        ref = claims.claim(name, {**result, **({"shareID": name, "consumedCapacity": booked} if one.shared else {})})
        answer = (await claims.prepare(ref))[ref.uid]
        assert not isinstance(answer, ClaimError), answer
        assert answer.devices[0].cdi_devices[-1] == it.family.node.delivery.name(one.device.uuid)
        assert [share.grant.uuid for share in answer.shares] == [one.device.uuid]
        resolved = load([claims.specs], yaml=None).resolve(await claims.names(ref))
        await claims.preparer.unprepare([ref])
        return resolved

    own = nodes[one.device.uuid] | {node.path for node in spec.edits.device_nodes}
    others = set[str]().union(*nodes.values()) - own
    whole = await edits("a")
    part = await edits("b", slots="1", **PART) if one.shared else None
    why = "" if one.shared else lacking([device_entry(each) for each in published])
    return Had(whole=whole, own=frozenset(own), others=frozenset(others), part=part, why=why)


def lacking(devices: list[dict[str, Any]]) -> str:
    """What all of them lack for a part, as `dra explain` says it."""
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": devices}
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": 1, "capacity": {"requests": PART}}}
    claim = {"spec": {"devices": {"requests": [request]}}}
    (verdict,) = verdicts(claim, {DRIVER: Selection(driver=DRIVER)}, [{"spec": spec}], [])
    assert not verdict.fits
    return ", ".join(f"{count} {what}" for what, count in verdict.why.items())


@pytest.mark.parametrize("case", spread(MACHINES, lambda case: case.machine.vendor), ids=str)
async def test_a_container_has_by_a_claim_what_was_reviewed_and_no_other_devices_nodes(case, tmp_path):
    seen, told = await had(case, tmp_path), reviewed(case, "whole")

    nodes = {node.path for node in seen.whole.device_nodes}
    assert nodes == seen.own >= set(told.get("nodes", ()))
    assert not nodes & seen.others
    if not case.way.annotations:  # by which a pod asks for a limiter; a claim does by amounts alone
        as_reviewed(seen.whole, told)
    if seen.part is None:
        assert seen.why.endswith(" without a capacity cores")
    else:
        assert {node.path for node in seen.part.device_nodes} == nodes
        as_reviewed(seen.part, reviewed(case, "share"))


def as_reviewed(seen, told):
    assert reviewed_variables(told).items() <= seen.env.items()
    assert reviewed_mounts(told) <= {mount.container_path for mount in seen.mounts}


@pytest.mark.parametrize("amounts", [("33", "33", "34"), ("12", "13", "25", "50"), ("1",) * 9], ids="+".join)
async def test_parts_that_are_a_whole_device_together_have_its_compute_units_without_sharing_any(amounts, tmp_path):
    case = next(one for one in MACHINES if str(one) == "mi300x-8")
    it = found(case, tmp_path, **BY_CLAIMS)
    claims = Claims(it.rig.root, family=it.family)
    claims.node.snapshot.set(it.snapshot)
    one = offered_devices(it.family, it.snapshot)[0]
    masks = []

    for number, cores in enumerate(amounts):
        booked = {"memory": "1024Mi", "cores": cores, "slots": "1"}
        result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": one.name}
        ref = claims.claim(f"c{number}", {**result, "shareID": f"s{number}", "consumedCapacity": booked})
        env = claims.limits(await claims.names(ref))
        spans = [span.partition("-") for span in env["HSA_CU_MASK"].removeprefix("0:").split(",")]
        masks.append({unit for first, _, last in spans for unit in range(int(first), int(last or first) + 1)})

    assert [len(mask) for mask in masks] == [304 * int(cores) // 100 for cores in amounts]
    assert len(set().union(*masks)) == sum(map(len, masks)) <= 304
