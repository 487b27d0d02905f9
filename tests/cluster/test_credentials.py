"""Where the address and the token come from, and what is said when they do not."""

import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from hami_plugin.cluster.client import connect
from hami_plugin.errors import ClusterError, ConfigError
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.certificates import Authority


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
