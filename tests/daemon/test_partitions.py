"""The whole daemon with a vendor whose cards are cut for containers: made, told, registered, shown and destroyed."""

import json
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from hami_plugin.protocol.keys import ASSIGNED_NODE, BIND_PHASE, PHASE_ALLOCATING, PHASE_SUCCESS
from hami_plugin.protocol.nodes import MigProfile, decode_json
from hami_plugin.protocol.pods import encode_devices
from hami_plugin.simulation.kubelet import AdmissionError, StartError
from tests.support.beside import ODD, ODD_FAMILY, ODD_KEYS, beside
from tests.support.builders import NODE, container, grant, pod
from tests.support.node import until
from tests.support.partition_pods import NAMED, decided, side
from tests.support.partitions import A100, Cards


def registered(info, profiles):
    cut = (
        MigProfile(
            name=one.name,
            memory=one.memory,
            cores=0,
            slices=one.compute,
            placements=tuple((place.start, place.size) for place in one.placements),
        )
        for one in profiles
    )
    return replace(info, mig_profiles=tuple(cut))


def family(cards):
    partitions = replace(side(cards), registered=registered)
    return replace(ODD_FAMILY, node=replace(ODD_FAMILY.node, partitions=partitions))


@asynccontextmanager
async def cut():
    cards = Cards(tables={"odd-0": A100, "odd-1": A100})
    async with beside(family(cards)) as one:
        yield one, cards


async def admitted(one, name="a", profile="1g.5gb", start=6, size=1, card=0):
    text = encode_devices([(replace(grant(0), uuid=f"odd-{card}", device_type="ODD"),)])
    annotations = {
        ODD_KEYS.to_allocate: text,
        ODD_KEYS.allocated: text,
        ASSIGNED_NODE: NODE,
        BIND_PHASE: PHASE_ALLOCATING,
        **decided(("main", 0, f"odd-{card}", profile, start, size)),
    }
    asks = replace(container(), limits={ODD: "1"})
    made = one.api.add(pod(name, containers=[asks], annotations=annotations))
    await one.kubelet.admit(made)
    return made


def registered_places(one, card, profile):
    text = one.api.node.annotations.get(ODD_KEYS.register, "")
    infos = {info.id: info for info in decode_json(text)} if text else {}
    if card not in infos:
        return None
    return sorted(start for start, _size in next(p for p in infos[card].mig_profiles if p.name == profile).placements)


async def test_a_pods_partition_is_made_told_and_destroyed_with_it():
    async with cut() as (one, cards):
        await one.odd_offered(8)
        waiting = await admitted(one)
        (made,) = cards.all()
        answer = await one.kubelet.start_container(waiting.uid, "main")
        assert answer.edits.env == {"TOY_PARTS": made.uuid}

        await until(lambda: one.api.pod(waiting).annotations.get(BIND_PHASE) == PHASE_SUCCESS)
        await until(lambda: NAMED in one.api.pod(waiting).annotations)
        told = json.loads(one.api.pod(waiting).annotations[NAMED])
        assert told == {"main/0": {"uuid": made.uuid, "ids": dict(made.ids)}}
        shown = one.daemon.node.partitions()["partitions"]
        assert [(each["state"], each["owner"]) for each in shown] == [("assigned", "default/a/main[0]")]
        assert f'hami_plugin_partitions{{resource="{ODD}",state="assigned"}} 1.0' in one.metrics()
        assert f'placeable{{profile="7g.40gb",resource="{ODD}",uuid="odd-0"}} 0.0' in one.metrics()

        one.kubelet.remove(waiting.uid)
        one.api.remove(waiting)
        await until(lambda: cards.all() == ())
        await until(lambda: one.daemon.node.partitions()["partitions"] == [])
        await one.the_other_is_served()


async def test_places_that_nobody_can_have_are_not_registered_and_come_back():
    async with cut() as (one, cards):
        await one.odd_offered(8)
        await until(lambda: registered_places(one, "odd-0", "3g.20gb") == [0, 4])
        waiting = await admitted(one, profile="3g.20gb", start=4, size=4)
        (made,) = cards.all()
        assert registered_places(one, "odd-0", "3g.20gb") == [0, 4]  # a scheduler counts what its own pods have

        cards.uses(made.uuid, 4711)
        one.kubelet.remove(waiting.uid)
        one.api.remove(waiting)
        await until(lambda: registered_places(one, "odd-0", "1g.5gb") == [0, 1, 2, 3])
        assert registered_places(one, "odd-0", "3g.20gb") == [0]
        assert registered_places(one, "odd-1", "3g.20gb") == [0, 4]
        await admitted(one, "b", start=3)
        await admitted(one, "c", start=6, card=1)
        with pytest.raises(AdmissionError, match="in use"):
            await admitted(one, "d", start=6)

        cards.uses(made.uuid)
        await until(lambda: registered_places(one, "odd-0", "3g.20gb") == [0, 4])
        assert one.problem(f"partitions {ODD}") == ""


async def test_a_container_whose_partition_is_gone_does_not_start():
    async with cut() as (one, cards):
        await one.odd_offered(8)
        waiting = await admitted(one)
        cards.reset("odd-0")
        (manager,) = one.daemon.node.serving.partitions
        manager._next_resync = 0.0
        manager._wake.set()
        await until(lambda: manager.lost(waiting.uid, "main"))

        with pytest.raises(StartError, match="is gone"):
            await one.kubelet.start_container(waiting.uid, "main")


async def test_a_driver_that_raises_what_it_should_not_is_one_refused_pod():
    async with cut() as (one, cards):
        await one.odd_offered(8)
        cards.order("create", ZeroDivisionError("a mistake"))
        with pytest.raises(AdmissionError, match="a mistake"):
            await admitted(one)
        await admitted(one, "b", start=5)
        assert 'hami_plugin_vendor_mistakes_total{step="partitions",vendor="odd"} 1.0' in one.metrics()
        await one.the_other_is_served()


async def test_nothing_is_offered_before_it_is_known_what_the_cards_are_cut_into():
    cards = Cards(tables={"odd-0": A100, "odd-1": A100})
    for _ in range(20):
        cards.order("partitions", OSError("nobody answers"))
    async with beside(family(cards)) as one:
        await one.says(f"partitions {ODD}", "nobody answers")
        assert one.kubelet.allocatable(ODD) == 0
        assert ODD_KEYS.register not in one.api.node.annotations
        cards.orders.clear()
        await one.odd_offered(8)
