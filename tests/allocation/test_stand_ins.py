"""Which ids stand for a device that has none left?"""

from dataclasses import replace

from hami_plugin.allocation.identity import HeldShares, StandIns
from hami_plugin.protocol.pods import decided_shares
from tests.support.builders import QUESTION, container, grant, held_by, ids, pod, uuid

TWO = {uuid(card): 2 for card in range(4)}


def answer(owner, *, held=(), others=(), room=TWO, pods=()):
    """For the first container of the pod that has nothing yet."""
    names = {share.container for share in held if share.uid == owner.uid}
    claim = next(one for one in decided_shares(owner, QUESTION) if one.container.name not in names)
    found = StandIns(
        QUESTION,
        room=lambda: room,
        held=HeldShares(held),
        pods=[owner, *others, *pods],
        others=[one for other in others for one in decided_shares(other, QUESTION)],
    )
    return [int(device.partition("-")[2][:8]) for device in found.of(claim)]


def left(card: int, *, phase="Running", name="early"):
    """A pod that runs without devices, with the share of an init container that had both of a card's ids."""
    owner = pod(name, [container("i", 2, init=True), container("main")], [[grant(card), grant(card)], []], phase=phase)
    return owner, held_by(owner, "i", ids((card, 0), (card, 1)), [grant(card), grant(card)], init=True)


def test_a_device_that_has_the_ids_needs_none():
    assert answer(pod("a", pieces=[[grant(0), grant(1)]])) == [0, 1]


def test_those_of_init_containers_that_are_over_are_replaced_and_the_others_stay():
    early, share = left(0)

    assert answer(pod("a", pieces=[[grant(0), grant(1)]]), held=[share], pods=[early]) == [1, 1]


def test_those_of_init_containers_that_may_still_run_are_not():
    early, share = left(0, phase="Pending")

    assert answer(pod("a", pieces=[[grant(0)]]), held=[share], pods=[early]) == []


def test_the_device_goes_first_of_which_more_was_decided_than_taken():
    early, share = left(0)
    b = pod("b", pieces=[[grant(2)]], phase="Running")
    swapped = held_by(b, "main", ids((3, 0)), [grant(2)])

    assert answer(pod("a", pieces=[[grant(0)]]), held=[share, swapped], pods=[early, b]) == [2]


def test_a_device_goes_last_for_which_somebody_else_waits():
    early, share = left(0)
    b = pod("b", pieces=[[grant(1), grant(1)]])

    assert answer(pod("a", pieces=[[grant(0)]]), held=[share], others=[b], pods=[early]) == [2]


def test_what_a_sidecar_has_counts_while_the_next_container_is_chosen():
    asks = [container("s", 2, sidecar=True), container("main", 1)]
    a = pod("a", asks, [[grant(0), grant(0)], [grant(0)]])
    sidecar = held_by(a, "s", ids((0, 0), (0, 1)), [grant(0), grant(0)])

    assert answer(a, held=[sidecar]) == []


def test_only_what_is_not_inherited_is_asked_for():
    asks = [container("i", 1, init=True), container("main", 2)]
    a = pod("a", asks, [[grant(3)], [grant(0), grant(1)]])
    init = held_by(a, "i", ids((3, 0)), [grant(3)], init=True)
    early, share = left(0)

    assert answer(a, held=[init]) == [0]
    assert answer(a, held=[init, share], pods=[early]) == [1]


def test_a_container_that_inherits_enough_asks_for_none():
    asks = [container("i", 1, init=True), container("main", 1)]
    a = pod("a", asks, [[grant(3)], [grant(0)]])

    assert answer(a, held=[held_by(a, "i", ids((3, 0)), [grant(3)], init=True)]) == []


def test_whole_devices_of_a_pod_that_nobody_decided_about_are_its_own():
    stranger = pod("s", [container("main", 2)], phase="Running")
    share = replace(held_by(stranger, "main", ids((0, 0), (0, 1)), [grant(0)]), undecided=True)

    assert answer(pod("a", pieces=[[grant(0)]]), held=[share], pods=[stranger]) == []


def test_nothing_stands_for_a_device_that_is_not_offered():
    assert answer(pod("a", pieces=[[grant(0)]]), room={uuid(1): 2}) == []


def test_with_too_few_ids_left_over_there_is_no_answer():
    early, share = left(0)

    assert answer(pod("a", pieces=[[grant(0), grant(0)]]), held=[share], room={uuid(0): 2, uuid(1): 1}) == []
    assert answer(pod("a", pieces=[[grant(0)]]), held=[share], room={uuid(0): 2, uuid(1): 1}, pods=[early]) == [1]


async def test_what_is_free_is_counted_once_for_all_pods_that_wait(node, monkeypatch):
    for number in range(8):
        node.cluster.add(pod(f"p{number}", pieces=[[grant(1)]]))
    node.cluster.add(pod("asks", pieces=[[grant(0)]]))
    devices, counted = node.allocator._devices, []
    count = type(devices).free_ids
    monkeypatch.setattr(type(devices), "free_ids", lambda self: counted.append(1) or count(self))

    answer = await node.allocator.allocate(ids((0, 0)))

    assert answer.edits.env["POD"] == "asks-uid"
    assert len(counted) == 1
