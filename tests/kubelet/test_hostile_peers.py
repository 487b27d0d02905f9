"""A3: peers that speak no gRPC, or nothing at all, cost nothing that stays."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest

from hami_plugin.kubelet.api import deviceplugin_pb2 as pb
from hami_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from hami_plugin.kubelet.listener import accepts, dial

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture
async def listener(site, make_plugin):
    return await site.listener(make_plugin())


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


async def serves(listener):
    async with dial(listener.path) as channel:
        await rpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty(), timeout=30)


async def say(listener, what):
    """Send bytes, and wait for the end of the connection."""
    reader, writer = await asyncio.open_unix_connection(listener.path)
    with suppress(ConnectionError):
        writer.write(what)
        await writer.drain()
        async with asyncio.timeout(30):
            while await reader.read(65536):
                pass
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize(
    "what",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        random.Random(7).randbytes(100_000),
        PREFACE + random.Random(8).randbytes(100_000),
        PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x00",
    ],
    ids=["http/1", "noise", "noise after the preface", "a frame of 16 MiB"],
)
@pytest.mark.scenario("A3")
async def test_a_peer_that_speaks_no_grpc_is_hung_up_on(listener, what):
    await say(listener, what)

    await serves(listener)


@pytest.mark.scenario("A3")
async def test_a_hundred_silent_connections_leave_no_descriptor_behind(listener):
    await serves(listener)
    before = descriptors()
    connections = [await asyncio.open_unix_connection(listener.path) for _ in range(100)]

    await serves(listener)
    for _, writer in connections:
        writer.close()
        await writer.wait_closed()

    async with asyncio.timeout(30):
        while descriptors() > before + 5:  # noqa: ASYNC110  # the kernel tells nobody
            await asyncio.sleep(0.05)


async def test_a_socket_that_nobody_serves_accepts_nothing(site):
    stale = site.directory / "stale.sock"
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), stale)
    assert await accepts(stale)

    server.close()
    await server.wait_closed()

    assert not await accepts(stale)
    assert not await accepts(site.directory / "missing.sock")
    assert stale.is_socket()


async def test_a_process_that_has_no_time_to_answer_has_not_died(site, monkeypatch):
    async def connect(_path):
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_unix_connection", connect)

    assert await accepts(site.directory / "busy.sock", within=0.01)
