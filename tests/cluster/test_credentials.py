"""Where the address and the token come from, and what is said when they do not."""

import asyncio
import base64
import dataclasses
import json
import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from hami_plugin.cluster import requests
from hami_plugin.cluster.client import connect
from hami_plugin.errors import ClusterError, ConfigError
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.certificates import Authority
from tests.support.watching import Pods, manifest, running

FOREIGN = ("kubernetes", "requests", "oauthlib", "websocket", "aiohttp_retry")
"""What the package stands on comes with it."""


def replace(path: Path, text: str) -> None:
    """As the kubelet does: a new file under the old name."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


@pytest.fixture
def certificate(tmp_path):
    """A certificate for 127.0.0.1, and its key; who signed it is in ``ca.crt``, as for a service account."""
    authority = Authority(tmp_path / "made")
    shutil.copy(authority.certificate, tmp_path / "ca.crt")
    pair = authority.pair("simulated")
    return pair.certificate, pair.key


@pytest.mark.scenario("P8")
async def test_a_rotated_token_file_is_read_again_and_no_call_fails(server, timing, observer, tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    server.trust("first")
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig", token_file=token)

    async with connect("n1", kubeconfig=kubeconfig, timing=timing, observer=observer) as cluster:
        await cluster.get_node()
        replace(token, "second\n")
        server.trust("second")
        await cluster.patch_node({"a": "1"})

    assert [outcome for _, _, outcome in observer.calls] == ["200", "200"]
    assert server.node("n1")["metadata"]["annotations"] == {"a": "1"}


@pytest.mark.scenario("P8")
async def test_a_token_that_stays_refused_is_forbidden_until_it_is_replaced(server, timing, tmp_path):
    token = tmp_path / "token"
    token.write_text("old")
    server.trust("new")
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig", token_file=token)

    async with connect("n1", kubeconfig=kubeconfig, timing=timing) as cluster:
        with pytest.raises(ClusterError, match="check that the service account exists") as caught:
            await cluster.get_node()
        refused = cluster.reachable.value
        replace(token, "new")
        await cluster.get_node()

        assert caught.value.status == 401
        assert refused.startswith("APIForbidden: get nodes n1: 401 Unauthorized")
        assert cluster.reachable.value == ""


async def test_a_pod_uses_its_service_account_over_tls_and_follows_its_token(certificate, timing, observer, tmp_path):
    (tmp_path / "token").write_text("first\n")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)

    async with SimulatedApiServer(ssl=context) as server:
        server.create_node("n1")
        server.trust("first")
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": server.url.rpartition(":")[2]}
        within = connect("n1", timing=timing, observer=observer, environ=environ, service_account=tmp_path)
        async with within as cluster:
            await cluster.get_node()
            replace(tmp_path / "token", "second\n")
            server.trust("second")
            await cluster.get_node()
            (tmp_path / "token").unlink()
            await cluster.get_node()

    assert [outcome for _, _, outcome in observer.calls] == ["200"] * 3
    assert [request.status for request in server.requests] == [200] * 3


async def test_a_server_with_a_foreign_certificate_is_not_trusted(certificate, timing, tmp_path):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)

    async with SimulatedApiServer(ssl=context) as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig", token="secret")
        async with connect("n1", kubeconfig=kubeconfig, timing=timing) as cluster:
            with pytest.raises(ClusterError, match="certificate") as caught:
                await cluster.get_node()

    assert caught.value.status == 0
    assert not server.requests


async def test_the_kubeconfig_variable_is_used_when_no_path_is_given(server, timing, tmp_path):
    path = server.write_kubeconfig(tmp_path / "kubeconfig")

    async with connect("n1", timing=timing, environ={"KUBECONFIG": str(path)}) as cluster:
        assert (await cluster.get_node()).name == "n1"


async def refusal(**arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        async with connect("n1", **arguments):
            pass
    return str(caught.value)


async def test_no_credentials_at_all_names_the_three_ways():
    said = await refusal(environ={})

    assert "KUBECONFIG" in said
    assert "KUBERNETES_SERVICE_HOST" in said
    assert "--kubeconfig" in said


async def test_a_kubeconfig_that_is_missing_is_named(tmp_path):
    assert f"'{tmp_path / 'absent'}': no such file" in await refusal(kubeconfig=tmp_path / "absent", environ={})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just words",
        "[1, 2]",
        "a: [",
        "clusters: {}",
        "current-context: here\nclusters: []\nusers: []\ncontexts: []\n",
        "current-context: c\ncontexts: [{name: c, context: {cluster: x, user: u}}]\nclusters: []\nusers: []\n",
    ],
)
async def test_a_kubeconfig_that_is_malformed_is_named(tmp_path, text):
    path = tmp_path / "kubeconfig"
    path.write_text(text)

    assert f"kubeconfig '{path}' cannot be used" in await refusal(kubeconfig=path, environ={})


async def test_a_service_account_that_is_not_mounted_is_named(tmp_path):
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}

    said = await refusal(environ=environ, service_account=tmp_path)

    assert str(tmp_path) in said
    assert "automountServiceAccountToken" in said


async def test_a_ca_that_is_no_certificate_is_named(tmp_path):
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("not a certificate")
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}

    assert "certificates for the API server" in await refusal(environ=environ, service_account=tmp_path)


def test_the_kubernetes_package_is_not_loaded_where_no_plugin_is_asked():
    modules = "hami_plugin.daemon.app, hami_plugin.scheduler.extender.app"
    code = f"import sys, {modules}; print([m for m in sys.modules if m.split('.')[0] in {FOREIGN}])"

    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("module", ["hami_plugin.daemon.app", "hami_plugin.scheduler.extender.app"])
def test_no_authorities_of_the_system_are_read_where_nobody_asks_for_them(module, certificate, tmp_path):
    """aiohttp reads them twice when it is imported: they cost each process 40 ms and some memory."""
    trusted = "[c.cert_store_stats()['x509'] for c in gc.get_objects() if isinstance(c, ssl.SSLContext)]"
    code = f"import gc, os, ssl, {module}; print({trusted}, os.environ['SSL_CERT_FILE'], 'SSL_CERT_DIR' in os.environ)"
    environment = {key: value for key, value in os.environ.items() if key != "SSL_CERT_DIR"}
    environment["SSL_CERT_FILE"] = authority = str(tmp_path / "ca.crt")

    words = [sys.executable, "-c", code]
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)

    assert done.stdout == f"[0, 0] {authority} False\n"


def _config(url, user, **cluster):
    return {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }


async def _seen(server, path, timing):
    """The header that a call by this kubeconfig arrives with."""
    headers = []
    server.observe(lambda request: headers.append(request.headers.get("Authorization")))
    async with connect("n1", kubeconfig=path, timing=timing, environ={}) as cluster:
        await cluster.get_node()
    return headers[0]


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({}, None),
        ({"token": "given"}, "Bearer given"),
        ({"tokenFile": "beside"}, "Bearer of the file"),
        ({"token": "given", "tokenFile": "beside"}, "Bearer given"),
        ({"username": "me", "password": "pass"}, "Basic bWU6cGFzcw=="),
        ({"token": 12345}, "Bearer 12345"),
    ],
)
async def test_a_kubeconfigs_user_is_who_we_are(server, timing, tmp_path, user, header):
    (tmp_path / "beside").write_text("of the file\n")
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(_config(server.url, user)))

    assert await _seen(server, path, timing) == header


async def test_a_users_credential_plugin_is_run(server, timing, tmp_path):
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    (tmp_path / "answer").write_text(json.dumps({**credential, "status": {"token": "from the plugin"}}))
    called = {"apiVersion": credential["apiVersion"], "command": "cat", "args": [str(tmp_path / "answer")]}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(_config(server.url, {"exec": {**called, "interactiveMode": "Never"}})))

    assert await _seen(server, path, timing) == "Bearer from the plugin"


async def test_of_several_kubeconfigs_what_is_there_first_counts(server, timing, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(json.dumps({"users": [{"name": "u", "user": {"token": "of the first"}}]}))
    second.write_text(json.dumps(_config(server.url, {"token": "of the second"})))
    files = f"{tmp_path / 'absent'}:{first}:{second}"

    async with connect("n1", timing=timing, environ={"KUBECONFIG": files}) as cluster:
        server.trust("of the first")
        assert (await cluster.get_node()).name == "n1"


async def test_certificates_that_a_kubeconfig_holds_itself_are_used_and_left_nowhere(timing, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    rotating = Rotating(tmp_path)
    servers, clients_ = rotating.authority(), rotating.authority()
    pair = clients_.pair("client")

    def data(path):
        return base64.b64encode(path.read_bytes()).decode()

    user = {"client-certificate-data": data(pair.certificate), "client-key-data": data(pair.key)}
    async with rotating.serve(servers, clients=clients_) as server:
        config = _config(server.url, user, **{"certificate-authority-data": data(servers.certificate)})
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        async with connect("n1", kubeconfig=tmp_path / "kubeconfig", timing=timing, environ={}) as cluster:
            assert (await cluster.get_node()).name == "n1"

    assert not list((tmp_path / "temporary").iterdir())


async def test_a_server_that_need_not_be_verified_is_not(certificate, timing, tmp_path):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    path = tmp_path / "kubeconfig"

    async with SimulatedApiServer(ssl=context) as server:
        server.create_node("n1")
        path.write_text(json.dumps(_config(server.url, {}, **{"insecure-skip-tls-verify": True})))
        async with connect("n1", kubeconfig=path, timing=timing, environ={}) as cluster:
            assert (await cluster.get_node()).name == "n1"


async def test_the_certificate_must_be_for_the_name_that_the_kubeconfig_tells(certificate, timing, tmp_path):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    path = tmp_path / "kubeconfig"
    trusted = {"certificate-authority": str(tmp_path / "ca.crt")}

    async with SimulatedApiServer(ssl=context) as server:
        server.create_node("n1")
        for name, fits in (("127.0.0.1", True), ("another.example", False)):
            path.write_text(json.dumps(_config(server.url, {}, **trusted, **{"tls-server-name": name})))
            async with connect("n1", kubeconfig=path, timing=timing, environ={}) as cluster:
                if fits:
                    assert (await cluster.get_node()).name == "n1"
                else:
                    with pytest.raises(ClusterError, match=r"another\.example"):
                        await cluster.get_node()


@pytest.mark.parametrize("way", ["the environment", "the kubeconfig"])
async def test_calls_go_through_the_proxy(server, timing, tmp_path, monkeypatch, way):
    """A proxy for plain HTTP is sent the whole address: the simulated server answers it as it is."""
    path = tmp_path / "kubeconfig"
    away = "http://api.example:6443"
    path.write_text(json.dumps(_config(away, {}, **({"proxy-url": server.url} if "kube" in way else {}))))
    if "env" in way:
        monkeypatch.setenv("http_proxy", server.url)
    asked = []
    server.observe(lambda request: asked.append(request.headers["Host"]))

    async with connect("n1", kubeconfig=path, timing=timing, environ={}) as cluster:
        assert (await cluster.get_node()).name == "n1"
    assert asked == ["api.example:6443"]


async def test_a_proxy_with_tls_is_trusted_by_the_authorities_of_the_system(timing, tmp_path, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    path = tmp_path / "kubeconfig"
    async with SimulatedApiServer(bookmark_seconds=0.1, ssl=context) as server:
        server.create_node("n1")
        path.write_text(json.dumps(_config("http://api.example:6443", {}, **{"proxy-url": server.url})))

        async with connect("n1", kubeconfig=path, timing=timing, environ={}) as cluster:
            assert (await cluster.get_node()).name == "n1"


async def test_a_host_that_the_environment_excepts_is_asked_without_the_proxy(server, timing, tmp_path, monkeypatch):
    path = server.write_kubeconfig(tmp_path / "kubeconfig")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    async with connect("n1", kubeconfig=path, timing=timing, environ={}) as cluster:
        assert (await cluster.get_node()).name == "n1"


class Rotating:
    """A simulated API server whose certificate is replaced, on one port; and the account that trusts it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port = 0
        self._made = 0

    def authority(self) -> Authority:
        self._made += 1
        return Authority(self.folder / f"authority-{self._made}")

    def serve(self, authority: Authority, *, clients: Authority | None = None) -> SimulatedApiServer:
        """A server with a new certificate of this authority, which may want its clients' to be of another."""
        pair = authority.pair(f"server-{self._made}")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pair.certificate, pair.key)
        if clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(clients.certificate)
        server = SimulatedApiServer(port=self._port, ssl=context)
        server.create_node("n1")
        return server

    def trust(self, authority: Authority) -> None:
        replace(self.folder / "ca.crt", authority.certificate.read_text())

    def environ(self, server: SimulatedApiServer) -> dict[str, str]:
        self._port = int(server.url.rpartition(":")[2])
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self._port)}


async def test_a_clusters_authority_that_is_replaced_on_disk_is_picked_up(timing, observer, tmp_path):
    """The kubelet replaces the file; the server presents a certificate that only the new authority vouches for."""
    (tmp_path / "token").write_text("t")
    rotating = Rotating(tmp_path)
    old, new = rotating.authority(), rotating.authority()
    rotating.trust(old)
    async with rotating.serve(old) as server:
        environ = rotating.environ(server)
        connecting = connect("n1", timing=timing, observer=observer, environ=environ, service_account=tmp_path)
        cluster = await connecting.__aenter__()
        await cluster.get_node()
    try:
        async with rotating.serve(new) as server:
            with pytest.raises(ClusterError, match="certificate"):
                await cluster.get_node()
            rotating.trust(new)
            assert (await cluster.get_node()).name == "n1"
            pods = Pods()
            async with running(cluster.follow_pods(pods.feed)):
                await pods.until(lambda pods: pods.replaced)
        async with rotating.serve(old):
            with pytest.raises(ClusterError, match="certificate"):  # what is no longer in the file is not trusted
                await cluster.get_node()
    finally:
        await connecting.__aexit__(None, None, None)


async def test_a_watch_goes_on_when_the_client_that_it_began_with_has_left(timing, tmp_path):
    """A watch outlasts the calls that the old certificates are kept for."""
    (tmp_path / "token").write_text("t")
    rotating = Rotating(tmp_path)
    authority, another = rotating.authority(), rotating.authority()
    rotating.trust(authority)
    brief = dataclasses.replace(timing, deadline=0.5)
    async with rotating.serve(authority) as server:
        environ, pods = rotating.environ(server), Pods()
        within = connect("n1", timing=brief, environ=environ, service_account=tmp_path)
        async with within as cluster, running(cluster.follow_pods(pods.feed)):
            await pods.until(lambda pods: pods.replaced)
            both = authority.certificate.read_text() + another.certificate.read_text()
            replace(tmp_path / "ca.crt", both)
            await cluster.get_node()
            await asyncio.sleep(2 * brief.deadline)  # until the old client has left

            server.create_pod(manifest("later"))

            await pods.until(lambda pods: "later" in pods.names)


async def test_a_file_that_is_written_anew_with_the_same_content_makes_no_new_client(timing, tmp_path, monkeypatch):
    """The kubelet replaces the authority's file with each token, about hourly."""
    made = []
    client = requests.Client
    monkeypatch.setattr(requests, "Client", lambda *given: made.append(1) or client(*given))
    (tmp_path / "token").write_text("t")
    rotating = Rotating(tmp_path)
    authority = rotating.authority()
    rotating.trust(authority)
    async with rotating.serve(authority) as server:
        environ = rotating.environ(server)
        async with connect("n1", timing=timing, environ=environ, service_account=tmp_path) as cluster:
            for _ in range(3):
                await cluster.get_node()
                rotating.trust(authority)

    assert len(made) == 1


async def test_a_file_that_is_half_written_leaves_the_last_authority_in_use(timing, tmp_path):
    (tmp_path / "token").write_text("t")
    rotating = Rotating(tmp_path)
    authority = rotating.authority()
    rotating.trust(authority)
    async with rotating.serve(authority) as server:
        environ = rotating.environ(server)
        async with connect("n1", timing=timing, environ=environ, service_account=tmp_path) as cluster:
            await cluster.get_node()
            for text in ("-----BEGIN CERTI", ""):
                replace(tmp_path / "ca.crt", text)
                assert (await cluster.get_node()).name == "n1"
            (tmp_path / "ca.crt").unlink()
            assert (await cluster.get_node()).name == "n1"
            rotating.trust(authority)
            assert (await cluster.get_node()).name == "n1"


def _kubeconfig(path: Path, url: str, authority: Authority, files) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority": str(authority.certificate)}}],
        "users": [{"name": "u", "user": {"client-certificate": str(files.certificate), "client-key": str(files.key)}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    replace(path, json.dumps(config))
    return path


@pytest.mark.parametrize("way", ["the files", "the kubeconfig"])
async def test_a_clients_certificate_that_is_replaced_on_disk_is_presented(timing, tmp_path, way):
    rotating = Rotating(tmp_path)
    servers, old, new = rotating.authority(), rotating.authority(), rotating.authority()
    used, fresh = old.pair("client"), new.pair("client")
    path = tmp_path / "kubeconfig"
    async with rotating.serve(servers, clients=old) as server:
        rotating.environ(server)
        connecting = connect("n1", kubeconfig=_kubeconfig(path, server.url, servers, used), timing=timing, environ={})
        cluster = await connecting.__aenter__()
        await cluster.get_node()
    try:
        async with rotating.serve(servers, clients=new) as server:
            with pytest.raises(ClusterError):
                await cluster.get_node()
            if way == "the files":
                replace(used.key, fresh.key.read_text())
                replace(used.certificate, fresh.certificate.read_text())
            else:
                _kubeconfig(path, server.url, servers, fresh)
            assert (await cluster.get_node()).name == "n1"
    finally:
        await connecting.__aexit__(None, None, None)


async def test_a_server_that_is_not_trusted_costs_no_new_client_for_each_call(timing, tmp_path, monkeypatch):
    made = []
    client = requests.Client
    monkeypatch.setattr(requests, "Client", lambda *given: made.append(1) or client(*given))
    (tmp_path / "token").write_text("t")
    rotating = Rotating(tmp_path)
    rotating.trust(rotating.authority())
    async with rotating.serve(rotating.authority()) as server:
        environ = rotating.environ(server)
        async with connect("n1", timing=timing, environ=environ, service_account=tmp_path) as cluster:
            for _ in range(20):
                with pytest.raises(ClusterError, match="certificate"):
                    await cluster.get_node()

    assert len(made) <= 3
