"""What `hami-plugin values convert` prints renders with Helm, and the daemon and the scheduler accept that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from hami_plugin.cli import main
from hami_plugin.cli.values import vendors
from hami_plugin.config.hami_values import convert, rules
from hami_plugin.scheduler.extender.app import configured
from tests.charts import sets
from tests.charts.helm import Release, installed, rendered
from tests.config.test_hami_values import HAMI_DEFAULTS, file_of

VENDORS = vendors()


def files() -> list[dict[str, Any]]:
    """The examples of all rows in as few files of HAMi's values as possible: in each, rows set other values of ours."""
    found: list[dict[str, Any]] = []
    left = [rule for rule in rules() if rule.to and rule.by != "device_config"]
    while left:
        taken: list[str] = []
        chosen = []
        for rule in left:
            targets = [switched(to) if rule.example is False else to for to in rule.to]
            if not any(meet(one, other) for one in targets for other in taken):
                taken += targets
                chosen.append(rule)
        found.append(merged([file_of(rule) for rule in chosen]))
        left = [rule for rule in left if rule not in chosen]
    return found


def switched(to: str) -> str:
    """The section that a value switches off."""
    return to.removesuffix(".enabled")


def meet(one: str, other: str) -> bool:
    """Whether one path is the other, or inside it."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def merged(documents: list[dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for document in documents:
        _overlay(result, document)
    return result


def _overlay(below: dict[str, Any], above: dict[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _overlay(below[key], value)
        else:
            below[key] = value


DOCUMENTS = {
    **{f"examples {n}": document for n, document in enumerate(files())},
    "HAMi's defaults": yaml.load(HAMI_DEFAULTS.read_text(encoding="utf-8"), yaml.CSafeLoader),
    "HAMi's documentation": yaml.load(
        (Path(__file__).parents[1] / "seeds/003_values.yaml").read_text("utf-8"), yaml.CSafeLoader
    ),
    "a device-config": {"device-config": {"content": "nvidia: {deviceSplitCount: 5}\niluvatars: []\n"}},
}
OURS = {"devicePlugin": {"image": {"repository": "registry.example.com/hami-plugin"}}}


@pytest.fixture(scope="module")
def releases() -> dict[str, Release]:
    """Each converted file, rendered; all in one process of Helm's, as upgrades of one another."""
    converted = {}
    for name, document in DOCUMENTS.items():
        found = convert(document, VENDORS)
        assert found.complete, [one for one in found.findings if one.outcome.fails]
        converted[name] = merged([found.values, OURS])
    return dict(zip(DOCUMENTS, installed(*converted.values()), strict=True))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_daemon_and_the_scheduler_accept_what_becomes_of_hamis_values(releases, name, loaded, tmp_path):
    configs = [config["data"] for config in releases[name].kind("ConfigMap")]
    for data in (data for data in configs if "config.json" in data):
        loaded(data)
    for data in (data for data in configs if "kube-scheduler.yaml" in data):
        for file, text in data.items():
            (tmp_path / file).write_text(text, encoding="utf-8")
        spec = releases[name].one("Deployment")["spec"]["template"]["spec"]
        (ours,) = (c for c in spec["containers"] if c["name"] == "hami-plugin")
        given = main.commands["scheduler"].make_context("scheduler", ours["args"][1:]).params
        given |= {"config": tmp_path / "config.yaml", "device_config": tmp_path / "device-config.yaml"}
        settings = configured(given, {}).settings.scheduler
        assert (settings.name, settings.node_order) == (given["scheduler_name"], given["node_scheduler_policy"])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_daemons_arguments_are_options_that_it_has(releases, name):
    for document in releases[name].kind("DaemonSet"):
        (container,) = document["spec"]["template"]["spec"]["containers"]
        context = main.commands["run"].make_context("run", container["args"][1:])
        assert isinstance(context, click.Context)


def test_the_scheduler_assigns_pods_of_the_default_scheduler_unless_told_otherwise(tmp_path):
    def replaces(**values: Any) -> bool:
        (data,) = (c["data"] for c in rendered(values).kind("ConfigMap") if "kube-scheduler.yaml" in c["data"])
        (tmp_path / "config.yaml").write_text(data["config.yaml"], encoding="utf-8")
        return configured({"config": tmp_path / "config.yaml"}, {}).settings.scheduler.replaces_default

    assert replaces() is True
    assert replaces(scheduler={"config": {"replacesDefault": False}}) is False


def test_the_webhook_can_be_narrowed_and_never_sees_what_must_be_left_alone():
    chosen = {"matchLabels": {"team": "ml"}, "matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
    values = {"scheduler": {"webhook": {"namespaceSelector": chosen, "objectSelector": chosen}}}
    (hook,) = rendered(values).one("MutatingWebhookConfiguration")["webhooks"]
    (before,) = rendered(sets.DAEMON | {"scheduler": {}}).one("MutatingWebhookConfiguration")["webhooks"]

    for name in ("namespaceSelector", "objectSelector"):
        assert hook[name]["matchLabels"] == {"team": "ml"}
        assert hook[name]["matchExpressions"] == [*before[name]["matchExpressions"], *chosen["matchExpressions"]]
