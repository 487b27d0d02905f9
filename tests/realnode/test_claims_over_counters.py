"""Case v: linked cards as one device, and MIG instances, over counters that Kubernetes' own scheduler keeps."""

import pytest

from tests.realnode import versions
from tests.realnode.claims import CLAIM, DRIVER, Claims, request
from tests.realnode.mig import Cards
from tests.realnode.pods import Pods
from tests.realnode.servers import until
from tests.realnode.test_claims import CARDS, CONTROL, MEMORY_LIMIT, gpus
from tests.runtimes.inside import OPENED
from tests.runtimes.simulated import HOOK, HOOK_SCRIPT

pytestmark = [
    pytest.mark.case("v", "devices by ResourceClaims: sets of linked cards, and MIG instances"),
    pytest.mark.since(versions.CONSUMABLE),
]
SETS, PAIRS, QUADS = 28 + 70 + 1, 28, 70
BACK_S = 90


def asking(kind, attribute, value):
    """A request for one device of a DeviceClass of the chart's, by an attribute."""
    text = f'"{value}"' if isinstance(value, str) else value
    expression = f'device.attributes["{DRIVER}"].{attribute} == {text}'
    selectors = [{"cel": {"expression": expression}}]
    return {"name": CLAIM, "exactly": {"deviceClassName": f"{kind}.{DRIVER}", "selectors": selectors}}


def members(claims, pod):
    """The numbers of the cards of the set that a pod was given."""
    (result,) = claims.results(pod)
    listed = claims.devices()[result["device"]]["attributes"]["members"]["string"]
    return [int(number) for number in listed.split(",")]


@pytest.fixture(scope="module")
def restored(installed, node):
    yield installed
    installed.machine().inject("mig", value=0)
    installed.configure()
    until(lambda: node.allocatable("nvidia.com/gpu") == CARDS * 10, "all shares", BACK_S)


def serving(installed, node, ready, **nvidia):
    """Claims of a daemon with these settings, once its slices are as they should be."""
    installed.await_ready()
    installed.configure(nvidia={"frontEnd": "dra", **nvidia})
    machine = installed.machine()
    machine.make_nodes_real()
    (machine.directory / HOOK).write_bytes(HOOK_SCRIPT.read_bytes())
    made = Claims(node=node, pods=Pods(node=node, place=node.api.create_pod))
    until(lambda: ready(made), "the slices", BACK_S)
    return made


@pytest.fixture
def linked(restored, node):
    made = serving(restored, node, lambda claims: len(claims.devices()) == CARDS + SETS, linkedDevices="sets")
    yield made
    made.clear()


def test_the_scheduler_gives_out_the_best_linked_set_that_is_free(linked, node, record_property):
    counters, *others = linked.slices()
    devices = [one for each in (counters, *others) for one in each["spec"].get("devices") or ()]
    assert len(counters["spec"]["sharedCounters"][0]["counters"]) == CARDS
    assert len(others) == (2 if node.kubernetes.minor >= versions.COUNTERS_APART else 0)
    quads = [one for one in devices if one["attributes"].get("size") == {"int": 4}]
    assert len(quads) == QUADS

    first = linked.run("first", asking("sets", "size", 4))
    second = linked.run("second", asking("sets", "size", 4))
    linked.create("third", asking("sets", "size", 2))
    linked.await_waiting("third")

    assert linked.results(first)[0]["device"] == quads[0]["name"]
    best = [one for one in quads if not set(numbers(one)) & set(members(linked, first))]
    assert linked.results(second)[0]["device"] == best[0]["name"]
    for pod in (first, second):
        seen = linked.pods.granted(pod)
        assert gpus(seen) == {*CONTROL, *(f"/dev/nvidia{number}" for number in members(linked, pod))}
        assert {seen.devices[path].reading for path in gpus(seen)} == {OPENED}
        assert MEMORY_LIMIT in seen.env

    linked.end(first)
    linked.pods.await_running("third")
    assert set(members(linked, "third")) < set(numbers(quads[0]))
    single = linked.run("single", request(memory="3000Mi"))
    (result,) = linked.results(single)
    assert linked.devices()[result["device"]]["attributes"]["index"]["int"] not in members(linked, "third")
    record_property("figures", f"{len(devices)} devices in {len(others)} slices beside the one of counters")


def numbers(device):
    return [int(number) for number in device["attributes"]["members"]["string"].split(",")]


@pytest.fixture
def cut(restored, node):
    cards = Cards(daemon=restored)
    restored.machine().inject("mig", value=1)
    made = serving(
        restored,
        node,
        lambda claims: any("profile" in one["attributes"] for one in claims.devices().values()),
        operatingMode="mig",
    )
    yield made, cards
    made.clear()
    cards.await_there()


def test_an_instance_is_made_for_a_claim_and_destroyed_after_it_and_cards_are_not_given_out_twice(cut):
    claims, cards = cut
    (profile, *_) = [
        one["attributes"]["profile"]["string"]
        for one in claims.devices().values()
        if one["attributes"]["profile"]["string"].startswith("7g.")
    ]
    small = next(
        one["attributes"]["profile"]["string"]
        for one in claims.devices().values()
        if one["attributes"]["profile"]["string"].startswith("1g.")
    )
    name = claims.run("small", asking("partitions", "profile", small))

    (place,) = cards.there()
    assert place[:2] == (0, small)
    seen = claims.pods.granted(name)
    own = {path for path in seen.devices if "nvidia-cap" in path or path.removeprefix("/dev/nvidia").isdigit()}
    assert own == cards.nodes(place)
    assert {seen.devices[path].reading for path in own} == {OPENED}
    assert seen.env["NVIDIA_VISIBLE_DEVICES"] == "void"

    for number in range(1, CARDS):
        claims.run(f"whole-{number}", asking("partitions", "profile", profile))
    claims.create("one-more", asking("partitions", "profile", profile))
    claims.await_waiting("one-more")
    assert sorted(card for card, _profile, _start in cards.there()) == list(range(CARDS))
    claims.end(name)
    claims.pods.await_running("one-more")
    assert sorted(one for _card, one, _start in cards.there()) == [profile] * CARDS
