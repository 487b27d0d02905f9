"""Whatever one vendor's code does, the daemon lives, the other vendor is served, and somebody is told why."""

import asyncio
import math
import threading

import pytest

import hami_plugin.daemon.build
from hami_plugin.errors import ConfigError, HamiError
from hami_plugin.model.delivery import Delivery, Way
from hami_plugin.model.device import Fault
from hami_plugin.process.concurrency import BoundedCalls
from hami_plugin.protocol.keys import NODE_LOCK
from hami_plugin.sdk import Injection
from tests.support.beside import ODD, ODD_FAMILY, ODD_KEYS, OddDriver, beside
from tests.support.breaking import Gate, broken, leaves
from tests.support.builders import COUNT, REGISTER, SPLIT, changed
from tests.support.node import until


@pytest.fixture
def impatient(monkeypatch):
    """With the vendor that is broken, and with no other."""

    def calls(name, *, timeout):
        return BoundedCalls(name, timeout=1.0 if name.startswith("odd") else 10 * timeout)

    monkeypatch.setattr(hami_plugin.daemon.build, "BoundedCalls", calls)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.mark.parametrize("step", ["register", "announce", "encode"])
@pytest.mark.parametrize("mistake", [broken, leaves])
async def test_annotations_that_cannot_be_made_are_one_familys_problem(step, mistake):
    async with beside(changed(ODD_FAMILY, **{step: mistake})) as node:
        await node.the_other_is_served()
        await node.says("node annotations", f"ODD: vendor odd raised an unexpected error, {step}: ")
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
        ({"a": "x"}, "a is not among the annotations that the family declares"),
        ({REGISTER: "[]"}, f"{REGISTER} is not this family's to write"),
        ({NODE_LOCK: None}, f"{NODE_LOCK} is not this family's to write"),
        (None, "None is no Mapping"),
        ((key for key in "ab"), "is no Mapping"),
    ],
    ids=["number", "odd key", "no key", "surrogate", "much", "undeclared", "another's", "lock", "none", "generator"],
)
async def test_annotations_that_no_node_can_have_are_one_familys_problem(wanted, words):
    async with beside(changed(ODD_FAMILY, announce=lambda *_asked: wanted)) as node:
        await node.the_other_is_served()
        await node.says("node annotations", words)
        assert node.api.node.annotations[REGISTER] != "[]"


async def test_annotations_that_fit_no_node_leave_room_for_the_others():
    texts = {f"hami-plugin.io/a{number}": "x" * 100_000 for number in range(3)}
    async with beside(changed(ODD_FAMILY, announce=lambda *_asked: texts)) as node:
        await node.the_other_is_served()
        await until(lambda: any(reason == "AnnotationsTooLarge" for _, reason, _ in node.api.events))
        assert "ODD" in next(words for _, reason, words in node.api.events if reason == "AnnotationsTooLarge")
        await node.says("node annotations", "what ODD would say")


async def test_a_family_that_is_well_again_is_written_without_any_change():
    mistakes = [ZeroDivisionError(), ZeroDivisionError()]

    def register(device, legacy):
        if mistakes:
            raise mistakes.pop()
        return ODD_FAMILY.node.register(device, legacy)

    async with beside(changed(ODD_FAMILY, register=register)) as node:
        async with asyncio.timeout(30):
            while ODD_KEYS.register not in node.api.node.annotations:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await node.says("node annotations", "")
        assert node.problem("node annotations") == ""


@pytest.mark.full
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
    async with beside(changed(ODD_FAMILY, replicas=replicas)) as node:
        await node.the_other_is_served()
        if words:
            await node.says("vendor odd", words)
        else:
            await node.says(f"kubelet {ODD}", "more than the 3.5 MiB")
        assert node.kubelet.allocatable(ODD) == 0


async def test_a_node_full_of_shares_is_not_rendered():
    family = changed(ODD_FAMILY, replicas=lambda _device: 100_000)
    async with beside(family, OddDriver(*range(64))) as node:
        await node.the_other_is_served()
        await node.says("vendor odd", "64 devices of ODD with 6400000 shares are more than the kubelet takes")


@pytest.mark.full
async def test_a_list_that_grows_beyond_what_a_kubelet_reads_is_told_until_it_fits_again():
    shares = [SPLIT]
    async with beside(changed(ODD_FAMILY, replicas=lambda _device: shares[0])) as node:
        await node.odd_offered(2 * SPLIT)
        shares[0] = 90_000
        for index in range(2):
            node.odd.faults[index] = Fault(reason="Odd", message="so that devices are offered anew")
        await node.says(f"kubelet {ODD}", "the largest deviceSplitCount that fits is")

        shares[0] = SPLIT
        node.odd.faults.clear()

        await until(lambda: node.problem(f"kubelet {ODD}") == "")
        assert node.kubelet.allocatable(ODD) == 2 * SPLIT


async def test_a_loop_that_failed_runs_again_and_is_well_after_a_while():
    mistakes = [ZeroDivisionError()]

    def replicas(_device):
        if mistakes:
            raise mistakes[0]
        return SPLIT

    async with beside(changed(ODD_FAMILY, replicas=replicas)) as node:
        await node.says("vendor odd", "replicas: ZeroDivisionError")
        mistakes.clear()
        await node.odd_offered(2 * SPLIT)
        await node.the_other_is_served()


@pytest.mark.parametrize("families", [broken, leaves, lambda _settings: None, lambda _settings: (7,)])
async def test_a_vendor_whose_families_cannot_be_told_says_so_and_is_not_served(families):
    async with beside(families=families) as node:
        await node.the_other_is_served()
        await node.says("vendor odd", "nothing of it is served until the daemon is started anew")


async def test_what_a_host_lacks_makes_it_unready_only_while_there_are_devices_that_need_it():
    driver, component = OddDriver(0, 1, change=lambda _sightings: ()), f"host {ODD}"
    async with beside(changed(ODD_FAMILY, host_problem=lambda _host: "no library"), driver) as node:
        await until(lambda: "no library" in said(node))
        await until(lambda: component not in node.daemon.readiness())  # once it is known that there are none
        driver.change = lambda sightings: sightings
        await node.says(component, "no library")


@pytest.mark.full
async def test_a_look_at_the_host_that_never_comes_back_is_told_and_holds_nobody_up(gate):
    async with beside(changed(ODD_FAMILY, host_problem=gate)) as node:
        await node.the_other_is_served()
        await until(lambda: 'step="host problem",vendor="odd"' in node.metrics())
        await until(lambda: "no answer within 2 s" in said(node))


def said(node):
    return " ".join([*node.daemon.readiness().values(), *(words for _, _, words in node.api.events)])


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
        return (does if armed.is_set() else getattr(ODD_FAMILY.node, step))(*asked)

    async with beside(changed(ODD_FAMILY, **{step: late})) as node:
        await node.odd_offered(2 * SPLIT)
        armed.set()
        with pytest.raises(HamiError, match=words):
            await node.odd_pod()
        await node.the_other_is_served()


async def test_an_allocate_that_never_comes_back_is_refused_and_the_next_one_at_once(gate, impatient):
    gate.answer = Injection(edits=ODD_FAMILY.node.shared_edits(None))
    async with beside(changed(ODD_FAMILY, inject=gate)) as node:
        await node.odd_offered(2 * SPLIT)
        with pytest.raises(HamiError, match="no answer within 1 s"):
            await node.odd_pod("a")
        with pytest.raises(HamiError, match="an earlier call has not returned yet"):
            await node.odd_pod("b")
        await node.the_other_is_served()


@pytest.mark.scenario("D9")
async def test_starts_that_wait_for_a_vendors_look_at_the_host_hold_up_no_loop_and_then_succeed(gate, monkeypatch):
    monkeypatch.setattr(hami_plugin.daemon.build, "CALL_TIMEOUT_S", 25.0)
    gate.answer = ""
    gate.open.set()
    async with beside(changed(ODD_FAMILY, host_problem=gate)) as node:
        await node.odd_offered(2 * SPLIT)
        await node.odd_pod("a")
        gate.open.clear()

        starts = [asyncio.create_task(node.kubelet.start_container("a-uid", "main")) for _ in range(6)]
        await node.the_other_is_served()

        assert not any(start.done() for start in starts)
        gate.open.set()
        await asyncio.gather(*starts)


def file_missing(*_asked):
    raise FileNotFoundError(2, "No such file", "/dev/odd0")


@pytest.mark.parametrize("step", ["register", "replicas", "host_problem"])
async def test_a_file_that_is_missing_where_none_is_asked_for_is_a_mistake_too(step):
    async with beside(changed(ODD_FAMILY, **{step: file_missing})) as node:
        await node.the_other_is_served()
        await until(lambda: f'step="{step.replace("_", " ")}",vendor="odd"' in node.metrics())


async def test_a_file_that_is_missing_for_a_container_refuses_it_and_is_no_mistake():
    async with beside(changed(ODD_FAMILY, inject=file_missing)) as node:
        await node.odd_offered(2 * SPLIT)
        with pytest.raises(HamiError, match=r"the host could not be prepared for container main .*No such file"):
            await node.odd_pod()
        assert 'step="inject",vendor="odd"' not in node.metrics()


CDI = Delivery(ways=(Way.CDI_ANNOTATIONS,), kind="odd.io/card")


async def test_specs_that_cannot_be_described_are_one_familys_problem():
    async with beside(changed(ODD_FAMILY, delivery=CDI, device_edits=broken)) as node:
        await node.the_other_is_served()
        await node.says("vendor odd", "cdi: ZeroDivisionError: by nought")
        assert not node.kubelet.registered(ODD)


async def test_devices_that_cannot_be_described_count_as_unhealthy_at_every_scrape():
    def without_node(*_asked):
        raise HamiError("it has no device node")

    async with beside(changed(ODD_FAMILY, delivery=CDI, device_edits=without_node)) as node:
        await node.says("cdi odd.io/card", "it has no device node")
        counted = 'hami_plugin_devices{health="unhealthy",reason="CDISpecMissing",vendor="odd"} 2.0'
        await until(lambda: counted in node.metrics())

        for _ in range(20):  # the driver is looked at meanwhile, and says that they are well
            await asyncio.sleep(0.01)
            assert counted in node.metrics()


async def test_a_description_that_never_comes_back_is_one_familys_problem(gate):
    async with beside(changed(ODD_FAMILY, delivery=CDI, shared_edits=gate)) as node:
        await node.the_other_is_served()
        await node.says("cdi odd.io/card", "the disk with the CDI specs does not answer")
        await node.the_other_is_served("p2")


@pytest.mark.parametrize("name", [COUNT, "toy.example/card"])
async def test_a_resource_on_another_vendors_socket_is_refused_at_the_start(name):
    family = changed(ODD_FAMILY, count=name)

    with pytest.raises(ConfigError, match=f"{name} of odd and {COUNT} of toy would be served on the same socket"):
        async with beside(family):
            pass


async def test_a_stream_that_ends_again_and_again_has_no_rival_in_the_other_vendor():
    async with beside() as node:
        for times in (1, 2, 3):
            await node.odd_offered(2 * SPLIT)
            await node.the_other_is_served(f"p{times}")
            await node.kubelet.plugin(ODD).close()
            await node.kubelet.until(lambda: not node.kubelet.registered(ODD))

        await until(lambda: node.kubelet.registered(ODD))
        assert "Displaced" not in {reason for _name, reason, _message in node.api.events}


async def test_a_mistake_in_what_all_vendors_share_ends_the_daemon():
    async def patch_node(*_asked, **_more):
        raise ZeroDivisionError("shared")

    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError, match="shared"), flatten_subgroups=True):
        async with beside() as node:
            await node.odd_offered(2 * SPLIT)
            node.api.patch_node = patch_node
            node.api.annotate(theirs="x", **{REGISTER: None})
            async with asyncio.timeout(30):
                await node.task
