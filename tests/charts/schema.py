"""values.schema.json: what values.yaml may hold, with the types of each vendor's settings: a slip is refused."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from hami_plugin.config.explain import fields, takes_list
from hami_plugin.config.settings import ORDERS, SchedulerSettings, Settings
from hami_plugin.config.vendors import AUTO, ServedSettings
from hami_plugin.sdk import load_vendor, vendor_names
from tests.charts.helm import CHART

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
TRUTH: Schema = {"type": "boolean"}
TEXTS: Schema = {"type": "array", "items": TEXT}
LABELS: Schema = {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
AMOUNTS: Schema = {"type": "object", "additionalProperties": {"type": ["string", "number", "null"]}}
WHOLE: Schema = {"type": "integer", "minimum": 0}
LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
NAME: Schema = {"type": "string", "pattern": f"^({LABEL})?$", "maxLength": 50}
PATH: Schema = {"type": "string", "pattern": "^/"}
DURATION: Schema = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"}
SCALAR: Schema = {"type": ["string", "number", "boolean"]}


def closed(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """A section with these keys and no others."""
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "additionalProperties": False, **needed, "properties": properties}


def items(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


SELECTOR = closed(matchLabels=LABELS, matchExpressions=items({"type": "object", "required": ["key", "operator"]}))
PROBE = closed(
    httpGet={"type": ["object", "null"]},
    exec=closed(command=TEXTS),
    tcpSocket={"type": "object"},
    grpc={"type": "object"},
    **dict.fromkeys(
        ("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "successThreshold", "failureThreshold"), WHOLE
    ),
    terminationGracePeriodSeconds=WHOLE,
)
AMOUNT_OR_PERCENT: Schema = {"type": ["integer", "string"]}

NAMED: Mapping[str, Schema] = {
    "affinity": {"type": "object"},
    "extraArgs": TEXTS,
    "extraEnv": items(closed(("name",), name=TEXT, value=TEXT, valueFrom={"type": "object"})),
    "imagePullSecrets": items(closed(("name",), name=TEXT)),
    "issuerRef": closed(name=TEXT, kind=TEXT, group=TEXT),
    "labels": LABELS,
    "livenessProbe": PROBE,
    "nameOverride": NAME,
    "nodeSelector": LABELS,
    "podAnnotations": LABELS,
    "podLabels": LABELS,
    "pullPolicy": {"enum": ["", "Always", "IfNotPresent", "Never"]},
    "readinessProbe": PROBE,
    "repository": {"type": "string", "pattern": "^([A-Za-z0-9][A-Za-z0-9._/:-]*[A-Za-z0-9])?$"},
    "resources": closed(requests=AMOUNTS, limits=AMOUNTS, claims=items({"type": "object"})),
    "tag": {"type": "string", "pattern": "^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$"},
    "tolerations": items(
        closed(
            key=TEXT,
            operator={"enum": ["Exists", "Equal"]},
            value=TEXT,
            effect={"enum": ["", "NoSchedule", "PreferNoSchedule", "NoExecute"]},
            tolerationSeconds={"type": "integer"},
        )
    ),
    "updateStrategy": closed(
        type={"enum": ["RollingUpdate", "OnDelete"]},
        rollingUpdate={"type": ["object", "null"], "additionalProperties": AMOUNT_OR_PERCENT},
    ),
}
"""Values that are Kubernetes' own, wherever they stand."""

TRUTH_OR_AUTO = {"enum": [True, False, "auto"]}
PLACED: Mapping[str, Schema] = {
    "admissionPolicies.exemptUsers": TEXTS,
    "admissionPolicies.validationActions": {
        "type": "array",
        "minItems": 1,
        "items": {"enum": ["Deny", "Warn", "Audit"]},
    },
    "devicePlugin.hostPaths": items(closed(path=TEXT, readOnly=TRUTH)),
    "devicePlugin.image.repository": {"type": "string", "minLength": 1},
    "devicePlugin.kubeletRoot": PATH,
    "devicePlugin.mountDriverRoot": TRUTH_OR_AUTO,
    "devicePlugin.networkPolicy.from": items({"type": "object"}),
    "devicePlugin.nodeConfig": items({"type": "object", "required": ["name"], "properties": {"name": TEXT}}),
    "devicePlugin.runtimeConfigDir": {"type": "string", "pattern": "^(/.*)?$"},
    "monitoring.podMonitor.interval": DURATION,
    "scheduler.claimVendors": items({"enum": list(vendor_names())}),
    "scheduler.extenderTimeout": DURATION,
    "scheduler.extraResources": items({"type": "string", "pattern": "^[^/]+/[^/]+$"}),
    "scheduler.gpuSchedulerPolicy": {
        "type": "string",
        "pattern": f"^({'|'.join(ORDERS)})( *, *({'|'.join(ORDERS)}))*$",
    },
    "scheduler.kubeScheduler.configVersion": {"enum": ["", "v1", "v1beta3", "v1beta2", "v1beta1"]},
    "scheduler.networkPolicy.apiServers": items({"type": "string", "pattern": "^[0-9a-fA-F.:]+/[0-9]{1,3}$"}),
    "scheduler.networkPolicy.monitoring": items({"type": "object"}),
    "scheduler.nodeSchedulerPolicy": {"enum": ["binpack", "spread"]},
    "scheduler.replicas": WHOLE,
    "scheduler.schedulerName": {"type": "string", "pattern": rf"^{LABEL}(\.{LABEL})*$", "maxLength": 253},
    "scheduler.tls.days": {"type": "integer", "minimum": 1},
    "scheduler.tls.source": {"enum": ["helm", "cert-manager", "secret"]},
    "scheduler.webhook.clientNames": TEXTS,
    "scheduler.webhook.exemptNamespaces": TEXTS,
    "scheduler.webhook.failurePolicy": {"enum": ["", "Fail", "Ignore"]},
    "scheduler.webhook.namespaceSelector": SELECTOR,
    "scheduler.webhook.objectSelector": SELECTOR,
    "scheduler.webhook.timeoutSeconds": {"type": "integer", "minimum": 1, "maximum": 30},
}
"""Values with a form of their own."""

MOUNTED = {"kubelet_dir", "pod_resources_socket", "state_dir"}
"""Keys of the daemon's file that are mount points of the chart: another directory would not be there."""
ELSEWHERE = {"node_name", "vendors", "scheduler", *MOUNTED}
"""Keys of the daemon's file that have values of their own, or come from the pod."""
OF_FLAGS = {
    "client_ca",
    "device_order",
    "http_host",
    "http_port",
    "listen_host",
    "listen_port",
    "name",
    "node_order",
    "tls_cert",
    "tls_key",
    "webhook_client_ca",
    "webhook_client_names",
}
"""Keys of the scheduler's section that the chart sets by flags, or cannot mount."""


def schema() -> str:
    """The file's text."""
    whole = {"$schema": "http://json-schema.org/draft-07/schema#", **_of("", _values())}
    plugin = whole["properties"]["devicePlugin"]["properties"]
    of_pools = {
        key: {"$ref": f"#/properties/devicePlugin/properties/{key}"}
        for key in plugin
        if key not in ("enabled", "nameOverride", "pools")
    }
    name = {"type": "string", "pattern": f"^{LABEL}$", "maxLength": 20}
    plugin["pools"] = items(closed(("name",), name=name, **of_pools))
    # An umbrella chart adds this one to its own values.
    whole["properties"]["global"] = {"type": "object"}
    return json.dumps(whole, indent=1) + "\n"


def known() -> str:
    """hami_plugin/config/chart_values.json: all values with their defaults, and the sections that may hold more."""
    settings = ["devicePlugin.config", "scheduler.config", "deviceConfig"]
    settings += [f"devicePlugin.{name}" for name in sorted(vendor_names())]
    opened = sorted({*settings, *_open("", _values())})
    return json.dumps({"defaults": _values(), "open": opened, "settings": settings}, indent=1) + "\n"


def _values() -> Any:
    return yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


def _open(path: str, value: object) -> Iterator[str]:
    """Sections whose keys are Kubernetes' own, and empty ones."""
    if isinstance(value, dict):
        if path and (path.rpartition(".")[2] in NAMED or not value):
            yield path
        else:
            for key, each in value.items():
                yield from _open(f"{path}.{key}".strip("."), each)


def _of(path: str, value: object) -> Schema:
    name = path.rpartition(".")[2]
    if path in PLACED:
        return PLACED[path]
    if path == "devicePlugin.config":
        section = _settings(Settings, without=ELSEWHERE)
        section["properties"]["overcommitCheck"]["enum"].insert(0, "")
        section["properties"]["httpPort"]["minimum"] = 1  # 0 is any port, which no probe knows
        return section
    if path == "scheduler.config":
        return _settings(SchedulerSettings, without=OF_FLAGS)
    if path == "deviceConfig":
        return _device_config()
    if path.startswith("devicePlugin.") and name in vendor_names():
        return _vendor(name)
    if name in NAMED:
        return NAMED[name]
    match value:
        case dict():
            return closed(**{key: _of(f"{path}.{key}".strip("."), each) for key, each in value.items()})
        case bool():
            return TRUTH
        case list():
            return {"type": "array"}
        case int() | float():
            return {"type": "number"}
        case _:
            return TEXT


def _vendor(name: str) -> Schema:
    """A vendor's section, with the names that HAMi's documentation has for its keys."""
    settings = load_vendor(name).settings
    section = _settings(settings)
    properties = section["properties"]
    properties |= {ours: properties[theirs] for ours, theirs in settings.helm.items()}
    properties |= {key: SCALAR for key in settings.fixed if key not in properties}
    properties["enabled"] = TRUTH_OR_AUTO
    return section


def _device_config() -> Schema:
    """HAMi's file: the sections that the daemon reads have types, and others are let through."""
    sections: Schema = {}
    for name in vendor_names():
        settings = load_vendor(name).settings
        section = _lenient(_settings(settings))
        if settings.hami_list:
            section = {"anyOf": [section, section["properties"][settings.hami_list]]}
        sections[settings.hami_section or name] = section
    return {"type": "object", "properties": sections}


def _settings(model: type[BaseModel], *, without: Collection[str] = ()) -> Schema:
    """The schema of a settings class, without words and without references."""
    written, found = models_json_schema([(model, "validation")], by_alias=True)
    definitions: Schema = found.get("$defs", {})
    whole = _plain(definitions[written[model, "validation"]["$ref"].rpartition("/")[2]], definitions)
    for key, field in fields(model).items():
        if next(name for name, one in model.model_fields.items() if one is field) in without:
            del whole["properties"][key]
        elif takes_list(field) and whole["properties"][key].get("items") == TEXT:  # as comma-separated text, too
            whole["properties"][key] = {"anyOf": [whole["properties"][key], TEXT]}
    if issubclass(model, ServedSettings):
        ways = {"enum": [AUTO, *sorted(map(str, model.served_ways))]}
        whole["properties"]["deviceListStrategy"] = {"anyOf": [{**items(ways), "minItems": 1}, TEXT]}
    return whole


WORDS = {"title", "description", "default", "required", "format"}


def _plain(schema: Any, definitions: Schema) -> Any:
    if isinstance(schema, list):
        return [_plain(one, definitions) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "properties" in schema:
        inner = {key: _plain(one, definitions) for key, one in schema["properties"].items()}
        rest = {key: one for key, one in schema.items() if key != "properties"}
        return {**_plain(rest, definitions), "properties": inner}
    return {key: _plain(one, definitions) for key, one in schema.items() if key not in WORDS}


def _lenient(schema: Any) -> Any:
    """The same, for a file whose unknown keys are let through."""
    if isinstance(schema, list):
        return [_lenient(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _lenient(one) for key, one in schema.items() if (key, one) != ("additionalProperties", False)}
