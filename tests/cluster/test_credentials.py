"""Where the address and the token come from, and what is said when they do not."""

import json
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from hami_plugin.cluster import clients
from hami_plugin.cluster.client import connect
from hami_plugin.errors import ClusterError, ConfigError
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.certificates import Authority
from tests.support.watching import Pods, running


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
async def test_a_rotated_token_file_is_read_again_and_no_call_fails(server, rhythm, observer, tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    server.trust("first")
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig", token_file=token)

    async with connect("n1", kubeconfig=kubeconfig, rhythm=rhythm, observer=observer) as cluster:
        await cluster.get_node()
        replace(token, "second\n")
        server.trust("second")
        await cluster.patch_node({"a": "1"})

    assert [outcome for _, _, outcome in observer.calls] == ["200", "200"]
    assert server.node("n1")["metadata"]["annotations"] == {"a": "1"}


@pytest.mark.scenario("P8")
async def test_a_token_that_stays_refused_is_forbidden_until_it_is_replaced(server, rhythm, tmp_path):
    token = tmp_path / "token"
    token.write_text("old")
    server.trust("new")
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig", token_file=token)

    async with connect("n1", kubeconfig=kubeconfig, rhythm=rhythm) as cluster:
        with pytest.raises(ClusterError, match="check that the service account exists") as caught:
            await cluster.get_node()
        refused = cluster.reachable.value
        replace(token, "new")
        await cluster.get_node()

        assert caught.value.status == 401
        assert refused.startswith("APIForbidden: get nodes n1: 401 Unauthorized")
        assert cluster.reachable.value == ""


async def test_a_pod_uses_its_service_account_over_tls_and_follows_its_token(certificate, rhythm, observer, tmp_path):
    (tmp_path / "token").write_text("first\n")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)

    async with SimulatedApiServer(ssl=context) as server:
        server.create_node("n1")
        server.trust("first")
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": server.url.rpartition(":")[2]}
        within = connect("n1", rhythm=rhythm, observer=observer, environ=environ, service_account=tmp_path)
        async with within as cluster:
            await cluster.get_node()
            replace(tmp_path / "token", "second\n")
            server.trust("second")
            await cluster.get_node()
            (tmp_path / "token").unlink()
            await cluster.get_node()

    assert [outcome for _, _, outcome in observer.calls] == ["200"] * 3
    assert [request.status for request in server.requests] == [200] * 3


async def test_a_server_with_a_foreign_certificate_is_not_trusted(certificate, rhythm, tmp_path):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)

    async with SimulatedApiServer(ssl=context) as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig", token="secret")
        async with connect("n1", kubeconfig=kubeconfig, rhythm=rhythm) as cluster:
            with pytest.raises(ClusterError, match="certificate") as caught:
                await cluster.get_node()

    assert caught.value.status == 0
    assert not server.requests


async def test_the_kubeconfig_variable_is_used_when_no_path_is_given(server, rhythm, tmp_path):
    path = server.write_kubeconfig(tmp_path / "kubeconfig")

    async with connect("n1", rhythm=rhythm, environ={"KUBECONFIG": str(path)}) as cluster:
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


def test_the_models_are_never_loaded():
    code = (
        "import sys, hami_plugin.cluster.client;"
        "print([m for m in sys.modules if m.startswith('kubernetes.aio.client.models.')"
        " or m.startswith('kubernetes.client.models.') or m.startswith('kubernetes.aio.client.api.')])"
    )

    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


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


async def test_a_clusters_authority_that_is_replaced_on_disk_is_picked_up(rhythm, observer, tmp_path):
    """The kubelet replaces the file; the server presents a certificate that only the new authority vouches for."""
    (tmp_path / "token").write_text("t")
    rotating = Rotating(tmp_path)
    old, new = rotating.authority(), rotating.authority()
    rotating.trust(old)
    async with rotating.serve(old) as server:
        environ = rotating.environ(server)
        connecting = connect("n1", rhythm=rhythm, observer=observer, environ=environ, service_account=tmp_path)
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


async def test_a_file_that_is_half_written_leaves_the_last_authority_in_use(rhythm, tmp_path):
    (tmp_path / "token").write_text("t")
    rotating = Rotating(tmp_path)
    authority = rotating.authority()
    rotating.trust(authority)
    async with rotating.serve(authority) as server:
        environ = rotating.environ(server)
        async with connect("n1", rhythm=rhythm, environ=environ, service_account=tmp_path) as cluster:
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
async def test_a_clients_certificate_that_is_replaced_on_disk_is_presented(rhythm, tmp_path, way):
    rotating = Rotating(tmp_path)
    servers, old, new = rotating.authority(), rotating.authority(), rotating.authority()
    used, fresh = old.pair("client"), new.pair("client")
    path = tmp_path / "kubeconfig"
    async with rotating.serve(servers, clients=old) as server:
        rotating.environ(server)
        connecting = connect("n1", kubeconfig=_kubeconfig(path, server.url, servers, used), rhythm=rhythm, environ={})
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


async def test_a_server_that_is_not_trusted_costs_no_new_client_for_each_call(rhythm, tmp_path, monkeypatch):
    made = []
    client = clients.ApiClient
    monkeypatch.setattr(clients, "ApiClient", lambda configuration: made.append(1) or client(configuration))
    (tmp_path / "token").write_text("t")
    rotating = Rotating(tmp_path)
    rotating.trust(rotating.authority())
    async with rotating.serve(rotating.authority()) as server:
        environ = rotating.environ(server)
        async with connect("n1", rhythm=rhythm, environ=environ, service_account=tmp_path) as cluster:
            for _ in range(20):
                with pytest.raises(ClusterError, match="certificate"):
                    await cluster.get_node()

    assert len(made) <= 3
