"""Alerts, recording rules and dashboards against the collectors and the runbooks; promtool is in tests/runtimes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from tests.docs.test_docs import anchors
from tests.docs.test_metrics_page import daemon, scheduler
from tests.support.promql import unknown

ROOT = Path(__file__).parents[2]
BOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
TARGET = frozenset({"node", "job", "instance"})
OF_PROMETHEUS = {name: frozenset[str]() for name in ("up", "process_resident_memory_bytes")}


def rules():
    document = yaml.safe_load((ROOT / "deploy/prometheus/rules.yaml").read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def exported() -> Iterator[tuple[str, frozenset[str]]]:
    """Every series of the daemon and the scheduler, with its labels."""
    for registry in (daemon(), scheduler()):
        for collector in registry._collector_to_names:
            counted = isinstance(collector, MetricWrapperBase)
            for metric in collector.describe() if counted else collector.collect():
                labels = frozenset((collector if counted else metric)._labelnames)
                match metric.type:
                    case "counter":
                        yield f"{metric.name}_total", labels
                    case "histogram":
                        yield f"{metric.name}_bucket", labels | {"le"}
                    case _:
                        yield metric.name, labels


def known() -> dict[str, frozenset[str]]:
    found = dict(OF_PROMETHEUS)
    for name, labels in exported():
        found[name] = found.get(name, frozenset()) | labels
    for rule in rules():
        if "record" in rule:
            by = re.search(r"\bby \(([^)]*)\)", rule["expr"])
            found[rule["record"]] = frozenset(by[1].replace(" ", "").split(",") if by else ()) - {"le"}
    return found


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_names_what_is_exported(rule):
    assert list(unknown(rule["expr"], known(), TARGET)) == []


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_a_dashboard_names_what_is_exported_and_each_panel_once(board):
    panels = json.loads(board.read_text(encoding="utf-8"))["panels"]
    queries = [(panel["title"], one["expr"]) for panel in panels for one in panel.get("targets", ())]

    assert [(title, list(unknown(text, known(), TARGET))) for title, text in queries] == [(t, []) for t, _ in queries]
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.parametrize("rule", [rule for rule in rules() if "alert" in rule], ids=lambda rule: rule["alert"])
def test_an_alert_has_a_severity_words_and_a_runbook_that_exists(rule):
    page, _, section = rule["annotations"]["runbook_url"].partition("#")

    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"].endswith(".")
    assert section in anchors(ROOT / page)
    assert rule["alert"] in (ROOT / "deploy/README.md").read_text(encoding="utf-8") or page != "deploy/README.md"


def test_a_metric_that_is_gone_is_noticed():
    assert list(unknown("sum(hami_plugin_nothing)", known(), TARGET)) == ["no metric hami_plugin_nothing"]
