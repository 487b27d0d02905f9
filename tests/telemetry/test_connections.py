"""Does somebody who opens connections and says nothing keep out whoever has a question?"""

import asyncio
import errno
import resource
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from hami_plugin.telemetry.connections import Connections
from hami_plugin.telemetry.http import Probes, document, listening
from hami_plugin.telemetry.process_metrics import ApiCallMetrics
from tests.support.certificates import Authority
from tests.support.scheduling import until

ASK = b"GET /quick HTTP/1.1\r\nHost: x\r\n\r\n"


class Port:
    """A server with a page that answers at once, and one that waits for ``release``."""

    def __init__(self, **options):
        self.dropped = []
        self.release = asyncio.Event()
        self.waiting = 0
        self._writers = []
        self.connections = Connections(dropped=self.dropped.append, **options)

    async def quick(self, _request):
        return web.Response(text="here")

    async def slow(self, _request):
        self.waiting += 1
        await self.release.wait()
        return web.Response(text="at last")

    @property
    def number(self):
        return self.socket.getsockname()[1]

    async def __aenter__(self):
        app = web.Application(middlewares=[self.connections.noticing])
        app.router.add_get("/quick", self.quick)
        app.router.add_get("/slow", self.slow)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        self.socket = listening("127.0.0.1", 0)
        self.connections.start(self.runner.server, self.socket)
        return self

    async def __aexit__(self, *_):
        self.release.set()
        self.connections.stop()
        self.socket.close()
        await self.runner.cleanup()
        self.connections.close()
        for writer in self._writers:
            writer.close()
        await asyncio.sleep(0)

    async def opened(self, ask=b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number)
        self._writers.append(writer)
        writer.write(ask)
        await writer.drain()
        return reader, writer


@asynccontextmanager
async def port(**options):
    async with asyncio.timeout(60), Port(**options) as it:
        yield it


async def closed(reader):
    """Whether the other side ends the connection, whatever it says before."""
    async with asyncio.timeout(30):
        try:
            while await reader.read(4096):
                pass
        except ConnectionError:
            pass
    return True


async def answer(reader):
    async with asyncio.timeout(30):
        return await reader.readuntil(b"\r\n")


async def _flood(it, count):
    return [await it.opened() for _ in range(count)]


async def test_the_one_that_has_been_idle_for_longest_makes_room():
    async with port(most=4) as it:
        first = [await it.opened() for _ in range(4)]
        await until(lambda: len(it.connections) == 4)

        reader, _ = await it.opened(ASK)

        assert (await answer(reader)).startswith(b"HTTP/1.1 200")
        assert await closed(first[0][0])
        assert len(it.connections) == 4
        assert it.dropped == ["it was idle for longest"]


async def test_one_that_waits_for_an_answer_stays_however_many_come():
    async with port(most=4) as it:
        reader, _ = await it.opened(ASK.replace(b"quick", b"slow"))
        await until(lambda: it.waiting == 1)
        await _flood(it, 40)
        await until(lambda: len(it.dropped) >= 37)

        it.release.set()

        assert (await answer(reader)).startswith(b"HTTP/1.1 200")
        assert len(it.connections) <= 4


async def test_nobody_is_let_in_while_all_wait_for_an_answer():
    async with port(most=4) as it:
        busy = [await it.opened(ASK.replace(b"quick", b"slow")) for _ in range(4)]
        await until(lambda: it.waiting == 4)

        late, _ = await it.opened(ASK)
        assert await closed(late)
        it.release.set()

        assert [(await answer(reader))[:12] for reader, _ in busy] == [b"HTTP/1.1 200"] * 4
        assert it.dropped == ["all others are busy"]


@pytest.mark.parametrize("begun", [b"", b"GET /quick HT", b"GET /quick HTTP/1.1\r\nHost: x\r\n"])
async def test_who_asks_for_nothing_in_time_is_closed(begun):
    async with port(header=0.1) as it:
        reader, _ = await it.opened(begun)

        assert await closed(reader)
        assert it.dropped == ["it asked for nothing in time"]
        await until(lambda: not len(it.connections))


async def test_who_has_asked_once_may_stay_for_the_next_question():
    async with port(header=1.0) as it:
        reader, writer = await it.opened(ASK)
        assert (await answer(reader)).startswith(b"HTTP/1.1 200")
        other, _ = await it.opened()
        assert await closed(other)  # more than the time of a header has passed

        writer.write(ASK)
        async with asyncio.timeout(30):
            await reader.readuntil(b"here")
            assert (await reader.readuntil(b"here")).count(b"200") == 1
        assert it.dropped == ["it asked for nothing in time"]


async def test_a_thousand_connections_are_as_few_as_there_may_be():
    async with port(most=8) as it:
        most = 0
        for _ in range(1000):
            await it.opened()
            most = max(most, len(it.connections))
        reader, _ = await it.opened(ASK)

        assert (await answer(reader)).startswith(b"HTTP/1.1 200")
        assert most <= 8


async def test_a_flood_is_one_line_in_a_minute_and_counted():
    now = 0.0
    registry = CollectorRegistry()
    with capture_logs() as logs:
        async with port(most=4, clock=lambda: now) as it:
            it.connections._count = ApiCallMetrics(registry).connection_dropped
            await _flood(it, 50)
            await until(lambda: _dropped(registry) == 46)
            now = 61.0
            await it.opened()
            await until(lambda: _dropped(registry) == 47)

    assert [line["count"] for line in logs if line["event"].startswith("connections closed")] == [1, 46]


def _dropped(registry):
    return registry.get_sample_value("hami_plugin_http_connections_dropped_total", {"why": "it was idle for longest"})


class Scarce:
    """A socket that listens, in a process that has no descriptor left for a while."""

    def __init__(self, listener):
        self._listener, self.left, self.tries = listener, 3, 0

    def accept(self):
        self.tries += 1
        if self.left:
            self.left -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()

    def __getattr__(self, name):
        return getattr(self._listener, name)


@pytest.mark.scenario("H8")
async def test_without_descriptors_nobody_spins_and_idle_ones_are_given_back():
    async with port() as it:
        idle, _ = await it.opened()
        await until(lambda: len(it.connections) == 1)
        it.connections.stop()
        scarce = Scarce(it.socket)
        it.connections.start(it.runner.server, scarce)

        with capture_logs() as logs:
            await it.opened()
            assert await closed(idle)
            reader, _ = await it.opened(ASK)
            assert (await answer(reader)).startswith(b"HTTP/1.1 200")

        assert scarce.tries < 20
        assert len([line for line in logs if line.get("why") == "Too many open files"]) == 1


async def test_with_tls_a_handshake_counts_and_has_a_deadline(tmp_path):
    authority = Authority(tmp_path)
    pair = authority.pair("here")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    trust = ssl.create_default_context(cafile=str(authority.certificate))
    async with port(most=8, header=3.0, context=context) as it:
        flood = [await it.opened() for _ in range(40)]
        await until(lambda: len(it.dropped) >= 32)
        url = f"https://127.0.0.1:{it.number}/quick"
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
            session.get(url, server_hostname="localhost") as found,
        ):
            assert await found.text() == "here"
        assert all([await closed(reader) for reader, _ in flood])
        await until(lambda: not len(it.connections))


async def test_a_new_certificate_is_presented_to_those_that_come_from_then_on(tmp_path):
    contexts = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        pair = Authority(tmp_path / name).pair("here")
        contexts.append(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
        contexts[-1].load_cert_chain(pair.certificate, pair.key)
    blind = ssl.create_default_context()
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    seen = []
    async with port(context=contexts[0]) as it:
        for context in (None, contexts[1]):
            it.connections.context = context or it.connections.context
            _, writer = await asyncio.open_connection("127.0.0.1", it.number, ssl=blind)
            seen.append(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
            writer.close()

    assert seen[0] != seen[1]


@pytest.mark.parametrize(
    ("peer", "status"),
    [
        (("127.0.0.1", 5), 200),
        (("::1", 5, 0, 0), 200),
        (("::ffff:127.0.0.1", 5, 0, 0), 200),
        (("10.0.0.7", 5), 403),
        (("::ffff:10.0.0.7", 5, 0, 0), 403),
        (("fe80::1%eth0", 5, 0, 2), 403),
        ("", 403),
        (None, 403),
    ],
)
async def test_the_configuration_is_for_the_loopback_only(peer, status):
    transport = SimpleNamespace(get_extra_info=lambda name: peer if name == "peername" else None)

    answered = await document("configuration", lambda: {"nodeName": "n1"}, SimpleNamespace(transport=transport))

    assert answered.status == status
    assert ("n1" in answered.text) == (status == 200)


async def test_the_configuration_is_not_shown_to_whoever_has_no_address(tmp_path):
    app = web.Application()
    Probes(registry=CollectorRegistry(), alive=tuple, ready=dict, configuration=lambda: {"a": 1}).add_to(app)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "socket")).start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(tmp_path / "socket"))) as session:
        async with session.get("http://x/debug/config") as answered:
            assert answered.status == 403
            assert "port-forward" in await answered.text()
        async with session.get("http://x/healthz") as answered:
            assert answered.status == 200
    await runner.cleanup()


def test_a_process_may_open_as_many_files_as_it_is_allowed():
    code = (
        "import resource;"
        "hard = min(5000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]);"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard));"
        "from hami_plugin.telemetry.connections import raise_descriptor_limit;"
        "print(raise_descriptor_limit() == hard == resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )

    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "True\n"


@pytest.mark.parametrize(("limit", "most"), [(64, 4), (128, 20), (1024, 64), (resource.RLIM_INFINITY, 64)])
def test_where_there_are_few_descriptors_connections_take_a_small_part(monkeypatch, limit, most):
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, limit))

    assert Connections()._most == most


def test_stopping_what_never_started_is_harmless():
    Connections().stop()
