"""Whatever one vendor's code does, the daemon lives, the other vendor is served, and somebody is told why."""

import asyncio
import math
import sys
import threading
from dataclasses import replace

import pytest

import hami_plugin.wiring
from hami_plugin.errors import HamiError
from hami_plugin.model.device import Discovery, Fault, Sighting
from hami_plugin.model.links import Links
from hami_plugin.vendor import HealthEvent, Injection
from hami_plugin.wire.keys import NODE_LOCK
from tests.support.beside import ODD, ODD_FAMILY, ODD_KEYS, OddDriver, beside, odd
from tests.support.builders import REGISTER, SPLIT
from tests.support.node import until


def broken(*_asked):
    raise ZeroDivisionError("by nought")


def leaves(*_asked):
    sys.exit(3)


class Gate:
    """A function that does not come back before it is let go."""

    def __init__(self, answer=None):
        self.open = threading.Event()
        self.answer = answer

    def __call__(self, *asked):
        self.open.wait()
        return self.answer(*asked) if callable(self.answer) else self.answer


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(hami_plugin.wiring, "PATIENCE_S", 0.2)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.mark.parametrize("step", ["register", "announce", "encode"])
@pytest.mark.parametrize("mistake", [broken, leaves])
async def test_annotations_that_cannot_be_made_are_one_familys_problem(step, mistake):
    async with beside(replace(ODD_FAMILY, **{step: mistake})) as node:
        await node.the_other_is_served()
        await node.says("node annotations", f"ODD: a mistake in what is odd's own, {step}: ")
        assert f'hami_plugin_vendor_mistakes_total{{step="{step}",vendor="odd"}}' in node.metrics()
        assert ODD_KEYS.register not in node.api.node.annotations


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"a": 7}, "a: 7 is no text"),
        ({"a b": "x"}, "'a b' cannot be the key of an annotation"),
        ({7: "x"}, "7 cannot be the key"),
        ({"a": "\ud800"}, "surrogates not allowed"),
        ({"a": "x" * 300_000}, "longer than"),
        ({REGISTER: "[]"}, f"{REGISTER} is not this family's to write"),
        ({NODE_LOCK: None}, f"{NODE_LOCK} is not this family's to write"),
        (None, "None is no Mapping"),
        ((key for key in "ab"), "is no Mapping"),
    ],
    ids=["number", "odd key", "no key", "surrogate", "much", "another's", "lock", "none", "generator"],
)
async def test_annotations_that_no_node_can_have_are_one_familys_problem(wanted, words):
    async with beside(replace(ODD_FAMILY, announce=lambda *_asked: wanted)) as node:
        await node.the_other_is_served()
        await node.says("node annotations", words)
        assert node.api.node.annotations[REGISTER] != "[]"


async def test_annotations_that_fit_no_node_leave_room_for_the_others():
    texts = {f"a{number}": "x" * 100_000 for number in range(3)}
    async with beside(replace(ODD_FAMILY, announce=lambda *_asked: texts)) as node:
        await node.the_other_is_served()
        await until(lambda: any(reason == "AnnotationsTooLarge" for _, reason, _ in node.api.events))
        assert "ODD" in next(words for _, reason, words in node.api.events if reason == "AnnotationsTooLarge")
        await node.says("node annotations", "what ODD would say")


async def test_a_family_that_is_well_again_is_written_without_any_change():
    mistakes = [ZeroDivisionError(), ZeroDivisionError()]

    def register(device, legacy):
        if mistakes:
            raise mistakes.pop()
        return ODD_FAMILY.register(device, legacy)

    async with beside(replace(ODD_FAMILY, register=register)) as node:
        async with asyncio.timeout(10):
            while ODD_KEYS.register not in node.api.node.annotations:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await node.says("node annotations", "")
        assert node.problem("node annotations") == ""


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        (broken, "ZeroDivisionError: by nought"),
        (lambda _device: 10**9, "1000000000 is no whole number from 0 to 100000"),
        (lambda _device: -1, "-1 is no whole number"),
        (lambda _device: math.nan, "nan is no whole number"),
        (lambda _device: 100_000, None),
    ],
    ids=["raises", "10^9", "negative", "nan", "200000 in all"],
)
async def test_shares_that_cannot_be_counted_are_not_offered_and_the_vendor_says_so(replicas, words):
    async with beside(replace(ODD_FAMILY, replicas=replicas)) as node:
        await node.the_other_is_served()
        if words:
            await node.says("vendor odd", words)
        else:
            await node.says(f"kubelet {ODD}", "more than the 3.5 MiB")
        assert node.kubelet.allocatable(ODD) == 0


async def test_a_node_full_of_shares_is_not_rendered():
    family = replace(ODD_FAMILY, replicas=lambda _device: 100_000)
    async with beside(family, OddDriver(*range(64))) as node:
        await node.the_other_is_served()
        await node.says("vendor odd", "64 devices of ODD with 6400000 shares are more than the kubelet takes")


async def test_a_loop_that_failed_runs_again_and_is_well_after_a_while():
    mistakes = [ZeroDivisionError()]

    def replicas(_device):
        if mistakes:
            raise mistakes.pop()
        return SPLIT

    async with beside(replace(ODD_FAMILY, replicas=replicas)) as node:
        await node.says("vendor odd", "replicas: ZeroDivisionError")
        await node.odd_offered(2 * SPLIT)
        await node.the_other_is_served()


def one(change):
    """Sightings of which the first is changed."""
    return lambda seen: (replace(seen[0], **change), *seen[1:])


def of(**fields):
    return one({"device": odd(0, **fields)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (of(memory=-5), "the driver tells of memory -5"),
        (of(memory=math.nan), "the driver tells of memory nan"),
        (of(memory=10**30), "the driver tells of memory 1000000000"),
        (of(index=-1), "the driver tells of index -1"),
        (of(numa="0"), "the driver tells of numa '0'"),
        (of(numa=10**20), "the driver tells of numa"),
        (of(model="a\nb"), r"the driver tells of model 'a\nb'"),
        (of(family=None), "the driver tells of family None"),
        (one({"fault": math.nan}), "the driver tells nan where a fault is expected"),
        (one({"fault": Fault(reason="a\nb", message="x\ny")}), "x y"),
        (lambda seen: (*seen, seen[0]), "the driver tells of odd-0 twice"),
    ],
)
async def test_a_device_that_none_can_be_is_unhealthy_and_says_why(change, words):
    async with beside(driver=OddDriver(0, 1, change=change)) as node:
        await node.odd_offered(SPLIT)
        await node.the_other_is_served()
        first = node.odd_device("odd-0")
        assert first.health == "unhealthy"
        assert words in first.message
        assert first.reason in ("Implausible", "DuplicateUuid")
        assert node.odd_device("odd-1").health == "healthy"
        assert node.problem("node annotations") == ""


@pytest.mark.parametrize("name", ["a;b", "a,b", "a:b", "a\nb", "a b", "", "x" * 300, None, 7, "a\ud800"])
async def test_a_name_that_would_break_the_wire_is_left_out_with_the_reason(name, capsys):
    async with beside(driver=OddDriver(0, 1, change=of(uuid=name))) as node:
        await node.odd_offered(SPLIT)
        await node.the_other_is_served()
        assert node.problem("node annotations") == ""
        assert "without a usable name" in capsys.readouterr().out


async def test_a_driver_whose_devices_all_lack_names_is_not_ready():
    async with beside(driver=OddDriver(0, change=of(uuid="a;b"))) as node:
        await node.the_other_is_served()
        await node.says("driver odd", "DriverFailed: the driver tells of a device without a usable name: 'a;b'")


def then_raises(seen):
    yield from seen
    raise ZeroDivisionError("by nought")


def without_end(seen):
    while True:
        yield seen[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (then_raises, "ZeroDivisionError: by nought"),
        (without_end, "the driver tells of more than 1024 at once"),
        (lambda _seen: next(iter(())), "StopIteration"),
        (leaves, "SystemExit: 3"),
        (lambda _seen: None, "TypeError"),
        (lambda _seen: (7,), "7 where a Sighting is expected"),
        (lambda _seen: (Sighting(device=7),), "7 where a Device is expected"),
    ],
    ids=["generator", "endless", "spent", "exit", "none", "no sighting", "no device"],
)
async def test_an_answer_that_is_none_is_a_driver_that_failed(change, words):
    async with beside(driver=OddDriver(0, 1, change=change)) as node:
        await node.the_other_is_served()
        await node.says("driver odd", "DriverFailed: ")
        await node.says("driver odd", words)
        assert 'hami_plugin_vendor_mistakes_total{step="driver",vendor="odd"}' in node.metrics()


class Strange(OddDriver):
    """One call of it answers something else; ``told`` may be a function."""

    def __init__(self, call, told):
        super().__init__(0, 1)
        self.call, self.told = call, told

    def _told(self, call, usual):
        if call != self.call:
            return usual()
        return self.told() if callable(self.told) else self.told

    def discover(self):
        return self._told("discover", super().discover)

    def links(self):
        return self._told("links", super().links)

    def poll(self, timeout):
        return self._told("poll", lambda: super(Strange, self).poll(timeout))

    @property
    def busy_with(self):
        return self._told("busy_with", lambda: None)

    def close(self):
        return self._told("close", super().close)


@pytest.mark.parametrize(
    ("call", "told", "words"),
    [
        ("discover", None, "None where a Discovery is expected"),
        ("links", None, "None where a Links is expected"),
        ("links", Links(pairs={7: None}), "7 where a tuple is expected"),
        ("poll", None, "TypeError"),
        ("poll", [7], "7 where a HealthEvent is expected"),
        ("poll", lambda: then_raises(()), "by nought"),
        ("poll", lambda: [HealthEvent(uuid=[], fault=Fault(reason="x"))], "[] where a str is expected"),
    ],
)
async def test_other_answers_that_are_none_are_a_driver_that_failed_too(call, told, words):
    async with beside(driver=Strange(call, told)) as node:
        await node.the_other_is_served()
        await node.says("driver odd", words)


async def test_an_event_with_a_fault_that_is_none_drains_its_device():
    async with beside(driver=Strange("poll", [HealthEvent(uuid="odd-0", fault=math.nan)])) as node:
        await node.odd_offered(SPLIT)
        assert node.odd_device("odd-0").reason == "Implausible"
        await node.the_other_is_served()


@pytest.mark.parametrize("call", ["busy_with", "close"])
async def test_what_fails_in_passing_stops_nothing(call):
    async with beside(driver=Strange(call, broken)) as node:
        await node.odd_offered(2 * SPLIT)
        await node.the_other_is_served()


async def test_facts_by_any_name_are_no_trouble():
    class Facts(OddDriver):
        def discover(self):
            facts = {"event": "x", "vendor": "y", "self": "z", "devices": "w", 7: None}
            return Discovery(sightings=super().discover().sightings, facts=facts)

    async with beside(driver=Facts(0, 1)) as node:
        await node.odd_offered(2 * SPLIT)
        await node.the_other_is_served()


async def test_a_driver_that_cannot_be_opened_is_tried_again():
    openings = [ZeroDivisionError("not now")]

    def opening():
        if openings:
            raise openings.pop()
        return OddDriver(0, 1)

    async with beside(opening=opening) as node:
        await node.says("driver odd", "DriverFailed: ZeroDivisionError: not now")
        await node.the_other_is_served()
        await node.odd_offered(2 * SPLIT)


@pytest.mark.parametrize("families", [broken, leaves, lambda _settings: None, lambda _settings: (7,)])
async def test_a_vendor_whose_families_cannot_be_told_says_so_and_is_not_served(families):
    async with beside(families=families) as node:
        await node.the_other_is_served()
        await node.says("vendor odd", "nothing of it is served until the daemon is started anew")


@pytest.mark.parametrize("step", ["register", "announce", "encode", "replicas", "host_problem"])
async def test_a_function_that_never_comes_back_holds_the_others_up_once(step, gate, impatient):
    async with beside(replace(ODD_FAMILY, **{step: gate})) as node:
        await node.the_other_is_served()
        assert "no answer within 0.2 s" in await log_of(node, step)


async def log_of(node, step):
    await until(lambda: f'step="{step.replace("_", " ")}",vendor="odd"' in node.metrics())
    return " ".join([*node.daemon.readiness().values(), *(words for _, _, words in node.api.events)])


async def test_a_call_of_a_driver_that_never_comes_back_is_its_own(gate):
    async with beside(driver=Strange("discover", gate)) as node:
        await node.the_other_is_served()
        assert node.problem("driver odd") == "NotLookedYet"


@pytest.mark.parametrize(
    ("step", "does", "words"),
    [
        ("inject", broken, "ZeroDivisionError: by nought"),
        ("inject", lambda *_asked: None, "None is no Injection"),
        ("inject", leaves, "SystemExit: 3"),
        ("place", lambda *_asked: None, "is no grant of odd-0"),
        ("every_core", broken, "by nought"),
        ("ids", lambda _grant: 10**9, "1000000000 is no whole number"),
        ("register", broken, "by nought"),
    ],
)
async def test_an_allocate_that_a_vendor_breaks_is_refused_with_the_reason(step, does, words):
    armed = threading.Event()

    def late(*asked):
        return (does if armed.is_set() else getattr(ODD_FAMILY, step))(*asked)

    async with beside(replace(ODD_FAMILY, **{step: late})) as node:
        await node.odd_offered(2 * SPLIT)
        armed.set()
        with pytest.raises(HamiError, match=words):
            await node.odd_pod()
        await node.the_other_is_served()


async def test_an_allocate_that_never_comes_back_is_refused_and_the_next_one_at_once(gate, impatient):
    gate.answer = Injection(edits=ODD_FAMILY.shared_edits(None))
    async with beside(replace(ODD_FAMILY, inject=gate)) as node:
        await node.odd_offered(2 * SPLIT)
        with pytest.raises(HamiError, match=r"no answer within 0\.2 s"):
            await node.odd_pod("a")
        with pytest.raises(HamiError, match="an earlier call has not come back yet"):
            await node.odd_pod("b")
        await node.the_other_is_served()


async def test_a_device_under_a_new_name_is_not_given_out_twice():
    names = ["odd-0"]

    def change(seen):
        return (replace(seen[0], device=odd(0, uuid=names[0], pci="0000:01:00.0")), *seen[1:])

    async with beside(driver=OddDriver(0, 1, change=change), forgetSeconds=1.5) as node:
        await node.odd_offered(2 * SPLIT)
        names[0] = "odd-new"
        await node.odd_offered(SPLIT)
        assert (node.odd_device("odd-new").reason, node.odd_device("odd-0").reason) == ("Renamed", "DeviceGone")
        await node.the_other_is_served()
        await node.odd_offered(2 * SPLIT)
        assert node.odd_device("odd-0") is None


async def test_a_driver_whose_names_change_at_each_look_offers_nothing_twice():
    looks = iter(range(10**9))

    def change(seen):
        return tuple(
            replace(one, device=odd(one.device.index, uuid=f"odd-{next(looks)}", pci=f"0000:0{one.device.index}:00.0"))
            for one in seen
        )

    async with beside(driver=OddDriver(0, 1, change=change), forgetSeconds=1.0) as node:
        await node.the_other_is_served()
        await asyncio.sleep(1.0)
        assert node.kubelet.allocatable(ODD) <= 2 * SPLIT
        await node.the_other_is_served("p2")


async def test_a_mistake_in_what_all_vendors_share_ends_the_daemon():
    async def patch_node(*_asked, **_more):
        raise ZeroDivisionError("shared")

    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError, match="shared"), flatten_subgroups=True):
        async with beside() as node:
            await node.odd_offered(2 * SPLIT)
            node.api.patch_node = patch_node
            node.api.annotate(theirs="x", **{REGISTER: None})
            async with asyncio.timeout(10):
                await node.task
