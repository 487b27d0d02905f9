"""What Helm makes of the chart, with several sets of values and on several versions of Kubernetes."""

import json
import re
from functools import cache
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from hami_plugin import __version__
from hami_plugin.dra.explanation import selection
from hami_plugin.sdk import load_vendor, vendor_names
from tests.charts import sets
from tests.charts.helm import CHART, HelmError, lint, rendered
from tests.charts.made import MADE
from tests.support.rights import CLAIMS, DAEMON, DRIVERS, SCHEDULER

CUSTOM = {"PodMonitor", "Issuer", "Certificate"}  # kinds that Kubernetes' own schemas do not have
OLDEST_SCHEMA = "1.25"


@pytest.fixture(scope="module")
def releases():
    return {name: rendered(values, **where) for name, (values, where) in sets.SETS.items()}


@pytest.fixture(params=sets.SETS)
def release(request, releases):
    return releases[request.param]


def pods(release):
    """Specs of all pods that a release makes."""
    kinds = (*release.kind("DaemonSet"), *release.kind("Deployment"))
    return [document["spec"]["template"]["spec"] for document in kinds]


def containers(release):
    return [c for spec in pods(release) for c in (*spec.get("initContainers", ()), *spec["containers"])]


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_what_is_made_from_the_code_and_the_chart_is_as_they_say(path):
    assert path.read_text(encoding="utf-8") == MADE[path](), "write it anew: make manifests"


def test_helm_finds_nothing_wrong():
    assert lint() == []


def test_the_chart_knows_every_vendor():
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    helpers = (CHART / "templates/_helpers.tpl").read_text(encoding="utf-8")
    (named,) = re.findall(r'define "hami-plugin.vendors" -}}\n(.*)\n', helpers)

    assert set(named.split()) == set(vendor_names())
    assert set(vendor_names()) <= set(values["devicePlugin"])


def test_the_chart_is_of_the_projects_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))

    assert chart["version"] == chart["appVersion"] == __version__


@pytest.mark.parametrize("version", [OLDEST_SCHEMA, "1.37"])
def test_every_document_is_one_that_kubernetes_knows(releases, version, monkeypatch):
    monkeypatch.setattr(kubernetes_validate.utils, "schema_contents", cache(kubernetes_validate.utils.schema_contents))
    different = {json.dumps(document, sort_keys=True) for each in releases.values() for document in each.documents}
    checked = set()
    for document in map(json.loads, different):
        policy = document["kind"].startswith("ValidatingAdmissionPolicy")
        conditions = any("matchConditions" in webhook for webhook in document.get("webhooks", ()))
        newer = policy or conditions or document["kind"] == "DeviceClass"
        if document["kind"] not in CUSTOM and not (version == OLDEST_SCHEMA and newer):
            kubernetes_validate.validate(document, version, strict=True)
            checked.add(document["kind"])

    assert {"DaemonSet", "Deployment", "ClusterRole", "MutatingWebhookConfiguration", "Secret"} <= checked


def test_a_document_that_kubernetes_does_not_know_is_noticed(releases):
    broken = releases["defaults"].one("DaemonSet")
    broken["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.31", strict=True)


def test_nothing_is_privileged_and_everything_can_be_written_only_where_it_must(release):
    for spec in pods(release):
        assert not {"hostPID", "hostNetwork", "hostIPC"} & set(spec)
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(release):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_every_port_says_its_protocol_which_older_api_servers_ask_of_an_apply(release):
    ports = [port for container in containers(release) for port in container.get("ports", ())]
    ports += [port for service in release.kind("Service") for port in service["spec"]["ports"]]

    assert {port.get("protocol") for port in ports} <= {"TCP"}


def test_only_the_daemon_is_user_0(releases):
    (deployment,) = releases["defaults"].kind("Deployment")
    context = deployment["spec"]["template"]["spec"]["securityContext"]

    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0


def test_whatever_is_mounted_is_a_volume_and_whatever_is_a_volume_is_mounted(release):
    for spec in pods(release):
        mounted = {m["name"] for c in (*spec.get("initContainers", ()), *spec["containers"]) for m in c["volumeMounts"]}
        assert {volume["name"] for volume in spec["volumes"]} == mounted


def test_what_one_document_names_is_in_another(release):
    names = {(document["kind"], document["metadata"]["name"]) for document in release.documents}
    wanted = set()
    for spec in pods(release):
        wanted |= {("ConfigMap", v["configMap"]["name"]) for v in spec["volumes"] if "configMap" in v}
        wanted.add(("ServiceAccount", spec["serviceAccountName"]))
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in release.kind(kind):
            wanted |= {("ServiceAccount", subject["name"]) for subject in binding["subjects"]}
    for webhook in release.kind("MutatingWebhookConfiguration"):
        wanted.add(("Service", webhook["webhooks"][0]["clientConfig"]["service"]["name"]))
    for binding in release.kind("ValidatingAdmissionPolicyBinding"):
        wanted.add(("ValidatingAdmissionPolicy", binding["spec"]["policyName"]))

    assert wanted <= names


@pytest.mark.parametrize(
    ("name", "suffix", "rights"),
    [
        ("defaults", "", DAEMON),
        ("claims", "", (*DAEMON, *DRIVERS)),
        ("defaults", "-scheduler", SCHEDULER),
        ("claims", "-scheduler", (*SCHEDULER, *CLAIMS)),
    ],
)
def test_each_account_has_the_rights_to_its_own_calls_with_their_reasons(releases, name, suffix, rights):
    release = releases[name]
    (role,) = (r for r in release.kind("ClusterRole") if r["metadata"]["name"] == f"hami-plugin{suffix}")
    granted = {
        (group, kind, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
        for verb in rule["verbs"]
    }
    (text,) = (
        part
        for part in release.text.split("\n---\n")
        if f"kind: ClusterRole\nmetadata:\n  name: hami-plugin{suffix}\n" in part
    )
    lines = [line.strip(" -").split("# ") for line in text.splitlines() if line.startswith("      - ")]

    assert granted == {(right.group, right.resource, right.verb) for right in rights}
    assert [(verb.strip(), why) for verb, why in lines] == [(right.verb, right.why) for right in rights]


def test_a_vendor_that_goes_by_claims_has_a_class_the_kubelets_folders_and_slices_of_its_own_alone(releases):
    release, usual = releases["claims"], releases["defaults"]
    container = release.one("DaemonSet")["spec"]["template"]["spec"]["containers"][0]
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    config = next(one for one in release.kind("ConfigMap") if "config.yaml" in one["data"])
    (policy,) = (
        one for one in release.kind("ValidatingAdmissionPolicy") if one["metadata"]["name"] == "hami-plugin-own-slices"
    )

    assert [one["metadata"]["name"] for one in release.kind("DeviceClass")] == [
        f"{kind}{vendor}.hami.io" for vendor in ("amd", "nvidia") for kind in ("", "sets.", "partitions.")
    ]
    assert [selection(one, "").kind for one in release.kind("DeviceClass")] == ["", "set", "partition"] * 2
    assert [selection(one, "").driver for one in release.kind("DeviceClass")[::3]] == ["amd.hami.io", "nvidia.hami.io"]
    assert {mounts[name]["mountPath"] for name in ("plugins", "plugins-registry")} == {
        "/var/lib/kubelet/plugins",
        "/var/lib/kubelet/plugins_registry",
    }
    assert not any(mounts[name].get("readOnly") for name in ("plugins", "plugins-registry"))
    assert yaml.safe_load(config["data"]["config.yaml"])["vendors"]["nvidia"]["frontEnd"] == "dra"
    assert "['amd.hami.io', 'nvidia.hami.io']" in policy["spec"]["validations"][1]["expression"]
    assert policy["spec"]["matchConditions"][0]["expression"].endswith(":hami-plugin'")
    assert "resource.k8s.io" not in usual.text
    assert "plugins_registry" not in usual.text


def test_what_may_go_by_claims_has_all_that_it_then_needs_and_no_class_where_the_cluster_has_none():
    left_open = {"devicePlugin": {"nvidia": {"frontEnd": "auto"}}}
    newer, older = rendered(left_open, version="v1.36.2"), rendered(left_open, version="v1.30.0")

    for release in (newer, older):
        container = release.one("DaemonSet")["spec"]["template"]["spec"]["containers"][0]
        assert {"plugins", "plugins-registry"} <= {one["name"] for one in container["volumeMounts"]}
    assert "nvidia.hami.io" in {one["metadata"]["name"] for one in newer.kind("DeviceClass")}
    assert older.kind("DeviceClass") == []


def test_pods_have_claims_in_place_of_limits_where_the_values_say_so(releases):
    release, usual = releases["claims"], releases["defaults"]
    configs = [
        yaml.safe_load(c["data"]["config.yaml"]) for c in release.kind("ConfigMap") if "config.yaml" in c["data"]
    ]
    (reserved,) = (
        one
        for one in release.kind("ValidatingAdmissionPolicy")
        if one["metadata"]["name"] == "hami-plugin-reserved-pods"
    )
    (keys,) = (one["expression"] for one in reserved["spec"]["variables"] if one["name"] == "keys")

    assert [one["scheduler"] for one in configs if "scheduler" in one] == [{"claimVendors": ["nvidia"]}]
    assert release.one("MutatingWebhookConfiguration")["webhooks"][0]["sideEffects"] == "NoneOnDryRun"
    assert usual.one("MutatingWebhookConfiguration")["webhooks"][0]["sideEffects"] == "None"
    assert keys.strip().endswith("+ (oldObject == null ? [] : ['hami-plugin.io/claimed'])")


@pytest.mark.parametrize("version", ["v1.36.2", "v1.34.0"])
def test_a_class_has_the_resources_name_also_where_extended_names_need_a_gate(version):
    found = rendered(sets.CLAIMS, version=version)
    classes = {one["metadata"]["name"]: one["spec"].get("extendedResourceName") for one in found.kind("DeviceClass")}

    assert classes["nvidia.hami.io"] == "nvidia.com/gpu"


def test_the_schedulers_account_has_kube_schedulers_rights_and_its_own_lease_only(releases):
    release = releases["defaults"]
    account = {"kind": "ServiceAccount", "name": "hami-plugin-scheduler", "namespace": "hami-system"}
    roles = {b["roleRef"]["name"] for b in release.kind("ClusterRoleBinding") if account in b["subjects"]}
    (role,) = release.kind("Role")
    (leader,) = (
        yaml.safe_load(c["data"]["kube-scheduler.yaml"])["leaderElection"]
        for c in release.kind("ConfigMap")
        if "kube-scheduler.yaml" in c["data"]
    )

    assert roles == {"hami-plugin-scheduler", "system:kube-scheduler", "system:volume-scheduler"}
    assert [(rule["resources"], rule.get("resourceNames"), rule["verbs"]) for rule in role["rules"]] == [
        (["leases"], None, ["create"]),
        (["leases"], [leader["resourceName"]], ["get", "update"]),
    ]
    assert role["metadata"]["namespace"] == leader["resourceNamespace"]


def test_the_daemon_takes_every_configuration_without_a_warning(release, loaded):
    for config in release.kind("ConfigMap"):
        assert loaded(config["data"]).warnings == ()


def test_the_default_values_change_no_default_of_the_daemon(releases, loaded):
    for config in releases["defaults"].kind("ConfigMap"):
        for name, section in loaded(config["data"]).vendors.items():
            assert section == load_vendor(name).settings()


def test_the_values_of_hamis_documentation_mean_what_they_say(releases, loaded):
    release = releases["seed"]
    spec = release.one("DaemonSet")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    (config,) = (c for c in release.kind("ConfigMap") if "config.json" in c["data"])
    nvidia = loaded(config["data"]).vendors["nvidia"]

    assert release.one("DaemonSet")["metadata"]["name"] == "hami-device-plugin"
    assert container["image"] == "registry.example.com/hami-plugin:v2.5.0"
    assert container["resources"] == sets.SEED["devicePlugin"]["resources"]
    assert spec["template"]["spec"]["nodeSelector"] == {"gpu": "true"}
    assert spec["updateStrategy"] == sets.SEED["devicePlugin"]["updateStrategy"]
    assert (nvidia.enabled, nvidia.cdi.vendor) == (True, "hami.io")
    assert nvidia.nvidia_driver_root == Path("/run/nvidia/driver")
    assert set(loaded(config["data"]).vendors) == set(vendor_names()) - {"ascend", "cambricon", "hygon"}


@pytest.mark.parametrize(
    ("version", "update"),
    [
        ("v1.37.2", {"maxSurge": 1, "maxUnavailable": 0}),
        ("v1.22.0-gke.100", {"maxSurge": 1, "maxUnavailable": 0}),
        ("v1.21.14", {"maxUnavailable": 1}),
        ("v1.20.2", {"maxUnavailable": 1}),
    ],
)
def test_a_daemon_takes_over_from_its_predecessor_where_the_cluster_lets_both_run(version, update):
    daemons = rendered({}, version=version).kind("DaemonSet")

    assert [one["spec"]["updateStrategy"] for one in daemons] == [{"type": "RollingUpdate", "rollingUpdate": update}]
    for one in daemons:  # two of one node share none of its ports
        spec = one["spec"]["template"]["spec"]
        assert not spec.get("hostNetwork")
        assert not any(port.get("hostPort") for c in spec["containers"] for port in c.get("ports", ()))


def test_a_driver_that_is_not_in_the_hosts_root_is_shown_read_only(releases):
    (spec,) = (d["spec"]["template"]["spec"] for d in releases["seed"].kind("DaemonSet"))
    (mount,) = (m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "driver-root")
    (volume,) = (v for v in spec["volumes"] if v["name"] == "driver-root")

    assert mount["readOnly"] is True
    assert volume["hostPath"] == {"path": "/run/nvidia/driver", "type": "Directory"}


def test_the_driver_is_shown_where_the_container_runtime_may_have_cards_handed_over_by_cdi():
    def shown(**plugin):
        daemon = rendered({"devicePlugin": plugin}).one("DaemonSet")
        return {volume["name"] for volume in daemon["spec"]["template"]["spec"]["volumes"]} & {"driver-root", "runtime"}

    auto = {"nvidia": {"deviceListStrategy": ["auto"]}}
    assert shown(**auto, runtimeConfigDir="/etc/containerd") == {"driver-root", "runtime"}
    assert shown(**auto) == set()  # it sees no runtime's configuration, and hands nothing over by CDI


def test_each_pool_has_its_own_daemons_and_configuration_and_one_account(releases, loaded):
    release = releases["pools"]
    daemons = {d["metadata"]["name"]: d["spec"]["template"]["spec"] for d in release.kind("DaemonSet")}
    configs = {c["metadata"]["name"]: c["data"] for c in release.kind("ConfigMap") if "config.json" in c["data"]}
    splits = {name: loaded(data).vendors["nvidia"].device_split_count for name, data in configs.items()}

    assert {name: spec["nodeSelector"]["size"] for name, spec in daemons.items()} == {
        "hami-plugin-small": "small",
        "hami-plugin-big": "big",
    }
    assert splits == {"hami-plugin-small": 4, "hami-plugin-big": 10}
    assert {spec["serviceAccountName"] for spec in daemons.values()} == {"hami-plugin"}
    assert loaded(configs["hami-plugin-small"]).vendors["nvidia"].device_memory_scaling == 1.5


@pytest.mark.parametrize(
    ("values", "check"),
    [
        ({}, "exact"),
        ({"scheduler": {"enabled": False}}, "hami"),
        ({"devicePlugin": {"config": {"overcommitCheck": "off"}}}, "off"),
    ],
    ids=["the chart's scheduler", "another one", "said"],
)
def test_what_pods_have_is_counted_as_the_scheduler_counts_it(values, check, loaded):
    (config,) = (one["data"] for one in rendered(values).kind("ConfigMap") if "config.json" in one["data"])

    assert loaded(config).settings.overcommit_check == check


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, False),
        ({"scheduler": {"enabled": False}}, True),
        ({"scheduler": {"enabled": False}, "devicePlugin": {"config": {"hamiMetrics": False}}}, False),
        ({"devicePlugin": {"config": {"hamiMetrics": True}}}, True),
    ],
    ids=["alone", "beside HAMi's scheduler", "beside it and said", "alone and said"],
)
def test_beside_hamis_scheduler_usage_has_the_names_of_hamis_monitor_too(values, wanted, loaded):
    (config,) = (one["data"] for one in rendered(values).kind("ConfigMap") if "config.json" in one["data"])

    assert loaded(config).settings.hami_metrics is wanted


def test_a_change_of_configuration_replaces_the_pods_and_nothing_else_does(releases):
    def checksum(values):
        template = rendered(values).one("DaemonSet")["spec"]["template"]
        return template["metadata"]["annotations"]["checksum/config"]

    same = releases["defaults"].one("DaemonSet")["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

    assert checksum({"devicePlugin": {"image": {"tag": "x"}}, "monitoring": {"podMonitor": {"enabled": True}}}) == same
    assert checksum({"devicePlugin": {"nvidia": {"splitCount": 4}}}) != same
    assert checksum({"deviceConfig": {"amd": {"resourceCountName": "example.com/gpu"}}}) != same


def test_what_is_switched_off_is_not_there(releases):
    assert releases["nothing"].documents == []
    assert {d["kind"] for d in releases["daemon"].documents} & {"Deployment", "MutatingWebhookConfiguration"} == set()
    assert {d["kind"] for d in releases["scheduler"].documents} & {"DaemonSet", "MutatingWebhookConfiguration"} == set()


def test_names_follow_the_release(releases):
    names = {d["metadata"]["name"] for d in releases["other-release"].documents}

    assert {name for name in names if not name.startswith("prod-hami-plugin")} == set()


def test_the_notes_name_the_next_steps_with_what_the_release_has(releases):
    notes = releases["defaults"].notes

    assert "kubectl label node NODE gpu=on" in notes
    assert "kubectl -n hami-system rollout status daemonset/hami-plugin\n" in notes
    assert "kubectl -n hami-system rollout status deployment/hami-plugin-scheduler" in notes
    assert "--set devicePlugin.image.repository=" in notes
    assert "--set devicePlugin.image.repository=" not in releases["seed"].notes
    for name in ("small", "big"):
        assert f"rollout status daemonset/hami-plugin-{name}\n" in releases["pools"].notes
    assert "kubectl label node NODE gpu=on size=big" in releases["pools"].notes
    assert "daemonset" not in releases["scheduler"].notes
    assert "must set schedulerName: hami-scheduler" in releases["scheduler"].notes
    assert "hami-plugin node clean --all" in notes


def test_the_notes_say_what_is_missing(releases):
    exempt = "admissionPolicies.exemptUsers={system:serviceaccount:kube-system:hami-scheduler}"

    assert "admission policies are off" not in releases["defaults"].notes
    assert "admission policies are off" in releases["defaults-old"].notes
    assert "HAMi's scheduler and webhook have to be there" in releases["daemon"].notes
    assert exempt in releases["daemon"].notes
    assert exempt not in releases["defaults"].notes


def test_the_commands_of_the_notes_are_commands_that_there_are(releases):
    for release in releases.values():
        for line in release.notes.splitlines():
            if line.startswith("     "):
                assert line.split()[0] in ("kubectl", "--set", "none"), line


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"devicePlugin": {"nvidia": {"splitCuont": 4}}}, "additional properties 'splitCuont' not allowed"),
        (
            {"devicePlugin": {"config": {"registerFromat": "json"}}},
            "additional properties 'registerFromat' not allowed",
        ),
        ({"schedular": {}}, "additional properties 'schedular' not allowed"),
        ({"scheduler": {"tls": {"source": "letsencrypt"}}}, "value must be one of 'helm', 'cert-manager', 'secret'"),
        ({"scheduler": {"tls": {"source": "secret"}}}, "scheduler.tls"),
        (
            {"devicePlugin": {"nvidia": {"splitCount": 4}}, "deviceConfig": {"nvidia": {"deviceSplitCount": 5}}},
            "devicePlugin.nvidia.splitCount and deviceConfig.nvidia.deviceSplitCount mean the same; set one of them",
        ),
        ({"devicePlugin": {"pools": [{"nodeSelector": {}}]}}, "missing property 'name'"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_with_the_reason(values, said):
    with pytest.raises(HelmError, match=re.escape(said)):
        rendered(values)


def test_hamis_own_file_may_say_how_often_a_card_is_shared(loaded):
    release = rendered({"deviceConfig": {"nvidia": {"deviceSplitCount": 5}}})

    for config in release.kind("ConfigMap"):
        assert loaded(config["data"]).vendors["nvidia"].device_split_count == 5


def test_pod_monitors_find_the_pods_and_their_port(releases):
    release = releases["everything"]
    labels = {}
    for document in (*release.kind("DaemonSet"), *release.kind("Deployment")):
        template = document["spec"]["template"]
        ports = {port["name"] for c in template["spec"]["containers"] for port in c.get("ports", ())}
        labels[template["metadata"]["labels"]["app.kubernetes.io/name"]] = ports

    assert len(release.kind("PodMonitor")) == 2
    for monitor in release.kind("PodMonitor"):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in labels[monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"]]
        assert monitor["metadata"]["labels"] == {"release": "prometheus"}


def test_only_the_node_and_prometheus_may_connect_to_a_daemons_port(releases):
    release = releases["default"] if "default" in releases else rendered({})
    daemons = {daemon["metadata"]["name"]: daemon["spec"]["template"] for daemon in release.kind("DaemonSet")}
    policies = [one for one in release.kind("NetworkPolicy") if one["metadata"]["name"] in daemons]

    assert len(policies) == len(daemons)
    for policy in policies:
        template, spec = daemons[policy["metadata"]["name"]], policy["spec"]
        assert spec["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert spec["policyTypes"] == ["Ingress"]
        (rule,) = spec["ingress"]
        (port,) = rule["ports"]
        assert port["port"] in {one["name"] for c in template["spec"]["containers"] for one in c["ports"]}
        assert [peer["podSelector"]["matchLabels"] for peer in rule["from"]] == [
            {"app.kubernetes.io/name": "prometheus"}
        ]


def test_who_may_scrape_a_daemon_can_be_said_and_the_policy_left_out():
    def policies(**values):
        release = rendered({**sets.DAEMON, "devicePlugin": {"networkPolicy": values}})
        return [one["spec"]["ingress"] for one in release.kind("NetworkPolicy")]

    peer = {"ipBlock": {"cidr": "10.0.0.0/8"}}
    assert policies(enabled=False) == []
    assert policies(**{"from": []}) == [[]]
    assert policies(**{"from": [peer]})[0][0]["from"] == [peer]


def test_each_pool_of_daemons_has_a_policy_of_its_own():
    pools = [{"name": "big", "nodeSelector": {"a": "b"}}, {"name": "open", "networkPolicy": {"enabled": False}}]
    release = rendered({**sets.DAEMON, "devicePlugin": {"pools": pools}})

    assert [one["metadata"]["name"] for one in release.kind("NetworkPolicy")] == ["hami-plugin-big"]


def test_the_pod_monitor_of_the_chart_is_the_one_in_deploy():
    deployed = yaml.safe_load((CHART.parents[1] / "deploy/prometheus/podmonitor.yaml").read_text(encoding="utf-8"))
    release = rendered({**sets.DAEMON, "monitoring": {"podMonitor": {"enabled": True}}})

    assert release.one("PodMonitor") == deployed


@pytest.mark.parametrize("hook", ["/usr/local", "/opt/hami"])
def test_the_library_is_installed_preloaded_and_mounted_by_one_path(hook, loaded):
    chosen = {} if hook == "/usr/local" else {"devicePlugin": {"config": {"hookPath": hook}}}
    release = rendered(chosen)
    spec = release.one("DaemonSet")["spec"]["template"]["spec"]
    (installer,), (daemon,) = spec["initContainers"], spec["containers"]
    host = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    variables = {name: {e["name"]: e.get("value") for e in c["env"]} for name, c in (("i", installer), ("d", daemon))}
    mounted = {(c["name"], m["name"]): m["mountPath"] for c in (installer, daemon) for m in c["volumeMounts"]}

    configured = loaded(next(m["data"] for m in release.kind("ConfigMap") if "config.json" in m["data"]))

    assert {
        host["hook"],
        mounted["hami-core", "hook"],
        mounted["hami-plugin", "hook"],
        variables["i"]["TARGET"],
        f"{variables['d']['HOOK_PATH']}/vgpu",
        f"{configured.settings.hook_path}/vgpu",
    } == {f"{hook}/vgpu"}
    assert "/usr/local" not in installer["args"][0]


@pytest.mark.parametrize("mode", ["Default", "ExclusiveProcess"])
def test_the_daemon_has_the_power_to_set_a_compute_mode_only_where_one_is_to_be_set(mode, loaded):
    release = rendered({"devicePlugin": {"nvidia": {"computeMode": mode, "splitCount": 1}}})
    (daemon,) = release.one("DaemonSet")["spec"]["template"]["spec"]["containers"]
    configured = loaded(next(m["data"] for m in release.kind("ConfigMap") if "config.json" in m["data"]))
    context, exclusive = daemon["securityContext"], mode == "ExclusiveProcess"

    assert configured.vendors["nvidia"].compute_mode == mode
    assert context["capabilities"] == {"drop": ["ALL"], **({"add": ["SYS_ADMIN"]} if exclusive else {})}
    assert context["allowPrivilegeEscalation"] is exclusive


@pytest.mark.parametrize(
    "plugin",
    [{"nvidia": {"operatingMode": "mig"}}, {"nodeConfig": [{"name": "n1"}, {"name": "n2", "operatingmode": "mig"}]}],
)
def test_a_daemon_that_cuts_cards_may_do_so_and_make_the_instances_nodes(plugin, loaded):
    release = rendered({"devicePlugin": plugin})
    pod = release.one("DaemonSet")["spec"]["template"]["spec"]
    (daemon,) = pod["containers"]
    variables = {one["name"]: one.get("value") for one in daemon["env"]}

    assert daemon["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN", "MKNOD"]}
    assert variables["NVIDIA_MIG_CONFIG_DEVICES"] == variables["NVIDIA_MIG_MONITOR_DEVICES"] == "all"
    assert {"name": "nvidia-caps", "mountPath": "/dev/nvidia-caps"} in daemon["volumeMounts"]
    assert [one["hostPath"]["path"] for one in pod["volumes"] if one["name"] == "nvidia-caps"] == ["/dev/nvidia-caps"]
    loaded(next(m["data"] for m in release.kind("ConfigMap") if "config.json" in m["data"]))


def test_a_daemon_that_cuts_cards_by_a_library_that_opens_device_nodes_may_be_privileged(loaded):
    cut = {"cambricon": {"mode": "dynamic-smlu"}, "hostPaths": [{"path": "/dev"}, {"path": "/usr/local/neuware"}]}
    release = rendered({"devicePlugin": {"privileged": True, **cut}})
    (daemon,) = release.one("DaemonSet")["spec"]["template"]["spec"]["containers"]
    configured = loaded(next(m["data"] for m in release.kind("ConfigMap") if "config.json" in m["data"]))

    assert daemon["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert {"name": "host-0", "mountPath": "/dev", "readOnly": True} in daemon["volumeMounts"]
    assert configured.vendors["cambricon"].cuts


def test_no_other_daemon_has_anything_of_mig():
    assert "mig" not in str(rendered({}).one("DaemonSet")).lower()


def test_the_right_to_write_conditions_is_granted_where_a_daemon_writes_them_and_nowhere_else():
    def granted(plugin):
        roles = rendered({"devicePlugin": plugin}).kind("ClusterRole")
        return [rule["verbs"] for role in roles for rule in role["rules"] if "nodes/status" in rule["resources"]]

    on = {"config": {"nodeCondition": True}}
    assert granted({}) == []
    assert granted(on) == [["patch"]]
    assert granted({"pools": [{"name": "a", "nodeSelector": {"a": "b"}, **on}]}) == [["patch"]]


def test_a_daemon_sees_the_hosts_processes_only_where_it_is_to_say_whose_they_are():
    def sees(plugin):
        pods = [one["spec"]["template"]["spec"] for one in rendered({"devicePlugin": plugin}).kind("DaemonSet")]
        return [pod.get("hostPID", False) for pod in pods]

    on = {"nvidia": {"processUsage": True}}
    assert sees({}) == [False]
    assert sees(on) == [True]
    assert sees({"pools": [{"name": "a", "nodeSelector": {"a": "b"}, **on}]}) == [True]
