"""Each way of asking who holds what finds what a search through all shares finds."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hami_plugin.allocation.identity import HeldShare, HeldShares
from hami_plugin.model.device import physical_id
from tests.support.builders import grant, ids, uuid
from tests.support.scale import examples

RESOURCES = ("one.io/card", "two.io/card")
CARDS = range(3)
IDS = [replica for card in CARDS for replica in ids((card, 0), (card, 1), (card, 2))]

shares = st.builds(
    HeldShare,
    uid=st.sampled_from("ab"),
    namespace=st.just("team"),
    pod=st.just("pod"),
    container=st.sampled_from(("init", "main")),
    resource=st.sampled_from(RESOURCES),
    ids=st.frozensets(st.sampled_from(IDS), max_size=4),
    grants=st.lists(st.sampled_from([grant(card) for card in CARDS]), max_size=3).map(tuple),
    init=st.booleans(),
)
steps = st.lists(st.tuples(shares, st.sampled_from(("put", "settle", "take"))), max_size=20)


@settings(deadline=None, max_examples=examples(200))
@given(steps, st.lists(st.sampled_from(IDS), max_size=4, unique=True))
def test_every_way_finds_what_a_search_through_all_shares_finds(done, asked):
    held, plain = HeldShares(), {}
    for share, step in done:
        known = plain.get(share.key)
        if step == "put" or (step == "settle" and known):
            changed = share if step == "put" else replace(known, settled=True)
            held.put(changed)
            plain[share.key] = changed
        elif step == "take":
            assert held.take(share.key) == plain.pop(share.key, None)

    assert list(held.items()) == list(plain.items())
    for uid in "ab":
        assert Counter(held.of_pod(uid)) == Counter(one for one in plain.values() if one.uid == uid)
    for card in CARDS:
        there = [one for one in plain.values() if uuid(card) in {grant.uuid for grant in one.grants}]
        assert Counter(held.on(uuid(card))) == Counter(there)
    for resource in RESOURCES:
        of_it = [one for one in plain.values() if one.resource == resource]
        assert held.of_ids(resource, asked) == tuple(one for one in of_it if one.ids & set(asked))
        taken = {replica for one in of_it for replica in one.ids}
        assert held.ids(resource) == Counter(map(physical_id, taken))


def test_what_a_pod_holds_is_the_same_object_until_it_changes():
    a = HeldShare(uid="a", namespace="n", pod="a", container="c", resource="r", ids=frozenset(), grants=())
    held = HeldShares([a])
    before = held.of_pod("a")

    held.put(replace(a, uid="b"))
    assert held.of_pod("a") is before

    held.put(replace(a, settled=True))
    assert held.of_pod("a") is not before
    assert held.of_pod("nobody") == ()
