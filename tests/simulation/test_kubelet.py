"""The simulated kubelet keeps the real one's manners, also those that plugins find inconvenient."""

import asyncio
import shutil
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cdi.spec import ContainerEdits
from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.kubelet.endpoint import Endpoint, RegistrationError, register
from hami_plugin.kubelet.holders import CheckpointFile, PodResourcesClient
from hami_plugin.kubelet.listener import Listener
from hami_plugin.kubelet.servicer import DevicePluginServicer
from hami_plugin.model.delivery import Answer
from hami_plugin.model.ports import Holder, NullObserver, Offer
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.process.concurrency import Watched, poll_condition
from hami_plugin.simulation.kubelet import AdmissionError, FakeKubelet, Manners, Rivals, StartError

RESOURCE = "example.com/gpu"


class Plugin:
    resource = RESOURCE
    pre_start_required = True

    def __init__(self):
        self.offers = Watched(tuple(Offer(id=f"d{n}", healthy=True, numa=n // 2) for n in range(4)))
        self.calls = []
        self.failure = None
        self.wish = None

    async def allocate(self, ids):
        self.calls.append(("allocate", sorted(ids)))
        if self.failure:
            raise self.failure
        return Answer(edits=ContainerEdits(env={"IDS": ",".join(sorted(ids))}))

    async def prefer(self, available, must_include, size):
        self.calls.append(("prefer", sorted(available), sorted(must_include), size))
        return self.wish or sorted(available)[:size]

    async def pre_start(self, ids):
        self.calls.append(("start", sorted(ids)))
        if self.failure:
            raise self.failure


@pytest.fixture
def plugin():
    return Plugin()


@pytest.fixture
async def kubelet(plugin):
    root = Path(tempfile.mkdtemp(prefix="fk"))
    kubelet = FakeKubelet(root / "plugins", root / "pods" / "kubelet.sock")
    await kubelet.start()
    endpoint = Endpoint(plugin, kubelet.directory, NullObserver())
    task = asyncio.create_task(endpoint.run())
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 4)
    yield kubelet
    await endpoint.close()
    await task
    await kubelet.stop()
    shutil.rmtree(root)


def wants(name, amount, *, init=False, restartable=False):
    limits = {RESOURCE: str(amount), "cpu": "1"} if amount else {"cpu": "1"}
    return ContainerView(name=name, init=init, restartable=restartable, limits=limits)


def pod(uid, *containers):
    return PodView(uid=uid, namespace="ns", name=f"pod-{uid}", containers=containers)


async def test_a_pod_gets_what_the_plugin_prefers_and_the_plugin_is_asked_in_order(kubelet, plugin):
    plugin.wish = ["d1", "d3"]

    ids = await kubelet.admit(pod("1", wants("main", 2)))

    assert sorted(ids["main"][RESOURCE]) == ["d1", "d3"]
    assert plugin.calls == [("prefer", ["d0", "d1", "d2", "d3"], [], 2), ("allocate", ["d1", "d3"])]


async def test_a_wish_for_ids_that_are_taken_is_passed_over(kubelet, plugin):
    await kubelet.admit(pod("1", wants("main", 1)))
    plugin.wish = ["d0"]

    ids = await kubelet.admit(pod("2", wants("main", 1)))

    assert ids["main"][RESOURCE][0] in {"d1", "d2", "d3"}


async def test_sick_devices_are_not_given(kubelet, plugin):
    plugin.offers.set(tuple(Offer(id=f"d{n}", healthy=n == 2) for n in range(4)))
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 1)

    assert (await kubelet.admit(pod("1", wants("main", 1))))["main"][RESOURCE] == ("d2",)
    with pytest.raises(AdmissionError, match="Requested: 1, Available: 0"):
        await kubelet.admit(pod("2", wants("main", 1)))


async def test_init_containers_hand_their_ids_on_without_asking(kubelet, plugin):
    plugin.wish = ["d2", "d3"]

    ids = await kubelet.admit(pod("1", wants("init", 2, init=True), wants("a", 1), wants("b", 1), wants("c", 1)))

    assert set(ids["init"][RESOURCE]) == {"d2", "d3"} == {*ids["a"][RESOURCE], *ids["b"][RESOURCE]}
    assert ids["c"][RESOURCE][0] in {"d0", "d1"}
    assert [call[0] for call in plugin.calls] == ["prefer", "allocate", "allocate", "allocate", "prefer", "allocate"]


async def test_ids_from_an_init_container_must_be_in_a_larger_preference(kubelet, plugin):
    await kubelet.admit(pod("1", wants("init", 1, init=True), wants("main", 2)))

    assert plugin.calls[2] == ("prefer", ["d0", "d1", "d2", "d3"], ["d0"], 2)


async def test_a_native_sidecar_keeps_its_ids(kubelet):
    ids = await kubelet.admit(
        pod("1", wants("first", 1, init=True), wants("sidecar", 1, init=True, restartable=True), wants("main", 1))
    )

    assert ids["first"] == ids["sidecar"]
    assert ids["main"] != ids["sidecar"]


async def test_a_refused_pod_holds_nothing(kubelet, plugin):
    plugin.failure = RefusedError(RefusalReason.NO_PENDING_POD, "no pod waits", hint="try again")

    with pytest.raises(AdmissionError, match="desc = no pod waits; try again") as refused:
        await kubelet.admit(pod("1", wants("main", 4)))
    plugin.failure = None

    assert (refused.value.reason, refused.value.code) == ("UnexpectedAdmissionError", "FAILED_PRECONDITION")
    assert len((await kubelet.admit(pod("2", wants("main", 4))))["main"][RESOURCE]) == 4


async def test_a_removed_pod_frees_its_ids(kubelet):
    await kubelet.admit(pod("1", wants("main", 4)))
    with pytest.raises(AdmissionError):
        await kubelet.admit(pod("2", wants("main", 1)))

    kubelet.remove("1")

    await kubelet.admit(pod("2", wants("main", 1)))


async def test_pods_that_come_together_are_admitted_one_by_one_and_share_nothing(kubelet):
    answers = await asyncio.gather(*(kubelet.admit(pod(str(n), wants("main", 1))) for n in range(4)))

    assert {answer["main"][RESOURCE] for answer in answers} == {("d0",), ("d1",), ("d2",), ("d3",)}


async def test_a_container_starts_with_what_allocate_said_after_the_plugin_agreed(kubelet, plugin):
    await kubelet.admit(pod("1", wants("main", 1), wants("plain", 0)))

    assert (await kubelet.start_container("1", "main")).edits.env == {"IDS": "d0"}
    assert plugin.calls[-1] == ("start", ["d0"])
    assert (await kubelet.start_container("1", "plain")).edits == ContainerEdits()
    plugin.failure = RefusedError(RefusalReason.WRONG_HOLDER, "not yours")
    with pytest.raises(StartError, match="not yours"):
        await kubelet.start_container("1", "main")


@pytest.mark.parametrize("entry_per_device", [True, False])
async def test_pod_resources_name_the_holders_but_no_plain_init_container(kubelet, entry_per_device):
    await kubelet.stop()
    kubelet.manners = Manners(entry_per_device=entry_per_device)
    await kubelet.start()
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 4)
    await kubelet.admit(pod("1", wants("init", 1, init=True), wants("side", 1, init=True, restartable=True)))
    await kubelet.admit(pod("2", wants("main", 2)))

    holders = await PodResourcesClient(kubelet.pod_resources_socket).holders(RESOURCE)

    assert holders == (
        Holder(namespace="ns", pod="pod-1", container="side", ids=frozenset({"d0"})),
        Holder(namespace="ns", pod="pod-2", container="main", ids=frozenset({"d1", "d2"})),
    )


async def test_the_checkpoint_names_every_container_before_any_starts(kubelet):
    await kubelet.admit(pod("1", wants("init", 2, init=True), wants("main", 1)))

    held = {one.container: (one.uid, len(one.ids)) for one in await CheckpointFile(kubelet.directory).kept(RESOURCE)}

    assert held == {"init": ("1", 2), "main": ("1", 1)}


async def test_a_restart_keeps_allotments_and_knows_no_device_until_the_plugin_is_back(kubelet, plugin):
    first = await kubelet.admit(pod("1", wants("main", 1)))
    asked = len(plugin.calls)

    await kubelet.restart()
    assert (kubelet.capacity(RESOURCE), kubelet.allocatable(RESOURCE)) == (0, 0)
    with pytest.raises(AdmissionError, match="no healthy devices present"):
        await kubelet.admit(pod("2", wants("main", 1)))
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 4)

    assert await kubelet.admit(pod("1", wants("main", 1))) == first
    assert len(plugin.calls) == asked
    assert (await kubelet.admit(pod("3", wants("main", 3))))["main"][RESOURCE]
    with pytest.raises(AdmissionError, match="Available: 0"):
        await kubelet.admit(pod("4", wants("main", 1)))


async def test_a_restarted_kubelet_fails_a_pod_that_has_not_started_while_no_plugin_is_back(kubelet):
    started, admitted = pod("started", wants("main", 1)), pod("admitted", wants("main", 1))
    for one in (started, admitted):
        await kubelet.admit(one)
    await kubelet.start_container("started", "main")
    kubelet.ledger.fail(RESOURCE)

    await kubelet.admit(started)
    with pytest.raises(AdmissionError, match="no healthy devices present"):
        await kubelet.admit(admitted)

    assert set(kubelet.ledger.pods) == {"started"}


async def test_without_its_checkpoint_a_restarted_kubelet_knows_no_allotment_and_starts_nothing(kubelet):
    await kubelet.admit(pod("u", wants("main", 1)))

    await kubelet.restart(checkpoint_removed=True)
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 4)

    with pytest.raises(StartError, match=f"no devices found allocated in local cache for pod u.*{RESOURCE}"):
        await kubelet.start_container("u", "main")


async def test_a_resource_that_nobody_registered_is_ignored(kubelet):
    stranger = ContainerView(name="main", limits={"example.com/unknown": "3"})

    assert await kubelet.admit(pod("1", stranger)) == {"main": {}}


async def test_the_devices_of_a_lost_plugin_stay_in_the_capacity_for_a_while(plain):
    kubelet, serve = plain
    lost = await serve("one.sock")

    await lost.close()

    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 0)
    assert kubelet.capacity(RESOURCE) == 4
    kubelet.manners = Manners(grace=0)
    await asyncio.sleep(0.01)
    assert kubelet.capacity(RESOURCE) == 0


async def test_with_a_topology_policy_the_plugin_is_asked_about_the_chosen_numa_node_only(kubelet, plugin):
    kubelet.manners = Manners(topology="best-effort")
    plugin.wish = ["d2"]

    granted = await kubelet.admit(pod("u", wants("main", 1)))

    assert plugin.calls[0] == ("prefer", ["d0", "d1"], [], 1)
    assert granted["main"][RESOURCE][0] in {"d0", "d1"}


async def test_a_cpu_of_its_own_draws_a_containers_devices_to_its_numa_node(kubelet, plugin):
    kubelet.manners = Manners(topology="single-numa-node", cpus=frozenset({1}))

    granted = await kubelet.admit(pod("u", wants("main", 2)))

    assert set(granted["main"][RESOURCE]) == {"d2", "d3"}
    assert plugin.calls == [("allocate", ["d2", "d3"])]  # all that are left there: no preference is asked for


async def test_a_pod_that_cannot_be_aligned_fails_before_the_plugin_is_asked_and_holds_nothing(kubelet, plugin):
    kubelet.manners = Manners(topology="single-numa-node")

    with pytest.raises(AdmissionError, match="cannot be allocated with Topology locality") as error:
        await kubelet.admit(pod("u", wants("main", 3)))

    assert (error.value.reason, plugin.calls) == ("TopologyAffinityError", [])
    assert kubelet.ledger.taken(RESOURCE) == frozenset()


@pytest.fixture
async def plain():
    """A kubelet, and a function that serves a plugin on a socket and registers it there."""
    async with AsyncExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fk")))
        kubelet = FakeKubelet(root)
        await kubelet.start()
        stack.push_async_callback(kubelet.stop)

        async def serve(socket, *, again=False):
            plugin = Plugin()
            if not again:
                servicer = DevicePluginServicer(plugin, NullObserver())
                listener = await Listener.open(root / socket, servicer)
                stack.push_async_callback(listener.close)
            lists = kubelet.changes.value
            await register(root, plugin, socket, timeout=60.0)
            await kubelet.until(lambda: kubelet.changes.value > lists + 1 and kubelet.allocatable(RESOURCE) == 4)
            return listener if not again else None

        yield kubelet, serve


@pytest.mark.parametrize("rivals", [Rivals.BY_SOCKET, Rivals.NEWEST])
async def test_the_end_of_a_former_plugin_takes_no_device_away(plain, rivals):
    kubelet, serve = plain
    kubelet.manners = Manners(rivals=rivals)
    first = await serve("one.sock")
    await serve("two.sock")
    former = first.servicer.streams
    connections = kubelet._connected[RESOURCE]

    await first.close()

    assert former == 1  # it was not ended by the newer one
    await kubelet.until(lambda: len(connections) == 1)
    assert (kubelet.allocatable(RESOURCE), kubelet.plugin(RESOURCE).socket.name) == (4, "two.sock")


async def test_since_1_36_the_end_of_the_newest_plugin_leaves_the_resource_to_the_former_one(plain):
    kubelet, serve = plain
    await serve("one.sock")
    newest = await serve("two.sock")

    await newest.close()

    await kubelet.until(lambda: kubelet.plugin(RESOURCE).socket.name == "one.sock")
    assert kubelet.allocatable(RESOURCE) == 4


async def test_from_1_26_to_1_35_the_end_of_a_former_plugin_drops_the_newest_one(plain):
    kubelet, serve = plain
    kubelet.manners = Manners(rivals=Rivals.BY_RESOURCE)
    first = await serve("one.sock")
    newest = await serve("two.sock")

    await first.close()

    assert await poll_condition(lambda: not kubelet.allocatable(RESOURCE) and not newest.servicer.streams, within=30.0)
    await serve("two.sock", again=True)


async def test_from_1_26_to_1_35_a_registration_that_fails_saves_the_newest_plugin_and_hides_its_own_end(plain):
    kubelet, serve = plain
    kubelet.manners = Manners(rivals=Rivals.BY_RESOURCE, dial_timeout=0.1)
    first = await serve("one.sock")
    newest = await serve("two.sock")
    connections = kubelet._connected[RESOURCE]

    with pytest.raises(RegistrationError, match="refuses"):
        await register(kubelet.directory, Plugin(), "nobody.sock", timeout=60.0)
    await first.close()
    await kubelet.until(lambda: len(connections) == 1)
    assert (kubelet.allocatable(RESOURCE), newest.servicer.streams) == (4, 1)

    await newest.close()
    await kubelet.until(lambda: not connections)
    assert kubelet.allocatable(RESOURCE) == 4


@pytest.mark.parametrize("call", ["prefer", "allocate", "pre_start"])
async def test_a_call_that_is_under_way_when_the_kubelet_drops_the_plugin_fails_the_pod_and_cancels_nobody(
    kubelet, plugin, monkeypatch, call
):
    asked = asyncio.Event()

    async def never(*_arguments):
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(plugin, call, never)
    connection = kubelet.plugin(RESOURCE)

    async def run():
        await kubelet.admit(pod("a", wants("main", 1)))
        await kubelet.start_container("a", "main")

    running = asyncio.create_task(run())
    await asked.wait()
    await connection.close()

    with pytest.raises((AdmissionError, StartError), match="the client connection is closing") as error:
        await running
    assert error.value.code == "CANCELLED"


async def test_since_1_36_a_second_registration_on_a_socket_in_use_is_refused_and_the_first_ones_end_overlooked(plain):
    kubelet, serve = plain
    first = await serve("one.sock")

    with pytest.raises(HamiError, match="already connected"):
        await serve("one.sock", again=True)
    await first.close()

    await kubelet.until(lambda: bool(kubelet.plugin(RESOURCE).ended))
    assert kubelet.allocatable(RESOURCE) == 4  # of a plugin that is gone
