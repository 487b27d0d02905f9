"""Devices of which no scheduler decides: whoever comes with an id has the device, whoever that is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdi.spec import ContainerEdits
from hami_plugin.allocation.lending import LendingPlugin
from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.model.delivery import Delivery, Way
from hami_plugin.model.device import Health, Snapshot
from hami_plugin.process.concurrency import Watched
from tests.support.builders import FAMILY, changed, device, uuid

LENT = changed(
    FAMILY,
    delivery=Delivery(ways=(Way.CDI_ANNOTATIONS,), kind="toy.io/card"),
    lend=lambda devices, _host: ContainerEdits(env={"HAS": ",".join(one.uuid for one in devices)}),
    replicas=lambda _device: 1,
    numa_hints=True,
)


def piece(name, card, *, numa=0, **changes):
    return device(card, uuid=name, place=f"{uuid(card)}/{name}", numa=numa, part=int(name[1:]), **changes)


@pytest.fixture
def lending(node):
    def build(*devices, family=LENT):
        shown = Watched(Snapshot(devices=devices, ready=True, reason=""))
        return LendingPlugin(family, node._state(), snapshot=shown, guard=node.guard)

    return build


async def test_ids_alone_decide_and_nobody_else_is_asked(lending, node):
    node.cluster.reachable.set("nobody answers")
    plugin = lending(piece("a0", 0), piece("a1", 0), piece("b0", 1))

    answer = await plugin.allocate(["b0", "a1"])

    assert answer.edits == ContainerEdits(env={"HAS": "a1,b0"})
    assert list(answer.annotations.values()) == ["toy.io/card=a1,toy.io/card=b0"]
    assert await plugin.allocate(["a1", "b0"]) == answer
    assert (await plugin.allocate(["a0"])).annotations.keys() != answer.annotations.keys()
    assert not node.ledger.held
    assert not plugin.pre_start_required


async def test_the_kubelet_is_told_names_nodes_and_health(lending):
    plugin = lending(piece("a0", 0, numa=1), piece("a1", 0, numa=1, health=Health.UNHEALTHY))

    assert [(offer.id, offer.numa, offer.healthy) for offer in plugin.offers.value] == [
        ("a0", 1, True),
        ("a1", 1, False),
    ]


@pytest.mark.parametrize(
    ("asked", "reason"), [("a1", RefusalReason.UNHEALTHY_DEVICE), ("gone", RefusalReason.UNKNOWN_DEVICE)]
)
async def test_what_is_ill_or_gone_is_refused(asked, reason, lending, node):
    plugin = lending(piece("a0", 0), piece("a1", 0, health=Health.UNHEALTHY, reason="Xid94"))

    with pytest.raises(RefusedError) as refused:
        await plugin.allocate([asked])

    assert refused.value.reason is reason


async def test_what_the_host_lacks_is_the_reason(lending):
    def missing(_devices, _host):
        raise FileNotFoundError("no node nvidia-cap66")

    plugin = lending(piece("a0", 0), family=replace(LENT, node=replace(LENT.node, lend=missing)))

    with pytest.raises(RefusedError, match="no node nvidia-cap66") as refused:
        await plugin.allocate(["a0"])
    assert refused.value.reason is RefusalReason.NOT_PREPARED


BOTH = ("a0", "a1", "a2", "b0", "c0", "c1")
HERE, THERE = 0, 1


@pytest.mark.parametrize(
    ("available", "must", "size", "preferred"),
    [
        (BOTH, (), 1, ["b0"]),  # the card that is in use most
        (("a0", "a1", "c0"), (), 1, ["c0"]),
        (BOTH, (), 2, ["c0", "c1"]),  # one NUMA node
        (BOTH, (), 4, ["b0", "a0", "a1", "a2"]),
        (BOTH, ("c1",), 2, ["c1", "c0"]),
        (BOTH, (), 5, ["b0", "a0", "a1", "a2", "c0"]),
    ],
)
async def test_cards_that_are_in_use_are_used_up_first_on_one_numa_node(available, must, size, preferred, lending):
    plugin = lending(
        *(piece(f"a{n}", 0, numa=HERE) for n in range(3)),
        piece("b0", 1, numa=HERE),
        *(piece(f"c{n}", 2, numa=THERE) for n in range(2)),
    )

    assert list(await plugin.prefer(available, must, size)) == preferred
