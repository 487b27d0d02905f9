"""The cases of HAMi's own tests of single steps, asked of ours, or of what comes of them where we have no such step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.scheduler.engine.devices import Candidate, Charge, Context, Demand, Invalid
from hami_plugin.scheduler.engine.fit import Granted, fit
from hami_plugin.scheduler.engine.policy import Misfit, Select, by_group, whole_modules
from tests.hami import values
from tests.support.hami import Json, asks
from tests.support.hami_questions import catalog, family, renamed, word_of
from vendors.ascend.rules import network_id
from vendors.awsneuron.rules import AwsNeuronSettings, lowest, request
from vendors.kunlun import rules
from vendors.vastai import card

STEP = "a step on lists inside the choice, whose whole truth table is asked"
EXCUSED = {
    "countMaskAvailable": "counts the bits of a number, for which Python has a method",
    "CambriconDevices.ReleaseNodeLock": "whoever binds a pod takes and releases this lock, which names nobody",
    **dict.fromkeys(("addidx", "canMeet", "delta", "devicepick", "parseUsage"), STEP),
    **dict.fromkeys(("countbubble", "getvalue"), "a summand of a choice's worth, which is asked whole by calcscore"),
}
POD = PodView(uid="u", namespace="n", name="p")


def picked(select: Select, devices: Sequence[Json], count: int) -> list[str] | None:
    """The names of those that are chosen; None when they are no answer."""
    states = [values.state({"id": one["uuid"], "index": one.get("idx", 0), **one}) for one in devices]
    candidates = [Candidate(state=state, charge=Charge()) for state in states]
    choice = select(candidates, Context(demand=Demand(device_type="w", count=count), pod=POD))
    return None if isinstance(choice, Misfit) else [one.uuid for one in choice]


def whole(case: Json) -> list[str] | None:
    """HAMi's answer, of which one with too few devices is none."""
    names = [one["uuid"] for one in case["expected"]["result"]]
    return names if len(names) == case["input"]["reqNum"] else None


@asks("ascend_fit", "Devices.computeBestCombination")
def test_npus_of_one_network_are_together(case: Json) -> None:
    """NPUs without a network are forgotten by HAMi, and here taken last (D-172)."""
    put = renamed(case["input"])
    notes = {one["id"]: one.get("custominfo") for infos in put["node_info"]["devices"].values() for one in infos}
    devices = [{**one, "custominfo": notes[one["uuid"]]} for one in put["containerDevices"]]

    mine = picked(by_group(lambda one: network_id(one.state.notes)), devices, put["reqNum"])

    unknown = all(note is None for note in notes.values())
    assert mine == ([one["uuid"] for one in devices] if unknown else whole(case))


@asks("ascend_910c", "Devices.computeBestCombination910C")
def test_npus_that_are_soldered_together_are_together(case: Json) -> None:
    assert picked(whole_modules(2), case["input"]["containerDevices"], case["input"]["reqNum"]) == whole(case)


@asks("vastai", "computeBestCombination")
def test_dies_of_one_card_are_together(case: Json) -> None:
    put, select = renamed(case["input"]), by_group(lambda one: card(one.state.notes))

    assert picked(select, put["containerDevices"], put["reqNum"]) == whole(case)


@asks("awsneuron_request", "splitCoreRequest")
def test_cores_are_split_among_devices_as_by_hami_where_they_have_no_more_than_two(case: Json) -> None:
    """HAMi takes every device for one of two cores (D-134)."""
    put, expected = case["input"], case["expected"]
    most = put["backend"].get("cores_per_aws_neuron", 2)
    container = ContainerView(name="c", limits={"aws.amazon.com/neuroncore": str(put["cores"])})

    asked = request(AwsNeuronSettings(cores_per_device=most), container)

    if most > 2:
        assert isinstance(asked, Invalid) is (put["cores"] > most and put["cores"] % most > 0)
        assert isinstance(asked, Invalid) or asked.count * asked.cores == put["cores"]
    elif expected["error"]:
        assert isinstance(asked, Invalid)
    else:
        assert isinstance(asked, Demand)
        assert (asked.count, asked.cores) == (expected["nums"], expected["cores_per_device"])


@asks("awsneuron_topology", "addCoreUsage")
def test_the_lowest_free_cores_are_taken(case: Json) -> None:
    """All of them where no number is said. HAMi takes fewer than asked for when there are not enough."""
    free = 3 & ~case["input"]["prev"].get("awsusageinfo", 0)
    wanted = case["input"]["require"] or 2

    mask = lowest(wanted, free)

    assert mask == (case["expected"]["result"]["awsusageinfo"] if free.bit_count() >= wanted else None)


@asks("kunlun_vxpu", "trimMemory")
def test_memory_is_rounded_to_parts_of_a_card(case: Json) -> None:
    """Beyond a card, and below nothing, HAMi gives something else than what was asked for (D-142)."""
    policy, amount = family("XPU").rules.policy, case["input"]["m"]
    assert policy
    limits = {"kunlunxin.com/vxpu": "1", "kunlunxin.com/vxpu-memory": str(amount)}

    asked = policy.request(ContainerView(name="c", limits=limits))

    if amount < 0 or amount > 98304:
        assert isinstance(asked, Invalid)
    else:
        assert isinstance(asked, Demand)
        assert asked.memory == case["expected"]["result"]


@asks("kunlun_xpu_topology", "graghSelect")
def test_the_same_kunlun_cards_are_chosen(case: Json) -> None:
    """Whole cards; or parts, which share cards only with parts of their size."""
    put = case["input"]
    device_type = "XPU" if "VXPU" in case["source"] else "kunlun"
    policy = family(device_type).rules.policy
    assert policy
    cards = [values.state({"id": f"xpu-{one.get('index', 0)}", "count": 10, **one}) for one in put["devices"]]
    demand = Demand(device_type=device_type, count=put["request"]["nums"], memory=put["request"].get("memreq"))

    outcome = fit(policy, cards, Context(demand=demand, pod=POD))

    mine = [grant.index for grant in outcome.grants] if isinstance(outcome, Granted) else []
    assert sorted(mine) == sorted(case["expected"]["result"])


@asks("kunlun_xpu_topology", "interconnect")
def test_across_the_wings_the_same_kunlun_cards_are_chosen(case: Json) -> None:
    free = [one.get("index", 0) for one in case["input"]["devices"] if not one.get("used")]

    assert list(rules._crossing(free, case["input"]["request"]["nums"])) == case["expected"]["result"]


@asks("kunlun_xpu_topology", "parseInterconnection", "parseInterconnection2")
def test_kunlun_cards_are_wired_alike(case: Json) -> None:
    pairs = [set(pair) for pair in combinations(range(8), 2) if rules._linked(set(pair))]
    groups = [set(group) for group in rules.CROSSING]
    theirs = [set(group) for group in case["expected"]["result"]]

    assert all(group in theirs for group in (groups if case["fn"].endswith("2") else pairs))
    assert len(theirs) == len(groups if case["fn"].endswith("2") else pairs)


@asks("ascend_node", "InitDevices")
def test_each_configured_chip_is_a_family(case: Json) -> None:
    """HAMi has a switch for all of Ascend; here a cluster that has none leaves the section out."""
    said = case["expected"]["result"]
    enabled = case.get("context", {}).get("enableAscend", False)
    words = [config["common_word"] for config in case["input"]["vnpus"].get("configs", ())]

    assert (said or []) == [] or [one["config"]["common_word"] for one in said] == words
    assert enabled or not said
    assert set(words) <= set(catalog().words("ascend"))


@asks("ascend_node", "GetNodeDevices")
def test_npus_of_a_node_are_read_alike(case: Json) -> None:
    one = family(word_of(case))
    told = case["input"]["node"]
    (text,) = (told.get("annotations") or {"": ""}).values()  # the test has not named the annotation

    found = one.rules.node_devices(values.node({**told, "annotations": {one.rules.annotations.register: text}}))

    assert [info.id for info in found] == [device["id"] for device in case["expected"]["devices"]]
