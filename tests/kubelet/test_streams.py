"""ListAndWatch: every stream sees every final state, whatever the others do."""

import asyncio

import pytest

from hami_plugin.kubelet.api import deviceplugin_pb2 as pb
from hami_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from hami_plugin.kubelet.listener import dial
from hami_plugin.kubelet.servicer import offers_of
from hami_plugin.model.ports import Offer


@pytest.fixture
def plugin(make_plugin):
    return make_plugin()


@pytest.fixture
async def listener(site, plugin):
    return await site.listener(plugin)


@pytest.fixture
async def stub(listener):
    async with dial(listener.path) as channel:
        yield rpc.DevicePluginStub(channel)


async def next_health(stream):
    return {offer.id: offer.healthy for offer in offers_of(await stream.read())}


async def test_the_first_list_comes_at_once_and_whole(stub):
    stream = stub.ListAndWatch(pb.Empty())

    assert offers_of(await stream.read()) == tuple(Offer(id=i, healthy=True, numa=0) for i in "abcd")


@pytest.mark.scenario("K6")
async def test_two_streams_see_every_change_and_one_ending_leaves_the_other(site, stub, plugin, listener, until):
    first, second = stub.ListAndWatch(pb.Empty()), stub.ListAndWatch(pb.Empty())
    await next_health(first)
    await next_health(second)

    plugin.health(a=False)
    assert not (await next_health(first))["a"]
    assert not (await next_health(second))["a"]

    first.cancel()
    await until(site.stirred, lambda _: listener.servicer.streams == 1)
    plugin.health(a=True)
    assert (await next_health(second))["a"]


@pytest.mark.scenario("K7")
async def test_a_thousand_changes_without_a_stream_block_nobody(stub, plugin):
    for n in range(1001):
        plugin.health(a=n % 2 == 0, b=n % 2 == 1)

    assert await next_health(stub.ListAndWatch(pb.Empty())) == {"a": True, "b": False, "c": True, "d": True}


@pytest.mark.full
@pytest.mark.scenario("K13")
async def test_a_slow_reader_skips_to_the_newest_state(site, make_plugin):
    plugin = make_plugin([f"device-{n:05}" for n in range(10_000)])
    listener = await site.listener(plugin)
    async with dial(listener.path) as channel:
        stream = rpc.DevicePluginStub(channel).ListAndWatch(pb.Empty())
        await stream.read()
        changes = 40
        for n in range(changes):
            plugin.health(**{"device-00000": n % 2 == 0, f"device-{n:05}": False})
            await asyncio.sleep(0.01)

        read = 0
        while True:
            read += 1
            health = await next_health(stream)
            if not health[f"device-{changes - 1:05}"]:
                break

    assert read < changes


@pytest.mark.scenario("K12")
async def test_a_list_beyond_the_kubelets_limit_is_never_sent(site, stub, plugin, listener, until):
    stream = stub.ListAndWatch(pb.Empty())
    await stream.read()
    usual = plugin.offers.value

    plugin.offers.set(tuple(Offer(id=f"{n:060}", healthy=True) for n in range(60_000)))
    await until(site.stirred, lambda _: "largest deviceSplitCount" in listener.servicer.oversized)
    plugin.offers.set(usual[:1])

    assert [offer.id for offer in offers_of(await stream.read())] == ["a"]
    assert listener.servicer.oversized == ""


async def test_a_closed_plugin_ends_its_streams(stub, plugin):
    stream = stub.ListAndWatch(pb.Empty())
    await stream.read()

    plugin.offers.close()

    async with asyncio.timeout(30):
        while await stream.read():
            pass
