"""values.schema.json: what values.yaml holds, with the keys of each vendor's settings, so that a slip is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from hami_plugin.config.settings import Settings
from hami_plugin.sdk import load_vendor, vendor_names
from tests.charts.helm import CHART

Schema = dict[str, Any]

FREE = {"nodeSelector", "affinity", "podAnnotations", "podLabels", "resources", "livenessProbe", "readinessProbe"}
FREE |= {"updateStrategy", "deviceConfig", "labels", "issuerRef"}
"""Values that are Kubernetes' or HAMi's own words."""

TRUTH_OR_AUTO = {"enum": [True, False, "auto"]}
CHOICES: Mapping[str, Schema] = {
    "devicePlugin.mountDriverRoot": TRUTH_OR_AUTO,
    "scheduler.tls.source": {"enum": ["helm", "cert-manager", "secret"]},
    "scheduler.webhook.failurePolicy": {"enum": ["", "Fail", "Ignore"]},
    "scheduler.nodeSchedulerPolicy": {"enum": ["binpack", "spread"]},
    "scheduler.kubeScheduler.configVersion": {"enum": ["", "v1", "v1beta3", "v1beta2", "v1beta1"]},
    "admissionPolicies.validationActions": {"type": "array", "items": {"enum": ["Deny", "Warn", "Audit"]}},
    "scheduler.tls.days": {"type": "integer", "minimum": 1},
    "scheduler.replicas": {"type": "integer", "minimum": 0},
    "scheduler.webhook.timeoutSeconds": {"type": "integer", "minimum": 1, "maximum": 30},
}
ELSEWHERE = {"node_name", "vendors", "scheduler"}
"""Keys of the daemon's file that have values of their own, or come from the pod."""

POOL = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "pattern": "^[a-z0-9-]+$"}}}


def schema() -> str:
    """The file's text."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    whole = {"$schema": "http://json-schema.org/draft-07/schema#", **_of("", values)}
    # An umbrella chart adds this one to its own values.
    whole["properties"]["global"] = {"type": "object"}
    return json.dumps(whole, indent=1) + "\n"


def _of(path: str, value: object) -> Schema:
    name = path.rpartition(".")[2]
    if path in CHOICES:
        return dict(CHOICES[path])
    if path == "devicePlugin.config":
        return _section({name: field for name, field in Settings.model_fields.items() if name not in ELSEWHERE})
    if path == "devicePlugin.pools":
        return {"type": "array", "items": POOL}
    if path.startswith("devicePlugin.") and name in vendor_names():
        return _vendor(name)
    match value:
        case dict() if name in FREE:
            return {"type": "object"}
        case dict():
            inner = {key: _of(f"{path}.{key}".strip("."), each) for key, each in value.items()}
            return {"type": "object", "additionalProperties": False, "properties": inner}
        case bool():
            return {"type": "boolean"}
        case list():
            return {"type": "array"}
        case int() | float():
            return {"type": "number"}
        case _:
            return {"type": "string"}


def _vendor(name: str) -> Schema:
    """Keys as the daemon knows them; their values it checks itself, and says more of what is wrong."""
    settings = load_vendor(name).settings
    section = _section(settings.model_fields)
    section["properties"] |= {key: {} for key in (*settings.helm, *settings.fixed)}
    section["properties"]["enabled"] = TRUTH_OR_AUTO
    return section


def _section(fields: Mapping[str, Any]) -> Schema:
    keys: Schema = {field.alias or name: {} for name, field in fields.items()}
    return {"type": "object", "additionalProperties": False, "properties": keys}
