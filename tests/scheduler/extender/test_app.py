"""The scheduler process from its start to its end, with decisions that are played."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

import hami_plugin.scheduler.extender.app
from hami_plugin.cluster.informer import Informer
from hami_plugin.errors import HamiError
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.scheduler.extender.app import Scheduler, SchedulerProcess, configured, serve
from hami_plugin.scheduler.extender.cache import NodeCache
from hami_plugin.scheduler.extender.extender import Decisions
from hami_plugin.scheduler.extender.metrics import SchedulerMetrics
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.certificates import Authority, Mount
from tests.support.extender import ARGS, BINDING, FakeExtender
from tests.support.node import until
from tests.support.scheduling import add_node
from tests.support.sleeping import Sleeping

OPEN = {"listen": "127.0.0.1:0", "http": "127.0.0.1:0"}


def scheduler(extender: FakeExtender, options: dict[str, object], file: Path, **section: object) -> Scheduler:
    file.write_text(json.dumps({"scheduler": section}))
    registry = CollectorRegistry()
    configuration = configured({**OPEN, **options, "config": file}, {})
    return Scheduler(configuration, Decisions(extender), SchedulerMetrics(registry, version=""), registry)


@asynccontextmanager
async def running(process: Scheduler) -> AsyncIterator[asyncio.Event]:
    stop = asyncio.Event()
    task = asyncio.create_task(process.run(stop))
    await until(lambda: (process.server.port and process.plain.port) or task.done())
    if task.done():
        await task
    yield stop
    stop.set()
    await asyncio.wait_for(task, 30)


async def asked(process: Scheduler, path: str, body: object = None, *, plain: bool = False) -> tuple[int, str]:
    port = process.plain.port if plain else process.server.port
    method = "GET" if body is None else "POST"
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
        session.request(method, f"http://127.0.0.1:{port}{path}", json=body) as answer,
    ):
        return answer.status, await answer.text()


async def test_calls_are_answered_on_one_port_and_probes_on_both(tmp_path: Path) -> None:
    extender = FakeExtender()
    process = scheduler(extender, {}, tmp_path / "c.json", lingerSeconds=0)
    async with running(process):
        assert (await asked(process, "/filter", ARGS))[0] == 200
        for plain in (False, True):
            assert (await asked(process, "/healthz", plain=plain))[0] == 200
            assert (await asked(process, "/readyz", plain=plain))[0] == 200
            assert "hami_plugin_scheduler_requests_total" in (await asked(process, "/metrics", plain=plain))[1]
            assert "can a pod be decided on" in (await asked(process, "/", plain=plain))[1]
        assert (await asked(process, "/filter", ARGS, plain=True))[0] == 404

    assert extender.ran


async def test_it_is_ready_when_its_decisions_are(tmp_path: Path) -> None:
    extender = FakeExtender(unready=("nodes: not listed yet", "pods: not listed yet"))
    process = scheduler(extender, {}, tmp_path / "c.json", lingerSeconds=0)
    async with running(process):
        status, text = await asked(process, "/readyz", plain=True)
        assert status == 503
        assert json.loads(text)["reasons"] == ["decisions: nodes: not listed yet; pods: not listed yet"]
        assert (await asked(process, "/healthz", plain=True))[0] == 200


async def test_told_to_stop_it_is_unready_at_once_and_still_answers_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extender = FakeExtender()
    process = scheduler(extender, {}, tmp_path / "c.json", lingerSeconds=0.5)
    over = asyncio.Event()
    monkeypatch.setattr(hami_plugin.scheduler.extender.app, "asyncio", Sleeping(lambda _seconds: over.wait()))
    async with running(process) as stop:
        stop.set()
        async with asyncio.timeout(30):
            while (await asked(process, "/readyz", plain=True))[0] != 503:
                pass

        assert "process: stopping" in (await asked(process, "/readyz", plain=True))[1]
        assert (await asked(process, "/bind", BINDING))[0] == 200
        assert not extender.ran
        over.set()


async def test_the_view_of_the_cluster_outlives_the_calls_that_need_it(tmp_path: Path) -> None:
    extender = FakeExtender(gate=asyncio.Event())
    process = scheduler(extender, {}, tmp_path / "c.json", lingerSeconds=0)
    async with running(process) as stop:
        call = asyncio.create_task(asked(process, "/bind", BINDING))
        await until(lambda: extender.running)
        stop.set()
        await asyncio.sleep(0.2)
        assert not extender.ran
        extender.gate.set()
        assert (await call)[0] == 200


async def test_a_view_that_breaks_ends_the_process_with_its_error(tmp_path: Path) -> None:
    process = scheduler(FakeExtender(dies=RuntimeError("a bug")), {}, tmp_path / "c.json")

    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(process.run(asyncio.Event()), 30)

    assert caught.group_contains(RuntimeError, match="a bug")
    with pytest.raises(aiohttp.ClientConnectorError):
        await asked(process, "/healthz")


def watch_of(kind: str):
    """A watch of this kind breaks in a way that is no part of the design, after its list."""
    run = Informer.run

    async def breaking(self: Informer[Any]) -> None:
        if self._topic.kind == kind:
            raise RuntimeError("a bug")
        await run(self)

    return Informer, "run", breaking


def broken(*_: Any) -> Any:
    raise RuntimeError("a bug")


async def ended(*_: Any) -> None:
    raise RuntimeError("a bug")


LOOPS = {
    "nodes": watch_of("nodes"),
    "pods": watch_of("pods"),
    "quotas": watch_of("resourcequotas"),
    "resync": (NodeCache, "checking_handshakes", broken),
    "events": (EventRecorder, "run", ended),
}


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_loop_of_the_scheduler_that_breaks_ends_the_process_and_the_log_names_it(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that went on would decide by what it knew then, for ever."""
    monkeypatch.setattr(*LOOPS[loop])
    async with SimulatedApiServer() as server:
        add_node(server)
        configuration = configured({"listen": "127.0.0.1:0", "http": "127.0.0.1:0"}, {})
        process = SchedulerProcess(
            configuration=configuration, kubeconfig=server.write_kubeconfig(tmp_path / "kubeconfig")
        )

        with capture_logs() as logs, pytest.raises(ExceptionGroup) as caught:
            await asyncio.wait_for(serve(process), 60)

    assert caught.group_contains(RuntimeError, match="a bug")
    assert [line["loop"] for line in logs if line["event"].startswith("a loop of the scheduler broke")] == [loop]
    (port,) = (line["port"] for line in logs if line["event"] == "listening")
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"http://127.0.0.1:{port}/healthz")


async def test_a_new_certificate_is_presented_without_being_told(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    authority = Authority(tmp_path / "made")
    mount = Mount(tmp_path / "tls", authority.pair("first"))
    options = {"tls_cert": mount.files.certificate, "tls_key": mount.files.key}
    process = scheduler(FakeExtender(), options, tmp_path / "c.json", lingerSeconds=0, reloadSeconds=0.05)
    trust = ssl.create_default_context(cafile=str(authority.certificate))

    async def serial() -> str:
        _, writer = await asyncio.open_connection("127.0.0.1", process.server.port, ssl=trust)
        number = writer.get_extra_info("peercert")["serialNumber"]
        writer.close()
        await writer.wait_closed()
        return str(number)

    async with running(process):
        before = await serial()
        mount.swap(authority.pair("second"))
        async with asyncio.timeout(30):
            while await serial() == before:
                pass


@pytest.mark.parametrize("missing", ["tls_cert", "tls_key"])
def test_half_a_pair_is_refused_with_the_missing_key(tmp_path: Path, missing: str) -> None:
    given = {"tls_cert": tmp_path / "crt", "tls_key": tmp_path / "key"}

    with pytest.raises(HamiError, match={"tls_cert": "tlsCert", "tls_key": "tlsKey"}[missing] + " is missing"):
        configured({name: path for name, path in given.items() if name != missing}, {})


def test_the_daemons_file_serves_the_scheduler_too_and_flags_outrank_it(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"scheduler": {"name": "ours", "gpuSchedulerPolicy": "binpack", "listenPort": 1}}))

    settings = configured({"config": file, "gpu_scheduler_policy": "numa", "listen": "[::1]:2"}, {}).settings.scheduler

    assert (settings.name, settings.device_order) == ("ours", "numa")
    assert (settings.listen_host, settings.listen_port) == ("::1", 2)


def test_a_bad_address_is_refused_in_the_words_of_the_file() -> None:
    with pytest.raises(HamiError, match=r"scheduler\.listenPort"):
        configured({"listen": "0.0.0.0:many"}, {})


@pytest.mark.parametrize("order", ["spred", "spread,", "binpack numa", ""])
def test_an_order_that_nobody_knows_is_refused_with_those_there_are(order: str) -> None:
    with pytest.raises(HamiError, match=r"gpuSchedulerPolicy: .*choose from: spread, binpack, topology-aware"):
        configured({"gpu_scheduler_policy": order}, {})


def test_orders_may_be_chained() -> None:
    settings = configured({"gpu_scheduler_policy": "numa, topology-aware,binpack"}, {}).settings.scheduler

    assert settings.device_order == "numa, topology-aware,binpack"


def test_an_authority_of_clients_needs_tls(tmp_path: Path) -> None:
    with pytest.raises(HamiError, match="clientCa needs TLS"):
        configured({"client_ca": tmp_path / "ca.crt"}, {})
    with pytest.raises(HamiError, match="webhookClientCa needs TLS"):
        configured({"webhook_client_ca": tmp_path / "ca.crt"}, {})
    with pytest.raises(HamiError, match="webhookClientNames needs webhookClientCa"):
        configured({"webhook_client_name": ("kube-apiserver",)}, {})


async def test_once_pods_can_be_decided_on_and_not_before_the_process_is_told(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(hami_plugin.scheduler.extender.app, "SYNC_CHECK_S", 0.01)
    extender, told = FakeExtender(unready=("no list",)), []
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"scheduler": {"lingerSeconds": 0}}))
    registry = CollectorRegistry()
    process = Scheduler(
        configured({**OPEN, "config": file}, {}),
        Decisions(extender),
        SchedulerMetrics(registry, version=""),
        registry,
        ready=lambda: told.append(extender.unready),
    )
    async with running(process):
        await asked(process, "/readyz")
        assert told == []
        extender.unready = ()
        await until(lambda: told)

    assert told == [()]
