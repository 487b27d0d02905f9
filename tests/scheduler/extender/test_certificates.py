"""TLS on the port: what is presented, and what happens when the files are replaced."""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from hami_plugin.errors import HamiError
from hami_plugin.scheduler.extender.certificates import Certificates
from hami_plugin.scheduler.extender.metrics import SchedulerMetrics
from tests.support.certificates import Authority, Files, Mount
from tests.support.extender import ARGS, REVIEW, FakeExtender, Rig, listening, other_address
from tests.support.node import until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def first(authority: Authority) -> Files:
    return authority.pair("first")


@pytest.fixture(scope="module")
def second(authority: Authority) -> Files:
    return authority.pair("second", kind="rsa")


@pytest.fixture
def trust(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.certificate))


class Served(Rig):
    """A server with TLS, the files of its certificate, and whoever follows them."""

    certificates: Certificates

    async def presented(self, trust: ssl.SSLContext) -> str:
        """The fingerprint that a new handshake is given."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.server.port, ssl=trust)
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()
        return hashlib.sha256(der).hexdigest()

    async def look(self) -> None:
        await self.certificates.check(self.server.present)


@asynccontextmanager
async def served(
    files: Files,
    trust: ssl.SSLContext,
    extender: FakeExtender | None = None,
    client_ca: Path | None = None,
    webhook_ca: Path | None = None,
    **changes: object,
) -> AsyncIterator[Served]:
    registry = CollectorRegistry()
    metrics = SchedulerMetrics(registry, version="")
    if webhook_ca:
        changes |= {"webhook_client_ca": webhook_ca, "tls_cert": files.certificate, "tls_key": files.key}
    certificates = Certificates(
        files.certificate, files.key, client_ca=client_ca, webhook_ca=webhook_ca, metrics=metrics
    )
    context = certificates.load().context
    async with listening(
        extender or FakeExtender(), context=context, trust=trust, registry=registry, metrics=metrics, **changes
    ) as rig:
        found = Served(rig.server, rig.registry, rig.session, rig.scheme)
        found.certificates = certificates
        yield found


@pytest.fixture
def mount(tmp_path: Path, first: Files) -> Mount:
    return Mount(tmp_path / "tls", first)


async def test_calls_and_probes_are_answered_over_tls(first: Files, trust: ssl.SSLContext) -> None:
    async with served(first, trust) as rig:
        assert (await rig.post("/filter", ARGS))[0] == 200
        assert (await rig.get("/readyz"))[0] == 200


async def test_without_tls_the_port_is_not_for_anybody(first: Files, trust: ssl.SSLContext) -> None:
    async with served(first, trust) as rig, aiohttp.ClientSession() as plain:
        with pytest.raises(aiohttp.ClientError):
            await plain.post(rig.url("/filter").replace("https", "http"), json=ARGS)


async def test_old_versions_of_tls_are_refused(first: Files, authority: Authority) -> None:
    old = ssl.create_default_context(cafile=str(authority.certificate))
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    async with served(first, ssl.create_default_context(cafile=str(authority.certificate))) as rig:
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await rig.presented(old)


async def test_new_handshakes_are_given_the_new_certificate_of_another_kind_too(
    authority: Authority, mount: Mount, first: Files, second: Files, trust: ssl.SSLContext
) -> None:
    async with served(mount.files, trust) as rig:
        for now in (first, second, first):
            mount.swap(now)
            await rig.look()

            assert {await rig.presented(trust) for _ in range(5)} == {authority.fingerprint(now)}


async def test_a_connection_that_is_open_survives_a_new_certificate(
    mount: Mount, second: Files, trust: ssl.SSLContext
) -> None:
    extender = FakeExtender(gate=asyncio.Event())
    async with served(mount.files, trust, extender) as rig:
        call = asyncio.create_task(rig.post("/filter", ARGS))
        await until(lambda: extender.running)
        mount.swap(second)
        await rig.look()
        extender.gate.set()

        assert (await call)[0] == 200


async def test_no_request_fails_while_certificates_are_replaced(
    authority: Authority, mount: Mount, first: Files, second: Files, trust: ssl.SSLContext
) -> None:
    """Half of the callers keep their connection, half make a new one for each call."""
    async with served(mount.files, trust) as rig:
        done, rounds = asyncio.Event(), 12

        statuses: list[int] = []

        async def call(*, again: bool) -> None:
            connector = aiohttp.TCPConnector(ssl=trust, force_close=again)
            async with aiohttp.ClientSession(connector=connector) as session:
                while not done.is_set():
                    async with session.post(rig.url("/filter"), json=ARGS) as answer:
                        await answer.read()
                        statuses.append(answer.status)

        calls = [asyncio.create_task(call(again=bool(k % 2))) for k in range(8)]
        for k in range(rounds):
            await until(lambda k=k: len(statuses) > 20 * k)
            mount.swap((second, first)[k % 2])
            await rig.look()
        done.set()
        await asyncio.gather(*calls)

        assert set(statuses) == {200}
        assert await rig.counted("certificate_reloads_total", outcome="ok") == rounds
        assert await rig.presented(trust) == authority.fingerprint(first)


def shown(authority: Authority, client: Files | None) -> aiohttp.TCPConnector:
    """A client that trusts the authority, does not mind the name, and shows a certificate if it has one."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.check_hostname = False
    if client:
        context.load_cert_chain(client.certificate, client.key)
    return aiohttp.TCPConnector(ssl=context)


async def test_from_another_host_a_certificate_of_the_clients_authority_opens_the_extender(
    authority: Authority, mount: Mount, first: Files, trust: ssl.SSLContext, tmp_path: Path
) -> None:
    clients, others = (Authority(tmp_path / name) for name in ("clients", "others"))
    async with served(mount.files, trust, None, clients.certificate, listen_host="0.0.0.0") as rig:
        url = f"https://{other_address()}:{rig.server.port}"

        async def status(client: Files | None, path: str = "/filter") -> int:
            async with (
                aiohttp.ClientSession(connector=shown(authority, client)) as session,
                session.post(url + path, json=ARGS if path == "/filter" else REVIEW) as answer,
            ):
                return answer.status

        assert await status(clients.pair("scheduler")) == 200
        assert await status(None) == 403
        assert await status(None, "/webhook") == 200
        with pytest.raises(aiohttp.ClientError):
            await status(others.pair("stranger"))
        assert (await rig.post("/filter", ARGS))[0] == 200


@pytest.fixture
def asking(authority: Authority):
    """Ask a path with a client certificate, if there is one: the status, and what is said."""

    async def asked(url: str, path: str, client: Files | None) -> tuple[int, str]:
        body = ARGS if path == "/filter" else REVIEW
        async with (
            aiohttp.ClientSession(connector=shown(authority, client)) as session,
            session.post(url + path, json=body) as answer,
        ):
            return answer.status, await answer.text()

    return asked


async def test_a_webhook_with_an_authority_answers_whom_that_has_signed_for_and_nobody_else(
    mount: Mount, trust: ssl.SSLContext, tmp_path: Path, asking
) -> None:
    servers, clients = Authority(tmp_path / "servers"), Authority(tmp_path / "clients")
    async with served(mount.files, trust, None, clients.certificate, servers.certificate, listen_host="0.0.0.0") as rig:
        url = f"https://{other_address()}:{rig.server.port}"

        assert (await asking(url, "/webhook", servers.pair("kube-apiserver")))[0] == 200
        for stranger in (None, clients.pair("scheduler")):
            status, said = await asking(url, "/webhook", stranger)
            assert status == 403
            assert "client certificate of webhookClientCa" in said
            assert "--admission-control-config-file" in said
        assert (await asking(url, "/filter", clients.pair("scheduler")))[0] == 200
        assert (await asking(url, "/filter", servers.pair("kube-apiserver")))[0] == 403
        assert (await rig.get("/readyz"))[0] == 200
        assert (await rig.post("/filter", ARGS))[0] == 200
        assert (await rig.post("/webhook", REVIEW))[0] == 403


async def test_of_an_authority_that_signs_for_many_the_names_that_may_ask_can_be_said(
    mount: Mount, trust: ssl.SSLContext, tmp_path: Path, asking
) -> None:
    servers = Authority(tmp_path / "servers")
    names = {"webhook_client_names": ("kube-apiserver",)}
    async with served(mount.files, trust, None, None, servers.certificate, **names) as rig:
        url = f"https://127.0.0.1:{rig.server.port}"

        assert (await asking(url, "/webhook", servers.pair("kube-apiserver")))[0] == 200
        status, said = await asking(url, "/webhook", servers.pair("kubelet"))

    assert status == 403
    assert "is for kube-apiserver (webhookClientNames), not for 'kubelet'" in said


async def test_a_new_authority_for_the_webhook_counts_from_then_on(
    mount: Mount, trust: ssl.SSLContext, tmp_path: Path, asking
) -> None:
    before, after = Authority(tmp_path / "before"), Authority(tmp_path / "after")
    file = tmp_path / "webhook.crt"
    file.write_bytes(before.certificate.read_bytes())
    async with served(mount.files, trust, None, None, file) as rig:
        url = f"https://127.0.0.1:{rig.server.port}"
        file.write_bytes(after.certificate.read_bytes())
        await rig.look()

        assert (await asking(url, "/webhook", after.pair("kube-apiserver")))[0] == 200
        with pytest.raises(aiohttp.ClientError):
            await asking(url, "/webhook", before.pair("kube-apiserver"))


def test_two_authorities_of_one_name_are_refused_since_their_certificates_cannot_be_told_apart(
    first: Files, tmp_path: Path
) -> None:
    one, other = (Authority(tmp_path / name, unit="the same") for name in ("one", "other"))
    certificates = Certificates(
        first.certificate,
        first.key,
        client_ca=one.certificate,
        webhook_ca=other.certificate,
        metrics=SchedulerMetrics(CollectorRegistry(), version=""),
    )

    with pytest.raises(HamiError, match=r"two authorities of one name, .*the same"):
        certificates.load()


def _mixed(first: Files, second: Files, folder: Path) -> Files:
    return Files(first.certificate, second.key)


def _cut(first: Files, _second: Files, folder: Path) -> Files:
    cut = folder / "cut.crt"
    cut.write_bytes(first.certificate.read_bytes()[:200])
    return Files(cut, first.key)


def _empty(first: Files, _second: Files, folder: Path) -> Files:
    empty = folder / "empty"
    empty.write_bytes(b"")
    return Files(empty, empty)


@pytest.mark.parametrize("broken", [_mixed, _cut, _empty])
async def test_a_broken_pair_leaves_the_old_one_and_is_told_once(
    authority: Authority, mount: Mount, first: Files, second: Files, trust: ssl.SSLContext, tmp_path: Path, broken
) -> None:
    async with served(mount.files, trust) as rig:
        mount.swap(broken(first, second, tmp_path))
        for _ in range(3):
            await rig.look()

        assert await rig.presented(trust) == authority.fingerprint(first)
        assert await rig.counted("certificate_reloads_total", outcome="failed") == 1
        assert await rig.counted("certificate_stale") == 1
        assert "are no pair for TLS" in rig.certificates.problem
        assert str(mount.files.certificate) in rig.certificates.problem

        mount.swap(second)
        await rig.look()

        assert await rig.presented(trust) == authority.fingerprint(second)
        assert rig.certificates.problem == ""
        assert await rig.counted("certificate_stale") == 0


async def test_files_that_vanish_for_a_while_do_no_harm(
    authority: Authority, mount: Mount, first: Files, second: Files, trust: ssl.SSLContext
) -> None:
    async with served(mount.files, trust) as rig:
        mount.files.key.unlink()
        await rig.look()
        assert await rig.presented(trust) == authority.fingerprint(first)

        mount.files.key.symlink_to(Path("..data") / "tls.key")
        mount.swap(second)
        await rig.look()
        assert await rig.presented(trust) == authority.fingerprint(second)


async def test_a_new_certificate_that_has_expired_is_refused(
    authority: Authority, mount: Mount, first: Files, trust: ssl.SSLContext
) -> None:
    async with served(mount.files, trust) as rig:
        mount.swap(authority.pair("past", days=-1))
        await rig.look()

        assert await rig.presented(trust) == authority.fingerprint(first)
        assert "has expired" in rig.certificates.problem


async def test_the_expiry_is_the_one_of_the_certificate_that_is_presented(
    authority: Authority, mount: Mount, first: Files, trust: ssl.SSLContext
) -> None:
    longer = authority.pair("longer", days=40)
    async with served(mount.files, trust) as rig:
        for pair in (first, longer):
            mount.swap(pair)
            await rig.look()

            wanted = authority.ends(pair).timestamp()
            assert await rig.counted("certificate_expiry_timestamp_seconds") == wanted


async def test_the_follower_finds_a_new_certificate_by_itself(
    authority: Authority, mount: Mount, second: Files, trust: ssl.SSLContext
) -> None:
    async with served(mount.files, trust) as rig:
        following = asyncio.create_task(rig.certificates.follow(rig.server.present, every=0.05))
        mount.swap(second)
        async with asyncio.timeout(30):
            while await rig.presented(trust) != authority.fingerprint(second):  # noqa: ASYNC110  # as clients see it
                await asyncio.sleep(0.05)
        following.cancel()


async def test_files_that_cannot_be_read_in_time_are_a_problem_until_they_can(
    authority: Authority, mount: Mount, metrics: SchedulerMetrics, tmp_path: Path
) -> None:
    certificates = Certificates(mount.files.certificate, mount.files.key, metrics=metrics, timeout=0.2)
    certificates.load()
    stuck = tmp_path / "stuck.crt"
    os.mkfifo(stuck)
    good, certificates._files = certificates._files, (stuck, mount.files.key)

    async def nobody(_context: ssl.SSLContext) -> None:
        raise AssertionError

    async with asyncio.timeout(30):
        await certificates.check(nobody)
    assert "stuck.crt cannot be read: no answer within 0.2 s" in certificates.problem

    certificates._files, certificates._patience = good, 30.0
    stuck.write_text("", encoding="ascii")
    await certificates.check(nobody)
    assert certificates.problem == ""


@pytest.fixture
def certificates(metrics: SchedulerMetrics) -> Iterator[object]:
    def of(files: Files) -> Certificates:
        return Certificates(files.certificate, files.key, metrics=metrics)

    return of


@pytest.fixture
def metrics() -> SchedulerMetrics:
    return SchedulerMetrics(CollectorRegistry(), version="")


def test_a_start_without_a_usable_pair_says_why(
    authority: Authority, first: Files, second: Files, certificates, tmp_path: Path
) -> None:
    for files, words in (
        (Files(first.certificate, second.key), "are no pair for TLS: the key is another certificate's"),
        (Files(tmp_path / "none.crt", first.key), "none.crt|No such file"),
        (Files(second.certificate, authority.pair("other", kind="rsa").key), "the key is another certificate's"),
        (authority.pair("hidden", password="secret"), "without a password"),
    ):
        with pytest.raises(HamiError, match=words):
            certificates(files).load()


def test_a_start_with_an_expired_certificate_goes_on_since_kube_scheduler_may_not_mind(
    authority: Authority, certificates
) -> None:
    assert certificates(authority.pair("gone", days=-1)).load().expires < datetime.now(tz=UTC)
