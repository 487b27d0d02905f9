"""The kubelet's calls over a real socket: what is served, and what is refused with which status."""

import grpc
import pytest

from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.kubelet.api import deviceplugin_pb2 as pb
from hami_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from hami_plugin.kubelet.listener import dial


def allocate(*containers):
    return pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers])


def prefer(available, must, size):
    return pb.PreferredAllocationRequest(
        container_requests=[
            pb.ContainerPreferredAllocationRequest(
                available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
            )
        ]
    )


@pytest.fixture
async def plugin(make_plugin):
    return make_plugin()


@pytest.fixture
async def stub(site, plugin, observer):
    listener = await site.listener(plugin, observer=observer, deadline=60.0)
    async with dial(listener.path) as channel:
        yield rpc.DevicePluginStub(channel)


@pytest.fixture
async def impatient(site, plugin):
    """It gives a plugin half a second."""
    plugin.delay = 60.0
    listener = await site.listener(plugin, deadline=0.5)
    async with dial(listener.path) as channel:
        yield rpc.DevicePluginStub(channel)


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code().name, error.value.details()


async def test_the_options_say_what_the_plugin_needs(stub):
    options = await stub.GetDevicePluginOptions(pb.Empty())

    assert options.pre_start_required
    assert options.get_preferred_allocation_available


async def test_allocate_answers_the_container_that_is_asked_for(stub):
    answer = await stub.Allocate(allocate(["b", "a"]))

    assert [dict(container.envs) for container in answer.container_responses] == [{"IDS": "a,b"}]


async def test_a_call_for_two_containers_is_refused_before_anything_is_handed_out(stub, plugin):
    code, details = await refused(stub.Allocate(allocate(["a"], ["b"])))

    assert code == "INVALID_ARGUMENT"
    assert "2 containers" in details
    assert plugin.allocated == []


async def test_ids_that_are_named_after_a_node_with_a_long_name_are_served(site, make_plugin):
    """The kubelet's API asks for at most 63 characters, and no kubelet looks: what was offered comes back."""
    node = f"ip-10-0-0-1.{'very-long-' * 24}x"
    offered = f"{node}-AWSNeuron-15::9"
    plugin = make_plugin((offered,))
    listener = await site.listener(plugin)
    async with dial(listener.path) as channel:
        stub = rpc.DevicePluginStub(channel)
        await stub.Allocate(allocate([offered]))
        await stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=[offered]))

    assert len(node) == 253
    assert plugin.allocated == plugin.started == [(offered,)]


@pytest.mark.scenario("A2")
@pytest.mark.parametrize(
    "request_",
    [
        allocate(),
        allocate([]),
        allocate(["a", "a"]),
        allocate([""]),
        allocate(["nobody"]),
        allocate(["a\0"]),
        allocate(["a\n"]),
        allocate(["x" * 1_000_000]),
        allocate(*[["a"]] * 300),
    ],
    ids=["none", "empty", "twice", "blank", "unknown", "nul", "newline", "huge", "many"],
)
async def test_an_impossible_request_is_an_invalid_argument_and_reaches_nobody(stub, plugin, observer, request_):
    code, details = await refused(stub.Allocate(request_))

    assert code == "INVALID_ARGUMENT"
    assert len(details) < 400
    assert plugin.allocated == []
    assert len(observer.outcomes) == 1
    assert (await stub.Allocate(allocate(["a"]))).container_responses


@pytest.mark.scenario("A2", "A3")
async def test_bytes_that_are_no_message_are_refused_and_reach_nobody(stub, site, plugin):
    sound = allocate(["abcd"]).SerializeToString()
    async with dial(site.directory / "own.sock") as channel:
        call = channel.unary_unary("/v1beta1.DevicePlugin/Allocate")
        for broken in (b"\xff\xff\xff", sound.replace(b"abcd", b"\xff\xfe\xfd\xfc"), sound[:-1]):
            await refused(call(broken))

    assert plugin.allocated == []
    assert (await stub.Allocate(allocate(["a"]))).container_responses


async def test_a_refusal_keeps_its_status_and_its_words(stub, plugin):
    plugin.failure = RefusedError(RefusalReason.AMBIGUOUS, "two pods fit", code="ABORTED", hint="delete one")

    assert await refused(stub.Allocate(allocate(["a"]))) == ("ABORTED", "two pods fit; delete one")
    assert await refused(stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["a"]))) == (
        "ABORTED",
        "two pods fit; delete one",
    )


async def test_a_bug_in_the_plugin_fails_one_call_and_keeps_its_insides(stub, plugin):
    plugin.failure = ZeroDivisionError("secret")

    code, details = await refused(stub.Allocate(allocate(["a"])))
    plugin.failure = None

    assert code == "INTERNAL"
    assert "ZeroDivisionError" in details
    assert "secret" not in details
    assert (await stub.Allocate(allocate(["a"]))).container_responses


async def test_a_plugin_that_hangs_does_not_hang_admission(impatient):
    code, _ = await refused(impatient.Allocate(allocate(["a"])))

    assert code == "DEADLINE_EXCEEDED"


async def test_pre_start_hands_over_the_ids(stub, plugin):
    await stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["b", "a"]))

    assert plugin.started == [("b", "a")]


@pytest.mark.parametrize("ids", [[], [""], ["a\n"], ["a\0"], ["a", "a"], ["x" * 1000]])
async def test_pre_start_of_no_sensible_ids_reaches_nobody(stub, plugin, ids):
    code, _ = await refused(stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids)))

    assert code == "INVALID_ARGUMENT"
    assert plugin.started == []


async def test_a_preference_is_passed_on(stub):
    answer = await stub.GetPreferredAllocation(prefer(["a", "b", "c"], ["b"], 2))

    assert list(answer.container_responses[0].deviceIDs) == ["b", "c"]


@pytest.mark.parametrize(
    "preference",
    [
        lambda available, must, size: 1 / 0,
        lambda available, must, size: ["a"],
        lambda available, must, size: ["a", "a"],
        lambda available, must, size: ["a", "zz"],
        lambda available, must, size: ["a", "c"],
        lambda available, must, size: [],
    ],
    ids=["breaks", "short", "twice", "foreign", "drops what must be", "no opinion"],
)
async def test_a_bad_preference_is_none_and_never_an_error(stub, plugin, preference):
    plugin.preference = preference

    answer = await stub.GetPreferredAllocation(prefer(["a", "b", "c"], ["b"], 2))

    assert [list(container.deviceIDs) for container in answer.container_responses] == [[]]


async def test_advice_that_takes_too_long_is_none_and_never_an_error(impatient):
    answer = await impatient.GetPreferredAllocation(prefer(["a", "b", "c"], ["b"], 2), timeout=30.0)

    assert [list(container.deviceIDs) for container in answer.container_responses] == [[]]


@pytest.mark.parametrize(
    "request_", [prefer([], [], 1), prefer(["a"], [], 2), prefer(["a"], ["b"], 1), prefer(["a"], [], -1)]
)
async def test_a_senseless_question_has_an_empty_answer(stub, plugin, request_):
    plugin.preference = lambda available, must, size: pytest.fail("asked")

    answer = await stub.GetPreferredAllocation(request_)

    assert [list(container.deviceIDs) for container in answer.container_responses] == [[]]
