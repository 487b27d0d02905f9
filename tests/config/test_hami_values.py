"""HAMi's chart values and what each becomes: every row of the table, and what files do that rows do not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_plugin.cli.values import vendors
from hami_plugin.config.hami_values import MAKERS, ValueOutcome, convert, own_values, rules
from tests.support.pages import generated
from tests.support.scale import spread

HAMI_DEFAULTS = Path(__file__).parent / "hami_chart_defaults.yaml"
VENDORS = vendors()


def nested(path: str, value: object) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def example(rule: Any) -> tuple[str, object]:
    """The key and the value of a row's example. A row of all vendors names one."""
    if "*" not in rule.key:
        return rule.key, rule.example
    ((vendor, value),) = rule.example.items()
    return rule.key.replace("*", vendor), value


def file_of(rule: Any) -> dict[str, Any]:
    """A file with the row's example, and with what it counts with."""
    key, value = example(rule)
    document = nested(key, value)
    if rule.by == "pool":
        document["devices"][key.split(".")[1]]["enabled"] = True
    return document


def only(document: dict[str, Any]):
    found = convert(document, VENDORS)
    (finding,) = (one for one in found.findings if one.outcome is not ValueOutcome.DEFAULT or len(found.findings) == 1)
    return found, finding


WRITING = [rule for rule in rules() if rule.to]
IDS = {"ids": lambda rule: rule.key}


@pytest.mark.parametrize("rule", spread(WRITING, lambda rule: rule.by), **IDS)
def test_the_example_of_each_row_becomes_values_of_ours_that_the_daemon_accepts(rule):
    found, finding = only(file_of(rule))

    assert found.complete, finding.text
    if finding.outcome is ValueOutcome.DROPPED:
        assert rule.by in ("our_image", "daemon_arguments", "scheduler_arguments"), finding.text
        return
    assert finding.outcome in (ValueOutcome.BECOMES, ValueOutcome.SAME)
    assert [path for path in finding.to if not own_values().has(path)] == []
    targets = tuple(to.replace("*", finding.key.split(".")[1] if "*" in rule.key else "*") for to in rule.to)
    others = (
        ("imagePullSecrets", "devicePlugin.nodeSelector") if rule.by in ("kube_scheduler", "our_image", "pool") else ()
    )
    assert [path for path in finding.to if not path.startswith((*targets, *others))] == []


@pytest.mark.parametrize("rule", [rule for rule in rules() if not rule.to], **IDS)
def test_a_row_without_a_key_of_ours_says_why(rule):
    value = True if rule.fine in ((False,), ()) else "something else" if rule.fine != (True,) else False
    found, finding = only(nested(rule.key, value))

    assert bool(rule.drop) != bool(rule.refuse)
    assert finding.outcome is (ValueOutcome.DROPPED if rule.drop else ValueOutcome.REFUSED)
    assert finding.text == (rule.drop or rule.refuse)
    assert found.values == {}


@pytest.mark.parametrize(
    ("rule", "fine"), [(rule, fine) for rule in rules() for fine in rule.fine if "*" not in rule.key]
)
def test_what_changes_nothing_is_not_written(rule, fine):
    found, finding = only(nested(rule.key, fine))

    assert finding.outcome is ValueOutcome.DEFAULT
    assert found.values == {}


def test_every_row_is_about_another_key_and_every_maker_has_a_row():
    assert len({rule.key for rule in rules()}) == len(rules())
    assert {rule.by for rule in rules()} == set(MAKERS)
    assert [rule.key for rule in WRITING if rule.example is None or not rule.type] == []


def test_every_key_of_hamis_chart_is_known_and_what_it_has_by_default_can_be_taken_over():
    found = convert(yaml.safe_load(HAMI_DEFAULTS.read_text(encoding="utf-8")), VENDORS)

    assert len(found.findings) > 150
    assert [one for one in found.findings if one.outcome.fails] == []


def test_a_value_of_ours_passes_unchanged_and_so_does_a_result():
    ours = {
        "devicePlugin": {"hostPaths": [{"path": "/opt/x"}], "nvidia": {"filterDevices": {"index": [1]}}},
        "scheduler": {"resources": {"limits": {"cpu": "1"}}, "tls": {"source": "cert-manager"}},
        "deviceConfig": {"nvidia": {"defaultCores": 10}},
    }
    found = convert(ours, VENDORS)
    hamis = convert({"devicePlugin": {"deviceSplitCount": 3, "runtimeClassName": "nvidia"}}, VENDORS)

    assert (found.values, found.complete) == (ours, True)
    assert {one.outcome for one in found.findings} == {ValueOutcome.SAME}
    assert convert(hamis.values, VENDORS).values == hamis.values


@pytest.mark.parametrize(
    ("document", "key", "hint"),
    [
        ({"scheduler": {"replica": 1}}, "scheduler.replica", "scheduler.replicas"),
        ({"deviceSplitCount": 1}, "deviceSplitCount", "devicePlugin.deviceSplitCount"),
        ({"devicePlugin": {"deviceSplitcount": 1}}, "devicePlugin.deviceSplitcount", "devicePlugin.deviceSplitCount"),
        ({"resourceCore": "a/b"}, "resourceCore", "resourceCores"),
        ({"devices": {"nobody": {"enabled": False}}}, "devices.nobody", "for all keys"),
        ({"devices": {"kunlun": {"enable": True}}}, "devices.kunlun.enable", "devices.kunlun.enabled"),
        ({"tolerationz": None}, "tolerationz", "tolerations"),
    ],
)
def test_a_key_that_nobody_knows_is_left_out_with_the_one_that_may_be_meant(document, key, hint):
    found, finding = only(document)

    assert (finding.key, finding.outcome, found.values) == (key, ValueOutcome.UNKNOWN, {})
    assert hint in finding.text


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"resourceName": 3}, "3: must be text; put it in quotes"),
        ({"scheduler": {"kubeScheduler": {"imageTag": 1.28}}}, "1.28: must be text; put it in quotes"),
        ({"devicePlugin": {"deviceSplitCount": "ten"}}, '"ten": must be a whole number'),
        ({"devicePlugin": {"deviceSplitCount": True}}, "true: must be a whole number"),
        ({"devicePlugin": {"deviceSplitCount": 5000}}, "5000: must be at most 1000; the default is 10"),
        ({"devicePlugin": {"deviceMemoryScaling": -1}}, "must be above 0"),
        ({"devicePlugin": {"enableNumaTopology": "perhaps"}}, '"perhaps": must be true or false'),
        ({"devicePlugin": {"tolerations": {"key": "x"}}}, "must be a list"),
        ({"devicePlugin": {"nvidiaNodeSelector": "gpu=on"}}, "must be a section of keys"),
        ({"devicePlugin": 3}, "3: must be a section of keys"),
        ({"devicePlugin": {"extraArgs": ["--mig-strategy=none"]}}, "--mig-strategy=none is an argument of HAMi's"),
        ({"devicePlugin": {"deviceListStrategy": "envvar,teleport"}}, "teleport"),
        (
            {"devicePlugin": {"pluginPath": "/var/lib/kubelet"}},
            "must be an absolute path that ends with /device-plugins",
        ),
        ({"devicePlugin": {"nodeConfiguration": {"config": "{"}}}, "is no YAML or JSON"),
        ({"devicePlugin": {"nodeConfiguration": {"config": "{}"}}}, "nodeconfig"),
        (
            {
                "devicePlugin": {
                    "nodeConfiguration": {"config": '{"nodeconfig": [{"name": "n", "devicesplitcount": 0}]}'}
                }
            },
            "0: must be at least 1",
        ),
        ({"scheduler": {"defaultSchedulerPolicy": {"nodeSchedulerPolicy": "pack"}}}, '"pack": must be'),
        ({"scheduler": {"defaultSchedulerPolicy": {"gpuSchedulerPolicy": "bnpack"}}}, "'bnpack' is not an order"),
        ({"scheduler": {"extenderHTTPTimeout": 5}}, "a bind may take 30 seconds"),
        ({"schedulerName": "Not A Name"}, "must match"),
        ({"resourceName": "gpu"}, "must match"),
        ({"scheduler": {"admissionWebhook": {"objectSelector": {"labels": {"a": "b"}}}}}, "labels is no part"),
        ({"device-config": {"content": "nvidia: ["}}, "is no YAML or JSON"),
        ({"device-config": {"content": "text"}}, "must hold the sections"),
        ({"global": {"imagePullSecrets": [3]}}, "must be a list of Secrets' names"),
    ],
)
def test_a_value_that_nothing_could_live_with_is_refused_and_left_out(document, why):
    found, finding = only(document)

    assert (finding.outcome, found.values) == (ValueOutcome.REFUSED, {})
    assert why in finding.text


def test_two_keys_that_set_one_value_otherwise_are_told_apart():
    found = convert({"version": "v2.5.0", "global": {"imageTag": "v2.8.0", "gpuHookPath": "/opt"}}, VENDORS)
    same = convert({"devicePlugin": {"libPath": "/opt/vgpu"}, "global": {"gpuHookPath": "/opt"}}, VENDORS)

    assert [one.outcome for one in found.findings] == [ValueOutcome.BECOMES, ValueOutcome.REFUSED, ValueOutcome.BECOMES]
    assert 'version sets devicePlugin.core.image.tag to "v2.5.0" already' in found.findings[1].text
    assert found.values["devicePlugin"]["core"]["image"]["tag"] == "v2.5.0"
    assert same.complete


def test_lists_and_labels_of_several_keys_are_joined():
    found = convert(
        {
            "global": {"imagePullSecrets": ["a"], "labels": {"x": "1"}},
            "imagePullSecrets": [{"name": "a"}, {"name": "b"}],
            "devicePlugin": {"podLabels": {"y": "2"}},
        },
        VENDORS,
    )

    assert found.values["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    assert found.values["devicePlugin"]["podLabels"] == {"x": "1", "y": "2"}


def test_a_device_config_of_ones_own_replaces_what_else_says_the_same():
    content = "nvidia: {deviceSplitCount: 7, resourceCountName: a.b/c}\niluvatars: []\n"
    found = convert(
        {
            "device-config": {"content": content},
            "resourceName": "x.y/z",
            "devicePlugin": {"deviceSplitCount": 3, "runtimeClassName": "nvidia"},
        },
        VENDORS,
    )
    texts = {one.key: one.text for one in found.findings if one.outcome is ValueOutcome.DROPPED}

    assert found.values == {
        "deviceConfig": {"nvidia": {"deviceSplitCount": 7, "resourceCountName": "a.b/c"}, "iluvatars": []},
        "devicePlugin": {"runtimeClassName": "nvidia"},
    }
    assert set(texts) == {"resourceName", "devicePlugin.deviceSplitCount"}


def test_nodes_of_another_vendor_get_a_pool_that_does_not_meet_the_first():
    found = convert(
        {
            "devicePlugin": {"nvidiaNodeSelector": {"gpu": "yes"}},
            "devices": {"ascend": {"enabled": True, "nodeSelector": {"ascend": "on"}, "tolerations": [{"key": "npu"}]}},
        },
        VENDORS,
    )

    assert found.complete
    assert found.values["devicePlugin"] == {
        "nodeSelector": {"gpu": None},
        "pools": [
            {"name": "gpu", "nodeSelector": {"gpu": "yes"}},
            {"name": "ascend", "nodeSelector": {"ascend": "on"}, "tolerations": [{"key": "npu"}]},
        ],
    }


def test_what_is_right_stays_where_something_else_is_refused():
    found = convert({"resourceName": "a.b/c", "resourceMem": "a.b/c"}, VENDORS)

    assert not found.complete
    assert [one.outcome for one in found.findings].count(ValueOutcome.REFUSED) > 0
    assert convert(found.values, VENDORS).complete


def test_the_page_of_hamis_values_is_the_table():
    rows = "".join(f"| `{rule.key}` | {ours(rule)} | {explained(rule)} |\n" for rule in rules())
    wanted = f"\n| HAMi's value | ours | |\n|---|---|---|\n{rows}\n"

    assert generated("docs/reference/hami-values.md", "values", wanted) == wanted, (
        "write it anew: UPDATE_DOCS=1 make test"
    )


def ours(rule: Any) -> str:
    if rule.to:
        return ", ".join(f"`{to}`" for to in rule.to)
    return "refused" if rule.refuse else "none"


def explained(rule: Any) -> str:
    same = ", ".join(f"`{yaml.safe_dump(one, default_flow_style=True).split(chr(10))[0]}`" for one in rule.fine)
    fine = f"{same} changes nothing here" if same else ""
    return "; ".join(filter(None, (rule.note or rule.drop or rule.refuse, fine))).replace("|", "\\|")
