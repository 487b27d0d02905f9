"""Why a claim waits that asks for devices which share counters."""

from hami_plugin.dra.explanation import Selection, verdicts
from hami_plugin.dra.sets import Counted, linked_sets, pool
from hami_plugin.dra.slices import Pool, offered_devices, writes
from tests.dra.test_sets import DRIVER, NODE, boards
from tests.support.builders import FAMILY

SETS = Selection(driver=DRIVER, kind="set")


def why(asked, *given):
    it = boards(2)
    cards = offered_devices(FAMILY, it)
    sets = linked_sets(cards, it.links)
    wanted = pool(Counted(cards=cards), it.links, sets)
    slices = writes(Pool(driver=DRIVER, node=NODE, node_uid="u"), wanted, {}).creates
    names = {"card": cards[0].name, "set": sets[0].name}
    claims = [
        {"status": {"allocation": {"devices": {"results": [{"driver": DRIVER, "pool": NODE, "device": names[one]}]}}}}
        for one in given
    ]
    claim = {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}}
    (verdict,) = verdicts(claim, {"c": asked}, slices, claims)
    return verdict


def test_a_set_waits_for_its_cards_and_a_card_for_its_set():
    assert why(SETS).fits
    assert dict(why(SETS, "card").why) == {"of which another device that is given out has a part": 1}
    assert dict(why(Selection(driver=DRIVER, kind=""), "set").why) == {
        "of which another device that is given out has a part": 2
    }


def test_a_class_of_sets_has_no_card():
    assert why(Selection(driver=DRIVER, kind="partition")).why == {}
    assert dict(why(SETS, "set").why) == {"given to another claim whole": 1}
