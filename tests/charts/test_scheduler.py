"""kube-scheduler, our container beside it, the webhook and their certificates, as the chart renders them."""

import base64
import re
import socket
import ssl
import threading

import cel
import click
import pytest
import yaml

from hami_plugin.cli import main
from tests.charts import facts, sets
from tests.charts.helm import installed, rendered

HOST = "hami-plugin-scheduler.hami-system.svc"


def kube_scheduler(release):
    """The configuration of kube-scheduler, and its container."""
    (config,) = (c for c in release.kind("ConfigMap") if "kube-scheduler.yaml" in c["data"])
    spec = release.one("Deployment")["spec"]["template"]["spec"]
    (container,) = (c for c in spec["containers"] if c["name"] == "kube-scheduler")
    return yaml.safe_load(config["data"]["kube-scheduler.yaml"]), container


@pytest.fixture(scope="module")
def release():
    return rendered({})


def webhook(release):
    (hook,) = release.one("MutatingWebhookConfiguration")["webhooks"]
    return hook


def test_kube_scheduler_asks_the_container_beside_it_and_nobody_else(release):
    config, container = kube_scheduler(release)
    (extender,) = config["extenders"]
    spec = release.one("Deployment")["spec"]["template"]["spec"]
    (ours,) = (c for c in spec["containers"] if c["name"] == "hami-plugin")
    (port,) = (p["containerPort"] for p in ours["ports"] if p["name"] == "https")

    assert extender["urlPrefix"] == f"https://127.0.0.1:{port}"
    assert (extender["filterVerb"], extender["bindVerb"]) == ("filter", "bind")
    assert extender["ignorable"] is False
    assert "--config=/etc/hami-plugin/kube-scheduler.yaml" in container["command"]


def test_our_container_is_started_with_flags_that_the_command_has(release):
    command = main.commands["scheduler"]
    spec = release.one("Deployment")["spec"]["template"]["spec"]
    (ours,) = (c for c in spec["containers"] if c["name"] == "hami-plugin")
    name, *flags = ours["args"]
    known = {option: parameter for parameter in command.params for option in parameter.opts}

    assert name == "scheduler"
    for flag, value in (flag.split("=", 1) for flag in flags):
        if isinstance(known[flag].type, click.Choice):
            assert value in known[flag].type.choices


def test_every_resource_of_ours_is_left_to_the_extender(release):
    config, _ = kube_scheduler(release)
    managed = config["extenders"][0]["managedResources"]

    assert {entry["name"] for entry in managed} == set(yaml.safe_load(facts.resources()))
    assert all(entry["ignoredByScheduler"] for entry in managed)


def test_resources_that_are_renamed_are_left_to_it_too():
    values = {
        "deviceConfig": {"nvidia": {"resourceCountName": "example.com/a"}},
        "devicePlugin": {"amd": {"resourceMemoryName": "example.com/b"}},
        "scheduler": {"extraResources": ["example.com/c"]},
    }
    config, _ = kube_scheduler(rendered(values))
    names = {entry["name"] for entry in config["extenders"][0]["managedResources"]}

    assert {"example.com/a", "example.com/b", "example.com/c"} <= names


def test_whatever_a_vendors_key_for_a_resource_is_called_a_renamed_one_is_left_to_it():
    keys = {"resourceNameGCU": "example.com/gcu", "resourceNameVGCUPercentage": "example.com/percent"}
    for values in ({"deviceConfig": {"enflame": keys}}, {"devicePlugin": {"enflame": keys}}):
        config, _ = kube_scheduler(rendered(values))

        assert set(keys.values()) <= {entry["name"] for entry in config["extenders"][0]["managedResources"]}


@pytest.mark.parametrize(
    ("version", "api", "tag"),
    [
        ("v1.20.2", "v1beta1", "v1.20.2"),
        ("v1.22.17-gke.1", "v1beta2", "v1.22.17"),
        ("v1.24.3", "v1beta3", "v1.24.3"),
        ("v1.25.0", "v1", "v1.25.0"),
        ("v1.33.1+k3s1", "v1", "v1.33.1"),
    ],
)
def test_kube_scheduler_is_of_the_clusters_version_and_its_configuration_too(version, api, tag):
    config, container = kube_scheduler(rendered({}, version=version, policies=False))

    assert config["apiVersion"] == f"kubescheduler.config.k8s.io/{api}"
    assert container["image"].endswith(f":{tag}")


def test_a_version_by_value_outranks_the_clusters():
    values = {"scheduler": {"kubeScheduler": {"image": {"tag": "v1.23.9"}}}}
    config, container = kube_scheduler(rendered(values))

    assert config["apiVersion"].endswith("/v1beta3")
    assert container["image"].endswith(":v1.23.9")


def test_pods_without_devices_are_not_asked_about_where_the_api_server_can_tell():
    hook = webhook(rendered({}))
    (condition,) = hook["matchConditions"]

    def asked(*resources, init=(), requests=False):
        kind = "requests" if requests else "limits"
        spec = {"containers": [{"resources": {kind: dict.fromkeys(resources, "1")}}, {"name": "sidecar"}]}
        if init:
            spec["initContainers"] = [{"resources": {"limits": dict.fromkeys(init, "1")}}]
        return cel.evaluate(condition["expression"], {"object": {"spec": spec}})

    assert hook["failurePolicy"] == "Fail"
    assert asked("nvidia.com/gpu", "cpu")
    assert asked("nvidia.com/gpumem")
    assert asked("huawei.com/Ascend910B3", requests=True)
    assert asked("cpu", init=["amd.com/gpu"])
    assert not asked("cpu", "memory")
    assert not asked("cpu", init=["memory"])
    assert not cel.evaluate(condition["expression"], {"object": {"spec": {"containers": [{"name": "bare"}]}}})


def test_where_it_cannot_a_webhook_that_is_down_stops_nobody():
    hook = webhook(rendered({}, **sets.OLD))

    assert "matchConditions" not in hook
    assert hook["failurePolicy"] == "Ignore"


def test_hami_itself_and_the_systems_namespace_are_left_alone(release):
    hook = webhook(release)
    labels = release.one("Deployment")["spec"]["template"]["metadata"]["labels"]
    (own,) = hook["objectSelector"]["matchExpressions"]

    assert (own["operator"], own["values"]) == ("NotIn", [labels[own["key"]]])
    assert {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]} in hook[
        "namespaceSelector"
    ]["matchExpressions"]


def secret(release):
    return {key: base64.b64decode(value) for key, value in release.one("Secret")["data"].items()}


@pytest.mark.parametrize("name", [HOST, "127.0.0.1"])
def test_the_certificate_convinces_whoever_has_its_authority(release, tmp_path, name):
    for key, content in secret(release).items():
        (tmp_path / key).write_bytes(content)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        accepted = threading.Thread(target=lambda: served.wrap_socket(ours, server_side=True).close())
        accepted.start()
        with trusting.wrap_socket(theirs, server_hostname=name) as connection:
            assert connection.version() in ("TLSv1.2", "TLSv1.3")
        accepted.join(timeout=10)


def test_the_api_server_and_kube_scheduler_have_the_authority(release):
    config, container = kube_scheduler(release)
    tls = config["extenders"][0]["tlsConfig"]
    spec = release.one("Deployment")["spec"]["template"]["spec"]
    (mount,) = (m for m in container["volumeMounts"] if m["mountPath"] == "/tls")
    (volume,) = (v["secret"] for v in spec["volumes"] if v["name"] == mount["name"])

    assert base64.b64decode(webhook(release)["clientConfig"]["caBundle"]) == secret(release)["ca.crt"]
    assert tls == {"insecure": False, "caFile": "/tls/ca.crt", "serverName": HOST}
    assert [item["key"] for item in volume["items"]] == ["ca.crt"]
    assert volume["secretName"] == release.one("Secret")["metadata"]["name"]


def test_an_upgrade_keeps_the_certificate_and_changes_the_rest():
    first, second = installed({}, {"scheduler": {"replicas": 3}})

    assert secret(second) == secret(first)
    assert webhook(second)["clientConfig"] == webhook(first)["clientConfig"]
    assert second.one("Deployment")["spec"]["replicas"] == 3
    assert secret(rendered({})) != secret(first)


def test_cert_manager_makes_an_authority_that_outlives_the_certificate():
    release = rendered(sets.CERT_MANAGER)
    certificates = {c["metadata"]["name"]: c["spec"] for c in release.kind("Certificate")}
    issuers = {i["metadata"]["name"]: i["spec"] for i in release.kind("Issuer")}
    authority, own = certificates["hami-plugin-scheduler-authority"], certificates["hami-plugin-scheduler"]
    mounted = {
        v["secret"]["secretName"]
        for v in release.one("Deployment")["spec"]["template"]["spec"]["volumes"]
        if "secret" in v
    }

    assert release.kind("Secret") == []
    assert issuers[authority["issuerRef"]["name"]] == {"selfSigned": {}}
    assert issuers[own["issuerRef"]["name"]] == {"ca": {"secretName": authority["secretName"]}}
    assert {own["secretName"]} == mounted
    assert own["dnsNames"][0] == HOST
    assert own["ipAddresses"] == ["127.0.0.1"]
    configuration = release.one("MutatingWebhookConfiguration")
    assert configuration["metadata"]["annotations"] == {
        "cert-manager.io/inject-ca-from": "hami-system/hami-plugin-scheduler"
    }
    assert "caBundle" not in configuration["webhooks"][0]["clientConfig"]


def test_an_issuer_of_ones_own_takes_the_place_of_the_authority():
    release = rendered(sets.ISSUER)

    assert release.kind("Issuer") == []
    assert release.one("Certificate")["spec"]["issuerRef"] == {"name": "ours", "kind": "ClusterIssuer"}


def test_a_secret_of_ones_own_is_mounted_and_none_is_made():
    release = rendered(sets.SECRET)
    volumes = release.one("Deployment")["spec"]["template"]["spec"]["volumes"]

    assert release.kind("Secret") == []
    assert {v["secret"]["secretName"] for v in volumes if "secret" in v} == {"mine"}
    assert webhook(release)["clientConfig"]["caBundle"] == "Q0E="


def test_the_service_leads_the_api_server_to_the_ports_of_the_pods(release):
    service, deployment = release.one("Service")["spec"], release.one("Deployment")["spec"]
    asked = webhook(release)["clientConfig"]["service"]
    ports = {p["name"] for c in deployment["template"]["spec"]["containers"] for p in c.get("ports", ())}

    assert service["selector"].items() <= deployment["template"]["metadata"]["labels"].items()
    assert [(p["port"], p["targetPort"] in ports) for p in service["ports"]] == [(asked["port"], True)]
    assert asked["path"] == "/webhook"
    assert re.fullmatch(r"hami-plugin-scheduler\.hami-system\.svc", f"{asked['name']}.{asked['namespace']}.svc")


def network_policies(release):
    """Those of the scheduler."""
    found = release.kind("NetworkPolicy")
    return [one["spec"] for one in found if one["metadata"]["name"] == "hami-plugin-scheduler"]


def test_only_the_two_ports_that_others_have_a_use_for_are_let_in(release):
    (policy,) = network_policies(release)
    deployment = release.one("Deployment")["spec"]["template"]
    web, probes = policy["ingress"]

    assert policy["podSelector"]["matchLabels"].items() <= deployment["metadata"]["labels"].items()
    assert policy["policyTypes"] == ["Ingress"]
    assert [port["port"] for port in web["ports"]] == ["https"]
    assert "from" not in web
    assert [port["port"] for port in probes["ports"]] == ["http", 10259]
    assert probes["from"] == [{"namespaceSelector": {}}]


def test_who_is_let_in_can_be_said():
    monitoring = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    values = {"scheduler": {"networkPolicy": {"apiServers": ["10.0.0.0/28", "fd00::1/128"], "monitoring": monitoring}}}
    (policy,) = network_policies(rendered(values))
    web, probes = policy["ingress"]

    assert web["from"] == [{"ipBlock": {"cidr": "10.0.0.0/28"}}, {"ipBlock": {"cidr": "fd00::1/128"}}]
    assert probes["from"] == monitoring


@pytest.mark.parametrize(
    "values", [{"scheduler": {"networkPolicy": {"enabled": False}}}, {"scheduler": {"enabled": False}}]
)
def test_without_it_nobody_is_kept_out(values):
    assert network_policies(rendered(values)) == []


def test_the_api_servers_client_certificate_is_asked_for_where_its_authority_is_given(release):
    values = {"scheduler": {"webhook": {"clientCaSecret": "front", "clientNames": ["kube-apiserver"]}}}
    spec = rendered(values).one("Deployment")["spec"]["template"]["spec"]
    (ours,) = (c for c in spec["containers"] if c["name"] == "hami-plugin")
    (mount,) = (m for m in ours["volumeMounts"] if m["name"] == "client-ca")
    (volume,) = (v for v in spec["volumes"] if v["name"] == "client-ca")

    assert f"--webhook-client-ca={mount['mountPath']}/ca.crt" in ours["args"]
    assert "--webhook-client-name=kube-apiserver" in ours["args"]
    assert volume["secret"]["secretName"] == "front"
    assert "client-ca" not in str(release.one("Deployment"))
