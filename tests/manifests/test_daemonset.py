"""daemonset.yaml against the code: rights, mounts, probes, flags and variables, each compared with what is used."""

import re
from pathlib import Path

import aiohttp
import pytest
import yaml
from prometheus_client import CollectorRegistry

from hami_plugin.cli import main
from hami_plugin.config.load import load
from hami_plugin.config.settings import Settings
from hami_plugin.host.runtimes import USUAL_FILES
from hami_plugin.sdk import load_vendor, vendor_names
from hami_plugin.telemetry.http import Probes, TelemetryServer
from tests.support.rights import DAEMON

ROOT = Path(__file__).parents[2]
# Read by the container runtime, not by the daemon: which cards, and which parts of the driver, this container sees.
RUNTIME_VARIABLES = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}


@pytest.fixture(scope="module")
def documents():
    return {item["kind"]: item for item in yaml.safe_load_all((ROOT / "daemonset.yaml").read_text(encoding="utf-8"))}


@pytest.fixture(scope="module")
def with_cdi():
    """The pod with everything uncommented that the manifest offers for CDI."""
    text = (ROOT / "daemonset.yaml").read_text(encoding="utf-8")
    blocks = r"(?m)^ +# - name: (?:driver-root|runtime)\n(?: +#   .*\n)+"
    offered = re.sub(blocks, lambda block: re.sub(r"^( +)# ", r"\1", block[0], flags=re.MULTILINE), text)
    documents = {item["kind"]: item for item in yaml.safe_load_all(offered)}
    return documents["DaemonSet"]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def pod(documents):
    return documents["DaemonSet"]["spec"]["template"]


@pytest.fixture(scope="module")
def container(pod):
    (container,) = pod["spec"]["containers"]
    return container


@pytest.fixture(scope="module")
def flags():
    return {option for parameter in main.commands["run"].params for option in parameter.opts}


@pytest.fixture
def configuration(documents, container, tmp_path):
    """What the daemon makes of the manifest's own ConfigMap, environment and flags."""
    data = documents["ConfigMap"]["data"]
    for name, text in data.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    given = dict(argument.removeprefix("--").split("=", 1) for argument in container["args"][1:])
    files = {name: tmp_path / Path(given[name]).name for name in ("config", "device-config", "node-config")}
    return load(
        config=files["config"],
        device_config=files["device-config"],
        node_config=files["node-config"],
        overrides={},
        environment={"NODE_NAME": "node-1", **{e["name"]: e["value"] for e in container["env"] if "value" in e}},
        vendor_settings=lambda name: load_vendor(name).settings,
        vendor_names=vendor_names(),
    )


def test_the_role_grants_exactly_the_calls_that_the_daemon_makes(documents):
    """tests/cluster/test_rights.py shows that the list is that of the calls."""
    rules = documents["ClusterRole"]["rules"]
    granted = {(kind, verb) for rule in rules for kind in rule["resources"] for verb in rule["verbs"]}

    assert all(rule["apiGroups"] == [""] for rule in rules)
    assert granted == {(right.resource, right.verb) for right in DAEMON}


def test_each_right_is_on_a_line_of_its_own_with_its_reason():
    text = (ROOT / "daemonset.yaml").read_text(encoding="utf-8")
    role = text.partition("kind: ClusterRole\n")[2].partition("\n---")[0]
    rights = [line.split("# ") for line in role.splitlines() if line.startswith("      - ")]

    assert [(verb.strip(" -"), why) for verb, why in rights] == [(right.verb, right.why) for right in DAEMON]


def test_account_role_and_binding_belong_together(documents):
    account, binding = documents["ServiceAccount"]["metadata"], documents["ClusterRoleBinding"]

    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["name"], "namespace": "hami-system"}]
    assert binding["roleRef"]["name"] == documents["ClusterRole"]["metadata"]["name"]
    assert documents["DaemonSet"]["spec"]["template"]["spec"]["serviceAccountName"] == account["name"]
    for kind in ("ServiceAccount", "ConfigMap", "DaemonSet"):
        assert documents[kind]["metadata"]["namespace"] == documents["Namespace"]["metadata"]["name"]


@pytest.fixture
def address(container, configuration):
    """Host and port of probes and metrics: by the flag of ``run``, or by the settings."""
    given = [a.removeprefix("--http=") for a in container["args"] if a.startswith("--http=")]
    default = next((p.default for p in main.commands["run"].params if "--http" in p.opts), None)
    text = next(iter((*given, default)))
    if isinstance(text, str):
        host, _, port = text.rpartition(":")
        return host, int(port)
    return configuration.settings.http_host, configuration.settings.http_port


async def test_the_probes_reach_what_the_daemon_serves(container, address):
    (port,) = container["ports"]
    probes = {name: container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
    server = TelemetryServer(
        "127.0.0.1",
        0,
        Probes(
            registry=CollectorRegistry(),
            alive=list,
            ready=lambda: {"driver": "away"},
            configuration=dict,
        ),
    )
    await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            statuses = {}
            for name, probe in probes.items():
                async with session.get(f"http://127.0.0.1:{server.port}{probe['path']}") as answer:
                    statuses[name] = answer.status
    finally:
        await server.stop()

    assert address == ("0.0.0.0", port["containerPort"])
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert statuses == {"livenessProbe": 200, "readinessProbe": 503}


def test_no_container_has_a_privilege_that_it_does_not_need(pod):
    spec = pod["spec"]

    assert not {"hostPID", "hostNetwork", "hostIPC"} & set(spec)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*spec["initContainers"], *spec["containers"]):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "privileged" not in context


def test_every_path_that_the_daemon_uses_by_default_is_mounted(container, configuration):
    mounts = {m["mountPath"]: m.get("readOnly", False) for m in container["volumeMounts"]}
    settings = configuration.settings
    *others, specs = settings.cdi_dirs
    writable = {settings.kubelet_dir, settings.state_dir, settings.hook_path / "vgpu", specs}

    assert {path for path in map(str, writable) if mounts.get(path) is not False} == set()
    assert mounts[str(settings.pod_resources_socket.parent)] is True
    assert all(mounts[str(directory)] is True for directory in others)
    assert set(mounts) == {
        *map(str, writable),
        *map(str, others),
        str(settings.pod_resources_socket.parent),
        "/etc/hami-plugin",
        "/tmp",
    }


def test_every_setting_that_is_a_path_is_mounted_or_needs_no_mount(container):
    mounts = [Path(m["mountPath"]) for m in container["volumeMounts"]]
    settings = Settings(nodeName="n")
    paths = {
        name: value / "vgpu" if name == "hook_path" else value
        for name, value in ((name, getattr(settings, name)) for name in Settings.model_fields)
        if isinstance(value, Path)
    }

    assert settings.runtime_config is None  # one of the usual places, which the manifest offers
    assert {n for n, path in paths.items() if not any(path.is_relative_to(mount) for mount in mounts)} == set()


def test_host_directories_are_the_same_inside_and_outside(pod, container):
    """Paths that the daemon hands to the kubelet are host paths, so it must see them under the same name."""
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    hosts = {v["name"]: v["hostPath"]["path"] for v in pod["spec"]["volumes"] if "hostPath" in v}

    assert hosts == {name: mounts[name] for name in hosts}
    assert {v["name"] for v in pod["spec"]["volumes"]} == set(mounts)


def test_the_spec_directories_are_there_before_the_daemon_and_the_kubelet_makes_them(pod, configuration):
    types = {v["hostPath"]["path"]: v["hostPath"]["type"] for v in pod["spec"]["volumes"] if "hostPath" in v}

    assert {types[str(directory)] for directory in configuration.settings.cdi_dirs} == {"DirectoryOrCreate"}


def test_what_is_offered_for_cdi_is_read_only_and_where_the_daemon_looks(with_cdi, container):
    usual = {mount["name"] for mount in container["volumeMounts"]}
    mounts = {m["name"]: m for m in with_cdi["containers"][0]["volumeMounts"] if m["name"] not in usual}
    volumes = {v["name"]: v["hostPath"] for v in with_cdi["volumes"] if v["name"] in mounts}

    assert set(mounts) == set(volumes) == {"driver-root", "runtime"}
    assert all(mount["readOnly"] for mount in mounts.values())
    assert {volume["type"] for volume in volumes.values()} == {"Directory"}
    vendor = load_vendor("nvidia").settings()
    assert mounts["driver-root"]["mountPath"] == str(vendor.container_driver_root)
    assert volumes["driver-root"]["path"] == str(vendor.nvidia_driver_root)
    assert volumes["runtime"]["path"] == mounts["runtime"]["mountPath"]
    assert Path(volumes["runtime"]["path"]) in {file.parent for file in USUAL_FILES}


def test_the_host_is_not_shown_unless_somebody_wants_it(pod):
    assert "/" not in {v["hostPath"]["path"] for v in pod["spec"]["volumes"] if "hostPath" in v}


def test_the_configuration_is_a_directory_and_its_files_are_those_that_the_flags_name(documents, container):
    mount = next(m for m in container["volumeMounts"] if m["name"] == "config")
    named = {Path(argument.split("=", 1)[1]) for argument in container["args"] if "config" in argument}

    assert "subPath" not in mount
    assert named == {Path(mount["mountPath"]) / name for name in documents["ConfigMap"]["data"]}


def test_the_shipped_configuration_loads_without_a_warning_and_changes_no_default(configuration):
    assert configuration.warnings == ()
    assert configuration.settings.node_name == "node-1"
    assert set(configuration.vendors) == set(vendor_names())
    for name, section in configuration.vendors.items():
        assert section == load_vendor(name).settings()


def test_every_flag_is_one_of_the_commands(container, flags):
    command, *arguments = container["args"]

    assert command in main.commands
    assert {argument.split("=", 1)[0] for argument in arguments} <= flags


def test_every_variable_is_read_by_the_daemon_or_by_the_runtime(container):
    models = [Settings, *(load_vendor(name).settings for name in vendor_names())]
    read = {name for model in models for name in model.environment}

    assert {variable["name"] for variable in container["env"]} <= read | RUNTIME_VARIABLES
    assert next(e for e in container["env"] if e["name"] == "NODE_NAME")["valueFrom"] == {
        "fieldRef": {"fieldPath": "spec.nodeName"}
    }


def test_the_driver_library_comes_from_the_runtime_without_the_right_to_compute(container):
    env = {e["name"]: e.get("value") for e in container["env"]}

    assert env["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert env["NVIDIA_DRIVER_CAPABILITIES"] == "utility"


def test_the_library_that_is_installed_is_the_one_that_pods_are_given(pod):
    (installer,) = pod["spec"]["initContainers"]

    assert installer["image"].endswith(":" + load_vendor("nvidia").settings().libvgpu_version)


def test_hamis_webhook_leaves_the_daemon_alone(documents, pod):
    assert pod["metadata"]["labels"]["hami.io/webhook"] == "ignore"
    assert documents["Namespace"]["metadata"]["labels"]["hami.io/webhook"] == "ignore"
    selector = documents["DaemonSet"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= pod["metadata"]["labels"].items()


def test_memory_is_limited_and_cpu_is_not(container):
    assert container["resources"] == {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}}
