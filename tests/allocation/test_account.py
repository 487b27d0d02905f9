"""The kubelet's account beside what was handed out."""

import asyncio
from dataclasses import replace

import pytest

from hami_plugin.allocation.ledger import Ledger
from hami_plugin.allocation.recovery import KubeletAccount
from hami_plugin.errors import HamiError
from hami_plugin.model.ports import Holder
from tests.support.builders import COUNT, grant, held_by, ids, pod

HELD = held_by(pod("a"), replicas=ids((0, 0)), grants=[grant(0)])
HOLDER = Holder(namespace="default", pod="a", container="main", ids=HELD.ids)


class Memory:
    """A journal that is forgotten."""

    problem = ""
    unreadable = ()

    def read(self):
        return []

    def append(self, entry, held, whole):
        pass

    def check(self, whole):
        pass

    async def written(self):
        pass


class Kubelet:
    """Answers, or raises, what the test has put there; ``asked`` counts."""

    def __init__(self, said):
        self.said = said
        self.asked = 0

    async def everything(self):
        self.asked += 1
        if self.said is None:
            await asyncio.Event().wait()
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


def account(said, *held, deadline=1.0):
    ledger, kubelet = Ledger(Memory()), Kubelet(said)
    for one in held:
        ledger.reserve(one)
    return KubeletAccount(kubelet, ledger, deadline=deadline), kubelet, ledger


async def test_a_container_that_has_what_it_was_given_is_confirmed():
    told, _kubelet, _ledger = account({COUNT: (HOLDER,)}, HELD)

    await told.refresh()

    assert told.readable
    assert told.confirms(HELD) is True


@pytest.mark.parametrize(
    "holder",
    [
        replace(HOLDER, container="other"),
        replace(HOLDER, pod="other"),
        replace(HOLDER, ids=frozenset(ids((0, 1)))),
        None,
    ],
)
async def test_whoever_else_has_it_does_not_confirm_it(holder):
    told, _kubelet, _ledger = account({COUNT: (holder,)} if holder else {}, HELD)

    await told.refresh()

    assert told.confirms(HELD) is False


async def test_plain_init_containers_are_not_in_the_account():
    early = replace(HELD, init=True)
    told, _kubelet, _ledger = account({}, early)

    await told.refresh()

    assert told.confirms(early) is None


@pytest.mark.parametrize("said", [HamiError("no such socket"), None])
async def test_a_kubelet_that_does_not_answer_in_time_confirms_and_denies_nothing(said):
    told, kubelet, ledger = account(said, HELD, deadline=0.01)

    await told.refresh()

    assert not told.readable
    assert told.confirms(HELD) is None
    kubelet.said = {COUNT: (HOLDER,)}
    await told.refresh()
    assert told.readable
    ledger.drop([HELD.key])
    await told.refresh()
    assert told.readable


async def test_nobody_asks_while_nothing_is_handed_out():
    told, kubelet, _ledger = account({})

    await told.refresh()

    assert kubelet.asked == 0
    assert told.readable
