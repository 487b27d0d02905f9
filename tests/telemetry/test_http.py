from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from hami_plugin.errors import HamiError
from hami_plugin.telemetry.http import Probes, TelemetryServer
from hami_plugin.telemetry.metrics import Metrics


@dataclass
class Daemon:
    """What the server asks, and a client that asks the server."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    alive: list[str] = field(default_factory=list)
    ready: dict[str, str] = field(default_factory=dict)
    configuration: dict[str, object] = field(default_factory=dict)
    refreshed: int = 0

    async def refresh(self) -> None:
        self.refreshed += 1

    def server(self, host: str = "127.0.0.1", port: int = 0) -> TelemetryServer:
        return TelemetryServer(
            host,
            port,
            Probes(
                registry=self.registry,
                alive=lambda: self.alive,
                ready=lambda: self.ready,
                configuration=lambda: self.configuration,
                refresh=self.refresh,
            ),
        )


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
async def server(daemon: Daemon) -> AsyncIterator[TelemetryServer]:
    server = daemon.server()
    await server.start()
    yield server
    await server.stop()


async def get(
    server: TelemetryServer, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
        session.request(method, f"http://127.0.0.1:{server.port}{path}", headers=headers) as answer,
    ):
        return answer.status, answer.headers.get("Content-Type", ""), await answer.text()


async def test_alive_until_something_says_otherwise(daemon: Daemon, server: TelemetryServer) -> None:
    status, kind, text = await get(server, "/healthz")
    assert (status, kind) == (200, "application/json; charset=utf-8")
    assert json.loads(text) == {"alive": True, "problems": []}

    daemon.alive.append("the discovery loop stands still since 60 s")
    status, _, text = await get(server, "/healthz")
    assert status == 503
    assert json.loads(text) == {"alive": False, "problems": ["the discovery loop stands still since 60 s"]}


async def test_ready_when_no_component_has_a_problem(daemon: Daemon, server: TelemetryServer) -> None:
    daemon.ready = {"kubelet acme.example/card": "no stream is open", "driver acme": "", "api server": ""}
    status, _, text = await get(server, "/readyz")
    assert status == 503
    assert json.loads(text) == {
        "ready": False,
        "reasons": ["kubelet acme.example/card: no stream is open"],
        "components": daemon.ready,
    }

    daemon.ready = dict.fromkeys(daemon.ready, "")
    status, _, text = await get(server, "/readyz")
    assert status == 200
    assert json.loads(text)["ready"] is True


async def test_a_daemon_that_is_not_ready_is_still_alive(daemon: Daemon, server: TelemetryServer) -> None:
    daemon.ready = {"driver acme": "the card fell off the bus"}

    assert (await get(server, "/healthz"))[0] == 200


async def test_metrics_are_scraped_as_prometheus_does(daemon: Daemon, server: TelemetryServer) -> None:
    metrics = Metrics(daemon.registry, version="1.2.3")
    metrics.allocation("acme.example/card", "ok", 0.001)

    status, kind, text = await get(server, "/metrics", headers={"Accept": "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"})

    names = {family.name for family in text_string_to_metric_families(text)}
    assert status == 200
    assert kind.startswith("text/plain; version=0.0.4")
    assert {"hami_plugin_allocations", "hami_plugin_allocate_seconds", "hami_plugin_build_info"} <= names


async def test_what_must_be_asked_for_a_scrape_is_asked_for_no_probe(daemon: Daemon, server: TelemetryServer) -> None:
    await get(server, "/healthz")
    await get(server, "/readyz")
    assert daemon.refreshed == 0

    await get(server, "/metrics")

    assert daemon.refreshed == 1


async def test_openmetrics_is_spoken_to_those_who_ask(daemon: Daemon, server: TelemetryServer) -> None:
    Metrics(daemon.registry, version="1.2.3")

    _, kind, text = await get(server, "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})

    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize("accept", ["application/openmetrics-text;version=banana", "text/plain;version=x.y", ";;;,"])
async def test_an_accept_header_that_makes_no_sense_gets_an_answer(server: TelemetryServer, accept: str) -> None:
    status, _, _ = await get(server, "/metrics", headers={"Accept": accept})

    assert status == 200


async def test_the_configuration_in_force_is_shown(daemon: Daemon, server: TelemetryServer) -> None:
    daemon.configuration = {"nodeName": "n1", "vendors": {"acme": {"deviceSplitCount": 4}}}

    status, _, text = await get(server, "/debug/config")

    assert status == 200
    assert json.loads(text) == daemon.configuration


async def test_the_first_page_lists_the_others(server: TelemetryServer) -> None:
    status, _, text = await get(server, "/")

    assert status == 200
    for path in ("/healthz", "/readyz", "/metrics", "/debug/config"):
        assert path in text
        assert (await get(server, path))[0] == 200
        assert (await get(server, path, method="HEAD"))[0] == 200


async def test_nothing_else_is_served(server: TelemetryServer) -> None:
    assert (await get(server, "/etc/passwd"))[0] == 404
    assert (await get(server, "/metrics", method="POST"))[0] == 405


async def test_a_port_in_use_is_said_with_a_way_out(daemon: Daemon, server: TelemetryServer) -> None:
    second = daemon.server(port=server.port)

    with pytest.raises(HamiError) as caught:
        await second.start()

    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{server.port} for probes and metrics: another process uses this port; "
        "stop it, or choose another httpPort"
    )
    await second.stop()


async def test_an_address_of_another_machine_is_said_with_a_way_out(daemon: Daemon) -> None:
    with pytest.raises(HamiError, match=r"this machine does not have this address; set httpHost to 0.0.0.0"):
        await daemon.server(host="192.0.2.1").start()


async def test_a_name_that_means_nothing_is_said(daemon: Daemon) -> None:
    with pytest.raises(HamiError, match=r"cannot listen on no..such:0 for probes and metrics: .*; check httpHost"):
        await daemon.server(host="no..such").start()


async def test_stopping_frees_the_port_even_with_a_connection_open(daemon: Daemon) -> None:
    server = daemon.server()
    await server.start()
    port = server.port
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")  # and never the rest
    await writer.drain()

    async with asyncio.timeout(30):
        await server.stop()
        await server.stop()

    writer.close()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=30):
        pass


async def test_a_scrape_that_hangs_ends_with_the_server() -> None:
    asked = asyncio.Event()

    class Hanging(Daemon):
        async def refresh(self) -> None:
            asked.set()
            await asyncio.Event().wait()

    server = Hanging().server()
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    await asked.wait()

    await server.stop()

    assert await reader.read() == b""
    writer.close()


async def test_the_server_can_be_started_again(daemon: Daemon) -> None:
    server = daemon.server()
    for _ in range(2):
        await server.start()
        assert (await get(server, "/healthz"))[0] == 200
        await server.stop()
