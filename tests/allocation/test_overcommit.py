"""Does a node ever hand out more of a device than it has? And does it ever refuse what a scheduler may decide?"""

import asyncio
from dataclasses import replace

import pytest

from hami_plugin.allocation.capacity import EXACTLY
from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.protocol.keys import BIND_PHASE, NODE_LOCK, PHASE_FAILED
from hami_plugin.sdk import Units
from tests.support.builders import (
    CARD_MIB,
    CORES,
    FAMILY,
    PERCENT,
    changed,
    container,
    decision,
    grant,
    held_by,
    ids,
    pod,
    register,
    uuid,
)
from tests.support.kubelet import kept
from tests.support.node import Node

HALF = CARD_MIB // 2


def decided(name, memory, cores=0, card=0, **changes):
    """A pod that asks for as much as it is granted."""
    asks = [container(count=1, memory=memory, cores=cores)]
    return pod(name, asks, [[grant(card, memory, cores)]], **changes)


async def serve(node, name, share, memory=HALF, cores=0, **changes):
    made = node.cluster.add(decided(name, memory, cores, **changes))
    await node.allocator.allocate(ids((0, share)))
    return made


async def refused(node, share) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await node.allocator.allocate(ids((0, share)))
    return caught.value


async def test_a_forged_decision_that_asks_for_what_it_says_gets_nothing_on_top_of_others(node):
    await serve(node, "one", 0)
    await serve(node, "two", 1)
    node.cluster.annotate(**{NODE_LOCK: "2026-01-01T00:00:00Z,default,forged"})
    forged = node.cluster.add(decided("forged", 1000))

    refusal = await refused(node, 2)
    await node.settled()

    assert refusal.reason is RefusalReason.OVERCOMMITTED
    assert refusal.message == (
        f"{uuid(0)} has {CARD_MIB} MiB of memory, of which default/one holds {HALF}, default/two holds {HALF}; "
        "pod default/forged is to have 1000"
    )
    assert "find out who wrote" in refusal.hint
    assert node.cluster.pod(forged).annotations[BIND_PHASE] == PHASE_FAILED
    assert NODE_LOCK not in node.cluster.node.annotations
    assert ("forged", "DeviceOvercommitted") in {event[:2] for event in await node.told()}
    assert node.observer.allocations == ["ok", "ok", "DeviceOvercommitted"]
    assert {held.pod for held in node.ledger.held.values()} == {"one", "two"}


async def test_cores_are_counted_as_memory_is(node):
    await serve(node, "one", 0, 1000, 70)
    node.cluster.add(decided("forged", 1000, 31))

    refusal = await refused(node, 1)

    assert f"{uuid(0)} has 100 % of cores, of which default/one holds 70" in refusal.message


async def test_what_is_exactly_left_is_handed_out(node):
    await serve(node, "one", 0, HALF, 70)
    await serve(node, "two", 1, HALF, 30)

    assert node.observer.allocations == ["ok", "ok"]


async def test_a_share_without_a_limit_on_memory_is_all_of_it(node):
    await serve(node, "one", 0, 1000)
    node.cluster.add(pod("forged", [container(count=1)], [[grant(0, 0, 0)]]))

    refusal = await refused(node, 1)

    assert refusal.message.endswith(f"pod default/forged is to have {CARD_MIB}")


async def test_a_container_that_asks_for_0_percent_may_be_granted_no_memory(node):
    await serve(node, "one", 0, 1000)
    asks = replace(container(count=1), limits={**container(count=1).limits, PERCENT: "0"})
    node.cluster.add(pod("odd", [asks], [[grant(0, 0, 0)]]))

    assert (await node.allocator.allocate(ids((0, 1)))).edits.env["POD"] == "odd-uid"


async def test_the_same_device_twice_for_one_container_counts_twice(node):
    await serve(node, "one", 0, HALF)
    twice = [container(count=2, memory=HALF - 1)]
    node.cluster.add(pod("forged", twice, [[grant(0, HALF - 1), grant(0, HALF - 1)]]))

    with pytest.raises(RefusedError) as caught:
        await node.allocator.allocate(ids((0, 1), (0, 2)))

    assert caught.value.reason is RefusalReason.OVERCOMMITTED


async def test_what_somebody_merely_claims_keeps_nobody_out(node):
    for number in range(3):
        node.cluster.add(decided(f"claims{number}", CARD_MIB, 100, annotations={BIND_PHASE: PHASE_FAILED}))
        node.cluster.add(decided(f"elsewhere{number}", CARD_MIB, 100, node="n2"))

    await serve(node, "honest", 0, CARD_MIB, 100)

    assert node.observer.allocations == ["ok"]


async def test_the_end_of_a_holder_that_comes_a_moment_late_is_awaited(node):
    node.decide(wait=60.0)
    old = await serve(node, "old", 0, CARD_MIB)
    node.cluster.add(decided("new", CARD_MIB))
    asked = asyncio.create_task(node.allocator.allocate(ids((0, 1))))
    await asyncio.sleep(0.02)
    assert not asked.done()

    node.cluster.change(old, phase="Succeeded")

    assert (await asked).edits.env["POD"] == "new-uid"


async def test_other_news_do_not_end_the_wait(node):
    node.decide(wait=60.0)
    old = await serve(node, "old", 0, CARD_MIB)
    node.cluster.add(decided("new", CARD_MIB))
    asked = asyncio.create_task(node.allocator.allocate(ids((0, 1))))
    for number in range(3):
        await asyncio.sleep(0.01)
        node.cluster.add(pod(f"other{number}", [container()], phase="Running"))
    assert not asked.done()

    node.cluster.remove(old)

    assert (await asked).edits.env["POD"] == "new-uid"


async def test_a_pod_that_is_being_deleted_holds_what_it_has_until_it_has_ended(node):
    old = await serve(node, "old", 0, CARD_MIB)
    node.cluster.change(old, phase="Running", deleted=True)
    node.cluster.add(decided("new", CARD_MIB))

    assert (await refused(node, 1)).reason is RefusalReason.OVERCOMMITTED


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_share_of_a_pod_that_has_ended_keeps_nobody_out_though_it_is_still_on_record(node, phase):
    """Its end is told with the first list, before what its former life handed out is read."""
    old = node.cluster.add(decided("old", CARD_MIB, phase=phase))
    node.ledger.reserve(held_by(old, "main", ids((0, 0)), [grant(0, CARD_MIB)]))

    await serve(node, "new", 1, CARD_MIB)

    assert node.observer.allocations == ["ok"]


async def test_the_kubelet_that_gives_an_id_anew_has_let_go_of_the_pod_that_had_it(node):
    asks = [container(count=2, memory=HALF)]
    node.cluster.add(pod("old", asks, [[grant(0, HALF), grant(1, HALF)]]))
    await node.allocator.allocate(ids((0, 0), (1, 0)))
    new = [container(count=2, memory=CARD_MIB)]
    node.cluster.add(pod("new", new, [[grant(0, CARD_MIB), grant(1, CARD_MIB)]]))

    answer = await node.allocator.allocate(ids((0, 0), (1, 1)))

    assert answer.edits.env["POD"] == "new-uid"


async def test_a_container_that_is_asked_for_again_counts_once(node):
    await serve(node, "one", 0, CARD_MIB, 100)

    again = await node.allocator.allocate(ids((0, 0)))

    assert again.edits.env["POD"] == "one-uid"


async def test_after_a_restart_what_was_handed_out_still_counts(node):
    await serve(node, "one", 0, CARD_MIB)
    node = await node.restart()
    node.cluster.add(decided("forged", 1000))

    assert (await refused(node, 1)).reason is RefusalReason.OVERCOMMITTED
    await node.settlement.close()


async def test_a_holder_that_ended_while_the_daemon_was_away_counts_for_nothing(node):
    old = await serve(node, "old", 0, CARD_MIB)
    await node.settlement.close()
    node.cluster.remove(old)
    node = await node.restart()

    await serve(node, "new", 1, CARD_MIB)

    await node.settlement.close()


async def test_while_the_api_server_is_away_nobody_is_refused_and_it_is_counted(node):
    node.outdated = "unreachable: no answer"
    node.decide(wait=60.0)
    await serve(node, "old", 0, CARD_MIB)
    node.cluster.add(decided("new", CARD_MIB))

    async with asyncio.timeout(30):
        answer = await node.allocator.allocate(ids((0, 1)))

    assert answer.edits.env["POD"] == "new-uid"
    assert node.observer.unchecked_of == ["toy.io/card"]


async def test_an_init_containers_share_comes_back_with_the_containers_after_it(node):
    asks = [container("i", 1, init=True, memory=CARD_MIB), container("c", 1, memory=CARD_MIB)]
    a = node.cluster.add(pod("a", asks, [[grant(0, CARD_MIB, 0)], [grant(0, CARD_MIB, 0)]]))

    first = await node.allocator.allocate(ids((0, 0)))
    node.checkpoint.list = [kept(a, ids((0, 0)), "i")]
    second = await node.allocator.allocate(ids((0, 0)))

    assert [one.edits.env["CONTAINER"] for one in (first, second)] == ["i", "c"]


async def test_a_pods_containers_count_together(node):
    asks = [container(name, 1, memory=HALF + 1) for name in ("one", "two")]
    node.cluster.add(pod("forged", asks, [[grant(0, HALF + 1, 0)], [grant(0, HALF + 1, 0)]]))
    await node.allocator.allocate(ids((0, 0)))

    refusal = await refused(node, 1)

    assert refusal.message == f"{uuid(0)} has {CARD_MIB} MiB of memory; pod default/forged is to have {CARD_MIB + 2}"


async def after_an_init_container(node):
    """HAMi 2.10 forgets what the first pod has once its init container is over, and decides the second."""
    asks = [container("i", init=True), container("c", 1, memory=CARD_MIB)]
    first = node.cluster.add(pod("first", asks, [[], [grant(0, CARD_MIB, 0)]]))
    await node.allocator.allocate(ids((0, 0)))
    node.cluster.change(first, phase="Running")
    node.cluster.add(decided("second", CARD_MIB))


async def test_what_hamis_scheduler_gives_twice_itself_is_not_refused(node):
    await after_an_init_container(node)

    assert (await node.allocator.allocate(ids((0, 1)))).edits.env["POD"] == "second-uid"


async def test_counted_exactly_it_is(node):
    node.decide(counted=EXACTLY)
    await after_an_init_container(node)

    assert (await refused(node, 1)).reason is RefusalReason.OVERCOMMITTED


async def test_an_operator_may_have_nothing_counted(node):
    node.decide(counted=None)
    await serve(node, "one", 0, CARD_MIB)

    await serve(node, "two", 1, CARD_MIB)


async def test_whole_devices_of_pods_that_no_scheduler_knows_of_do_not_keep_decided_ones_out(node):
    node.decide(serve_unannotated=True)
    node.cluster.add(pod("stranger", [container(count=1)]))
    await node.allocator.allocate(ids((0, 0)))

    await serve(node, "decided", 1, CARD_MIB)
    node = await node.restart()

    assert [held.undecided for held in node.ledger.held.values()] == [True, False]


async def test_scaled_memory_is_what_counts(node):
    node.use(changed(FAMILY, register=lambda *asked: replace(register(*asked), devmem=2 * CARD_MIB, devcore=200)))
    await serve(node, "one", 0, CARD_MIB, 100)
    await serve(node, "two", 1, CARD_MIB, 100)
    node.cluster.add(decided("forged", 1))

    assert f"has {2 * CARD_MIB} MiB" in (await refused(node, 2)).message


async def test_where_a_family_limits_nothing_nothing_is_too_much(node):
    node.use(changed(FAMILY, register=lambda *asked: replace(register(*asked), devmem=0, devcore=0)))

    for share in range(3):
        await serve(node, f"p{share}", share, CARD_MIB, 100)


async def test_where_the_kubelets_ids_keep_a_device_for_one_nothing_is_counted(node):
    node.use(changed(FAMILY, replicas=lambda _device: 1))

    await serve(node, "big", 0, 2 * CARD_MIB)


async def one_core_and_then_the_device(node):
    """One pod has one of two cores, and another one is decided the whole device, which the kubelet counts apart."""
    units = Units(resource=CORES, of_device=lambda _device: 2, of_grant=lambda one: one.cores.bit_count())
    family = changed(
        FAMILY,
        register=lambda *asked: replace(register(*asked), devmem=0, devcore=3),
        cores_are_bits=True,
        every_core=lambda _device: 3,
        units=(units,),
        replicas=lambda _device: 1,
    )
    core = replace(container(), limits={CORES: "1"})
    node.use(family, units)
    node.cluster.add(pod("one", [core], annotations=decision([[grant(0, 0, 2)]])))
    await node.allocator.allocate(ids((0, 0)))
    node.use(family)
    node.cluster.add(pod("two", [container(count=1)], [[grant(0, 0, 3)]]))


async def test_exactly_counted_bits_are_cores_and_all_resources_of_a_family_count(node):
    node.decide(counted=EXACTLY)
    await one_core_and_then_the_device(node)

    refusal = await refused(node, 0)

    assert refusal.message == f"{uuid(0)} has 2 cores, of which default/one holds 1; pod default/two is to have 2"


async def test_bits_are_not_counted_as_hami_does_since_it_may_decide_a_device_in_use(node):
    await one_core_and_then_the_device(node)

    assert (await node.allocator.allocate(ids((0, 0)))).edits.env["POD"] == "two-uid"


async def test_64_cards_with_4_shares_each_are_handed_out_to_the_last_mib(tmp_path):
    node = Node(root=tmp_path, devices=64)
    for card in range(64):
        for share in range(4):
            node.cluster.add(decided(f"p{card}-{share}", CARD_MIB // 4, 25, card=card))
            await node.allocator.allocate(ids((card, share)))

    assert node.observer.allocations == ["ok"] * 256
    await node.settlement.close()
    node.journal.close()
