"""Every vendor's machines by claims: a whole device each, and a part where parts are enforced."""

import pytest

from hami_plugin.dra.claims import ClaimError
from hami_plugin.dra.slices import described, offered
from hami_plugin.model.device import Health
from tests.dra.node import DRIVER, Claims
from tests.dra.test_slices import LENT
from tests.support.builders import NODE
from tests.support.machines import cases, found
from tests.support.scale import spread

MACHINES = [case for case in cases() if str(case) not in LENT and "mig" not in str(case)]
BY_CLAIMS = {"deviceListStrategy": ["cdi-cri"], "frontEnd": "dra"}


def consumed(one, **asked):
    """What a scheduler books, of all that is published."""
    amounts = {"memory": f"{one.memory}Mi", "cores": "0", "slots": str(one.slots)} | asked
    return {name: amounts[name] for name in described(one)["capacity"]}


@pytest.mark.parametrize("case", spread(MACHINES, lambda case: case.machine.vendor), ids=str)
async def test_a_device_is_made_ready_whole_and_in_a_part_where_it_is_shared(case, tmp_path):
    it = found(case, tmp_path, **BY_CLAIMS)
    assert not it.family.node.partitions, "the daemon would refuse to start"
    for file in ("libvnpu.so", "ld.so.preload"):
        (it.rig.root / "hook/hami-vnpu-core").mkdir(parents=True, exist_ok=True)
        (it.rig.root / "hook/hami-vnpu-core" / file).touch()
    claims = Claims(it.rig.root, family=it.family)
    claims.node.snapshot.set(it.snapshot)
    one = next(one for one in offered(it.family, it.snapshot) if one.device.health is Health.HEALTHY)
    result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": one.name}
    whole = {**result, **({"shareID": "s1", "consumedCapacity": consumed(one)} if one.shared else {})}

    answer = (await claims.prepare(claims.claim("a", whole)))["uid-a"]

    assert not isinstance(answer, ClaimError), answer
    assert answer.devices[0].cdi_devices[-1] == it.family.node.delivery.name(one.device.uuid)
    (share,) = answer.shares
    assert share.grant.uuid == one.device.uuid
    if not one.shared:
        return
    await claims.preparer.unprepare([claims.claim("a", whole)])
    part = {**result, "shareID": "s2", "consumedCapacity": consumed(one, memory="1024Mi", slots="1")}
    answer = (await claims.prepare(claims.claim("b", part)))["uid-b"]
    assert not isinstance(answer, ClaimError), answer
    assert answer.shares[0].grant.memory == 1024
    assert "1024" in answer.spec + str(answer.files)


@pytest.mark.parametrize("amounts", [("33", "33", "34"), ("12", "13", "25", "50"), ("1",) * 9], ids="+".join)
async def test_parts_that_are_a_whole_device_together_have_its_compute_units_without_sharing_any(amounts, tmp_path):
    case = next(one for one in MACHINES if str(one) == "mi300x-8")
    it = found(case, tmp_path, **BY_CLAIMS)
    claims = Claims(it.rig.root, family=it.family)
    claims.node.snapshot.set(it.snapshot)
    one = offered(it.family, it.snapshot)[0]
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
