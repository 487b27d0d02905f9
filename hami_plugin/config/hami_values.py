"""The values of HAMi's chart as values of ours: each key becomes another one, is the default, or is explained.

``hami_values.yaml`` is the table. ``chart_values.json`` holds our own values with their defaults; the chart makes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from hami_plugin.config.documents import parse_yaml
from hami_plugin.config.explain import nearest, shown
from hami_plugin.config.load import load
from hami_plugin.config.vendors import VendorSettings
from hami_plugin.errors import ConfigError
from hami_plugin.host.bounded_yaml import read_yaml

Values = dict[str, Any]


class ValueOutcome(StrEnum):
    """What happens to a key."""

    BECOMES = "becomes"
    SAME = "same"
    DEFAULT = "default"
    DROPPED = "dropped"
    REFUSED = "refused"
    UNKNOWN = "unknown"

    @property
    def fails(self) -> bool:
        return self in (ValueOutcome.REFUSED, ValueOutcome.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A row of the table; its head describes the fields."""

    key: str
    type: str = ""
    to: tuple[str, ...] = ()
    by: str = "as_it_is"
    fine: tuple[object, ...] = ()
    drop: str = ""
    refuse: str = ""
    note: str = ""
    inside: bool = False
    example: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedValue:
    """A key of the file and what happens to it. ``to`` has our keys with their values, ``text`` says why."""

    key: str
    outcome: ValueOutcome
    to: Mapping[str, object] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartValues:
    """Our chart's values: their defaults, and the paths of sections that may hold further keys.

    Of those, ``settings`` hold the daemon's own keys; the others are Kubernetes' and are taken whole.
    """

    defaults: Mapping[str, Any]
    open: frozenset[str]
    settings: frozenset[str]

    def has(self, path: str) -> bool:
        """Whether ``path`` is a value of ours, or inside an open section."""
        parts = path.split(".")
        below = any(".".join(parts[:size]) in self.open for size in range(1, len(parts) + 1))
        return below or (_holds(self.defaults, path) and not isinstance(_at(self.defaults, path), Mapping))

    def begins(self, path: str) -> bool:
        return isinstance(_at(self.defaults, path), Mapping) and (path not in self.open or path in self.settings)

    def paths(self) -> Iterator[str]:
        yield from self._paths("", self.defaults)

    def _paths(self, path: str, value: object) -> Iterator[str]:
        if path in self.open or not isinstance(value, Mapping):
            yield path
        else:
            for key, each in value.items():
                yield from self._paths(f"{path}.{key}".lstrip("."), each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """Our values, and what happened to each key of the file. ``notes`` are warnings about the result."""

    values: Values
    findings: tuple[ConvertedValue, ...]
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return not any(finding.outcome.fails for finding in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendors:
    """``resources`` are the names that ship."""

    names: Sequence[str]
    settings: Callable[[str], type[VendorSettings]]
    resources: Collection[str]


class _RefusedError(Exception):
    """The value cannot be taken over; the text says why, and what to do."""


class _DroppedError(Exception):
    """The value has no meaning here; the text says why."""


@cache
def rules() -> tuple[Rule, ...]:
    """The table."""
    rows: Any = read_yaml(_file("hami_values.yaml"))
    return tuple(Rule(**{**row, "to": _several(row.get("to", ())), "fine": tuple(row.get("fine", ()))}) for row in rows)


@cache
def own_values() -> ChartValues:
    """The values of this version's chart."""
    document = json.loads(_file("chart_values.json"))
    opened, settings = frozenset(document["open"]), frozenset(document["settings"])
    return ChartValues(defaults=document["defaults"], open=opened, settings=settings)


def convert(values: Mapping[str, Any], vendors: Vendors) -> Converted:
    """Our values of HAMi's. The daemon and the scheduler accept the result; what they would refuse is left out."""
    table = _Table(vendors)
    findings = list(_Walk(values, table).findings())
    while True:
        findings = list(_merged(findings))
        result = _assembled(findings)
        problems, notes = _problems(result, vendors)
        if not problems:
            return Converted(values=_ordered(result, own_values().defaults), findings=tuple(findings), notes=notes)
        findings = _without(findings, problems)


class _Table:
    """Finds the rule of a key."""

    def __init__(self, vendors: Vendors) -> None:
        self.vendors = vendors
        self.own = own_values()
        self._rules: dict[str, Rule] = {}
        for rule in rules():
            for one in _spelt_out(rule, vendors.names) if "*" in rule.key else (rule,):
                self._rules[one.key] = one

    def rule(self, path: str) -> Rule | None:
        return self._rules.get(path)

    def below(self, path: str) -> bool:
        """Whether a rule is about a key inside ``path``."""
        return any(key.startswith(f"{path}.") for key in self._rules)

    def around(self, path: str) -> Rule | None:
        """The rule that covers all keys of a section around ``path``."""
        while "." in path:
            path = path.rpartition(".")[0]
            if (rule := self._rules.get(path)) and rule.drop:
                return rule
        return None

    def suggestion(self, path: str) -> str:
        known = [*self._rules, *self.own.paths()]
        parent, _, name = path.rpartition(".")
        siblings = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == parent}
        anywhere = {key.rpartition(".")[2]: key for key in reversed(known)}
        for names in (siblings, {key: key for key in known}, anywhere):
            found = nearest(path if names.keys() == set(known) else name, list(names))
            if found:
                return f"did you mean {names[found]}?"
        return "see docs/reference/hami-values.md for all keys"


def _spelt_out(rule: Rule, names: Sequence[str]) -> Iterator[Rule]:
    """A rule of every vendor, for each."""
    for name in names:
        yield replace(rule, key=rule.key.replace("*", name), to=tuple(to.replace("*", name) for to in rule.to))


class _Walk:
    """Goes through a file of HAMi's values."""

    def __init__(self, values: Mapping[str, Any], table: _Table) -> None:
        self._values = values
        self._table = table
        self._replaced = bool(str(_at(values, "device-config.content") or "").strip())

    def findings(self) -> Iterator[ConvertedValue]:
        for key, value in self._values.items():
            yield from self._visit(str(key), value)

    def _visit(self, path: str, value: object) -> Iterator[ConvertedValue]:
        rule, table = self._table.rule(path), self._table
        inside = table.below(path) or (rule is None and table.own.begins(path))
        if isinstance(value, Mapping) and inside:
            for key, each in value.items():
                yield from self._visit(f"{path}.{key}", each)
        elif rule or (rule := None if table.own.has(path) else table.around(path)):
            yield self._applied(rule, path, value)
        elif value is None:
            if not inside and not table.own.has(path):
                yield ConvertedValue(key=path, outcome=ValueOutcome.UNKNOWN, text=table.suggestion(path))
        elif inside:
            yield ConvertedValue(
                key=path, outcome=ValueOutcome.REFUSED, text=f"{shown(value)}: must be a section of keys"
            )
        elif table.own.has(path):
            yield self._made(path, {path: value}, "")
        else:
            yield ConvertedValue(key=path, outcome=ValueOutcome.UNKNOWN, text=table.suggestion(path))

    def _applied(self, rule: Rule, path: str, value: object) -> ConvertedValue:
        if value is None:
            return ConvertedValue(key=path, outcome=ValueOutcome.DEFAULT, text="not set")
        try:
            typed = _typed(rule.type, value) if rule.type else _truth(value)
        except _RefusedError as error:
            return ConvertedValue(key=path, outcome=ValueOutcome.REFUSED, text=f"{shown(value)}: {error}")
        if any(type(typed) is type(fine) and typed == fine for fine in rule.fine):
            return ConvertedValue(key=path, outcome=ValueOutcome.DEFAULT, text=rule.note)
        if rule.drop:
            return ConvertedValue(key=path, outcome=ValueOutcome.DROPPED, text=rule.drop)
        if rule.refuse:
            return ConvertedValue(key=path, outcome=ValueOutcome.REFUSED, text=rule.refuse)
        return self._converted(rule, path, typed)

    def _converted(self, rule: Rule, path: str, value: Any) -> ConvertedValue:
        context = _Context(rule=rule, values=self._values, vendors=self._table.vendors)
        try:
            to = MAKERS[rule.by](context, value)
        except _RefusedError as error:
            return ConvertedValue(key=path, outcome=ValueOutcome.REFUSED, text=f"{shown(value)}: {error}")
        except _DroppedError as error:
            return ConvertedValue(key=path, outcome=ValueOutcome.DROPPED, text=str(error))
        if self._replaced and rule.by != "device_config":
            kept = {} if rule.inside else {key: one for key, one in to.items() if not key.startswith("deviceConfig.")}
            if to and not kept:
                return ConvertedValue(
                    key=path, outcome=ValueOutcome.DROPPED, text="device-config.content replaces it, as in HAMi"
                )
            to = kept
        return self._made(path, to, rule.note)

    def _made(self, path: str, to: Mapping[str, object], note: str) -> ConvertedValue:
        defaults = self._table.own.defaults
        written = {key: one for key, one in to.items() if not (_holds(defaults, key) and _at(defaults, key) == one)}
        outcome = (
            (ValueOutcome.SAME if set(written) == {path} else ValueOutcome.BECOMES) if written else ValueOutcome.DEFAULT
        )
        return ConvertedValue(key=path, outcome=outcome, to=written, text=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    rule: Rule
    values: Mapping[str, Any]
    vendors: Vendors

    def at(self, path: str) -> Any:
        return _at(self.values, path)


# Types


def _typed(kind: str, value: object) -> Any:
    match kind:
        case "truth":
            if isinstance(found := _truth(value), bool):
                return found
            raise _RefusedError("must be true or false")
        case "whole" | "number":
            return _number(value, whole=kind == "whole")
        case "yaml":
            return _document(value)
        case "texts":
            if isinstance(value, list) and all(isinstance(one, str) for one in value):
                return value
            raise _RefusedError("must be a list of texts")
        case "image":
            if isinstance(value, (Mapping, str)):
                return value
            raise _RefusedError("must be a section with registry, repository and tag")
    wanted, name = {
        "text": (str, "text; put it in quotes"),
        "list": (list, "a list"),
        "map": (Mapping, "a section of keys"),
        "any": (object, ""),
    }[kind]
    if not isinstance(value, wanted):
        raise _RefusedError(f"must be {name}")
    return value


def _truth(value: object) -> object:
    """HAMi writes some of its switches as text."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


def _number(value: object, *, whole: bool) -> int | float:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
        value = float(value) if "." in value else int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e9:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise _RefusedError("must be a whole number" if whole else "must be a number")
    return value


def _document(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not value.strip():
        return ""
    try:
        return parse_yaml(value, Path("text")).value
    except ConfigError as error:
        raise _RefusedError(f"is no YAML or JSON: {error.problems[0].removeprefix('text:')}") from error


# Makers: from a value of HAMi's to our keys with their values


def _as_it_is(context: _Context, value: Any) -> Values:
    (to,) = context.rule.to
    return {to: value}


def _both(context: _Context, value: Any) -> Values:
    return dict.fromkeys(context.rule.to, value)


def _registry(context: _Context, value: str) -> Values:
    core, kube = context.rule.to
    image = context.at("scheduler.kubeScheduler.image")
    repository = image.get("repository") if isinstance(image, Mapping) else None
    found = {core: f"{value.rstrip('/')}/{HAMI_IMAGE}"}
    if not isinstance(image, str):
        found[kube] = f"{value.rstrip('/')}/{repository or KUBE_SCHEDULER}"
    return found


HAMI_IMAGE = "projecthami/hami"
KUBE_SCHEDULER = "google_containers/kube-scheduler"
KUBE_REGISTRY = "registry.cn-hangzhou.aliyuncs.com"
"""Where HAMi's chart takes these images from by default."""


def _secrets(context: _Context, value: list[Any]) -> Values:
    """HAMi has names of Secrets, or Kubernetes' own form."""
    secrets = [{"name": one} if isinstance(one, str) else one for one in value]
    if not all(isinstance(one, Mapping) and isinstance(one.get("name"), str) for one in secrets):
        raise _RefusedError("must be a list of Secrets' names")
    return {context.rule.to[0]: secrets} if secrets else {}


def _managed_nodes(context: _Context, _value: bool) -> Values:
    labels = context.at("global.managedNodeSelector")
    return _as_it_is(context, labels if isinstance(labels, Mapping) else {"usage": "gpu"})


def _names(context: _Context, value: str) -> Values:
    daemon, scheduler = context.rule.to
    return {daemon: value, scheduler: f"{value}-scheduler"}


def _nodes(context: _Context, value: Mapping[str, Any]) -> Values:
    """The nodes of the one DaemonSet. Where a vendor has nodes of its own, they are in a pool."""
    sections = context.at("devices")
    pooled = sections.values() if isinstance(sections, Mapping) else ()
    if any(_truth(_at(one, "enabled")) is True and _at(one, "nodeSelector") for one in pooled):
        raise _DroppedError("devicePlugin.pools has it, since another vendor has nodes of its own")
    return _as_it_is(context, value)


MIN_EXTENDER_S = 30


def _seconds(context: _Context, value: int) -> Values:
    if value < MIN_EXTENDER_S:
        raise _RefusedError(f"a bind may take {MIN_EXTENDER_S} seconds; set {MIN_EXTENDER_S} or more")
    return _as_it_is(context, f"{value}s")


def _kube_scheduler(context: _Context, value: Mapping[str, Any] | str) -> Values:
    (to,) = context.rule.to
    if isinstance(value, str):
        return {f"{to}.repository": value}
    found: Values = {}
    if not context.at("global.imageRegistry") and (value.get("registry") or value.get("repository")):
        registry = value.get("registry") or KUBE_REGISTRY
        found[f"{to}.repository"] = f"{registry}/{value.get('repository') or KUBE_SCHEDULER}"
    return found | _tag_and_policy(to, value)


def _our_image(context: _Context, value: Mapping[str, Any] | str) -> Values:
    """HAMi's image has no daemon of ours. Another one is taken for ours."""
    (to,) = context.rule.to
    repository = value if isinstance(value, str) else str(value.get("repository") or HAMI_IMAGE)
    if isinstance(value, str) or repository.endswith(HAMI_IMAGE):
        own = {} if isinstance(value, str) else {key: one for key, one in value.items() if key != "tag"}
        if kept := _tag_and_policy(to, own):
            return kept
        raise _DroppedError(f"{repository} does not have this daemon; name your image in devicePlugin.image.repository")
    registry = value.get("registry")
    return {f"{to}.repository": f"{registry}/{repository}" if registry else repository, **_tag_and_policy(to, value)}


def _tag_and_policy(to: str, image: Mapping[str, Any]) -> Values:
    found: Values = {f"{to}.{key}": image[key] for key in ("tag", "pullPolicy") if image.get(key)}
    if not all(isinstance(one, str) for one in found.values()):
        raise _RefusedError("tag and pullPolicy must be text; put them in quotes")
    if secrets := image.get("pullSecrets"):
        found["imagePullSecrets"] = [{"name": one} if isinstance(one, str) else one for one in secrets]
    return found


_VERBOSITY = re.compile(r"(?:-v|--v)=?([0-9]+)|--debug(?:=true)?")
DEBUG_LEVEL = 5
"""klog's level from which HAMi's messages are what ours are at level debug."""


def _kube_arguments(context: _Context, value: list[str]) -> Values:
    kept = [one for one in value if not one.startswith(("--config=", "--policy-config-file="))]
    return _as_it_is(context, kept) if kept else {}


def _arguments(context: _Context, value: list[str]) -> Values:
    """HAMi's own flags mean nothing here. Verbosity becomes a log level."""
    found = [_VERBOSITY.fullmatch(one) for one in value]
    foreign = [one for one, verbosity in zip(value, found, strict=True) if not verbosity]
    if foreign:
        raise _RefusedError(f"{foreign[0]} is an argument of HAMi's; `hami-plugin --help` has ours")
    if any(int(one[1] or 0) >= DEBUG_LEVEL for one in found if one):
        return _as_it_is(context, ["--log-level=debug"])
    raise _DroppedError("the usual verbosity of HAMi; --log-level is info here")


def _cert_manager(context: _Context, _value: bool) -> Values:
    return _as_it_is(context, "cert-manager")


def _exempt(context: _Context, value: list[str]) -> Values:
    return _as_it_is(context, list(dict.fromkeys(["kube-system", *value])))


def _selector(context: _Context, value: Mapping[str, Any]) -> Values:
    found = {key: one for key, one in value.items() if one}
    if unknown := found.keys() - {"matchLabels", "matchExpressions"}:
        raise _RefusedError(f"{min(unknown)} is no part of a selector; use matchLabels and matchExpressions")
    return _as_it_is(context, found) if found else {}


_SAMPLE_NODE = "your-node-name"


def _node_entries(context: _Context, value: Any) -> Values:
    entries = value.get("nodeconfig") if isinstance(value, Mapping) else None
    if not isinstance(entries, list) or not all(isinstance(one, Mapping) for one in entries):
        raise _RefusedError('must be {"nodeconfig": [{"name": ...}]}')
    kept = [one for one in entries if one.get("name") != _SAMPLE_NODE]
    return _as_it_is(context, kept) if kept else {}


def _comma(context: _Context, value: str) -> Values:
    return _as_it_is(context, [one.strip() for one in value.split(",") if one.strip()])


def _variables(context: _Context, value: Any) -> Values:
    """A list as in a pod, or names with values."""
    if isinstance(value, Mapping):
        return _as_it_is(context, [{"name": str(name), "value": str(one)} for name, one in value.items()])
    if isinstance(value, list) and all(isinstance(one, Mapping) and "name" in one for one in value):
        return _as_it_is(context, value) if value else {}
    raise _RefusedError("must be a list of variables as in a pod")


def _parent(value: str, name: str) -> str:
    path = PurePosixPath(value)
    if not path.is_absolute() or path.name != name:
        raise _RefusedError(f"must be an absolute path that ends with /{name}")
    return str(path.parent)


def _kubelet_root(context: _Context, value: str) -> Values:
    return _as_it_is(context, _parent(value, "device-plugins"))


def _hook_path(context: _Context, value: str) -> Values:
    return _as_it_is(context, _parent(value, "vgpu"))


def _probe(context: _Context, value: Mapping[str, Any]) -> Values:
    command = str(_at(value, "exec.command"))
    if ".sock" in command:
        raise _DroppedError("the daemon makes no such socket; its probes ask it by HTTP")
    return _as_it_is(context, dict(value))


def _disabled(context: _Context, _value: bool) -> Values:
    return _as_it_is(context, False)


def _further_resources(context: _Context, value: list[str]) -> Values:
    further = [one for one in value if one not in context.vendors.resources]
    return _as_it_is(context, further) if further else {}


def _pool(context: _Context, value: Mapping[str, Any]) -> Values:
    """Nodes of a vendor that HAMi gives a DaemonSet of its own."""
    section = context.rule.key.rpartition(".")[0]
    if _truth(context.at(f"{section}.enabled")) is not True:
        raise _DroppedError(f"it counts with {section}.enabled: true only")
    others: Mapping[str, Any] = {}
    for key in ("devicePlugin.nvidiaNodeSelector", "devicePlugin.nvidianodeSelector"):
        others = {**others, **(context.at(key) or {})}
    others = others or {"gpu": "on"}
    if value == others:
        raise _DroppedError("the same nodes as those of the one DaemonSet")
    own: Values = {"name": section.rpartition(".")[2], "nodeSelector": dict(value)}
    if tolerations := context.at(f"{section}.tolerations"):
        own["tolerations"] = tolerations
    # Helm merges maps: the labels of all nodes must not be in the pools.
    return {
        "devicePlugin.pools": [{"name": "gpu", "nodeSelector": dict(others)}, own],
        "devicePlugin.nodeSelector": {"gpu": None},
    }


def _device_config(context: _Context, value: Any) -> Values:
    if not isinstance(value, Mapping):
        raise _RefusedError("must hold the sections of device-config.yaml")
    return {f"{context.rule.to[0]}.{key}": one for key, one in value.items() if one is not None}


MAKERS: Mapping[str, Callable[[_Context, Any], Values]] = {
    "as_it_is": _as_it_is,
    "both": _both,
    "cert_manager": _cert_manager,
    "comma": _comma,
    "daemon_arguments": _arguments,
    "device_config": _device_config,
    "disabled": _disabled,
    "exempt": _exempt,
    "further_resources": _further_resources,
    "hook_path": _hook_path,
    "kube_arguments": _kube_arguments,
    "kube_scheduler": _kube_scheduler,
    "kubelet_root": _kubelet_root,
    "managed_nodes": _managed_nodes,
    "names": _names,
    "node_entries": _node_entries,
    "nodes": _nodes,
    "our_image": _our_image,
    "pool": _pool,
    "probe": _probe,
    "registry": _registry,
    "scheduler_arguments": _arguments,
    "seconds": _seconds,
    "secrets": _secrets,
    "selector": _selector,
    "variables": _variables,
}


# The result


def _merged(findings: Sequence[ConvertedValue]) -> Iterator[ConvertedValue]:
    """Refuses what would set a value of ours that another key has set otherwise. Sections and lists are joined."""
    written: dict[str, tuple[str, object]] = {}
    for finding in findings:
        clash = next(
            (
                (path, *written[path])
                for path, value in finding.to.items()
                if path in written and not isinstance(value, (Mapping, list)) and written[path][1] != value
            ),
            None,
        )
        if clash:
            path, key, value = clash
            text = f"{key} sets {path} to {shown(value)} already; remove one of them"
            yield ConvertedValue(key=finding.key, outcome=ValueOutcome.REFUSED, text=text)
            continue
        written |= {path: (finding.key, value) for path, value in finding.to.items()}
        yield finding


def _assembled(findings: Sequence[ConvertedValue]) -> Values:
    result: Values = {}
    for finding in findings:
        for path, value in finding.to.items():
            *sections, name = path.split(".")
            section = result
            for key in sections:
                section = section.setdefault(key, {})
            section[name] = _joined(section.get(name), value)
    return result


def _ordered(values: Values, like: object) -> Values:
    """In the order of our chart's values."""
    if not isinstance(like, Mapping):
        return values
    places = {key: place for place, key in enumerate(like)}
    keys = sorted(values, key=lambda key: places.get(key, len(places)))
    return {key: _ordered(one, like.get(key)) if isinstance(one := values[key], dict) else one for key in keys}


def _joined(before: object, value: object) -> object:
    if isinstance(before, Mapping) and isinstance(value, Mapping):
        return {**before, **value}
    if isinstance(before, list) and isinstance(value, list):
        return [*before, *(one for one in value if one not in before)]
    return value


_PROBLEM = re.compile(r"(?P<file>[^:]*)(?::[0-9]+)*: (?P<path>[^:\s]+): (?P<text>.*)", re.DOTALL)
_OF_FLAGS = {"name": "scheduler.schedulerName"}
_SCHEDULER_FLAGS = ("nodeSchedulerPolicy", "gpuSchedulerPolicy")
MAX_NODES = 200
"""Entries of nodes that are tried."""


def _problems(values: Values, vendors: Vendors) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """What the daemon and the scheduler find wrong with the values, by the path of ours; and their warnings."""
    plugin, scheduler = values.get("devicePlugin", {}), values.get("scheduler", {})
    own = {name: plugin[name] for name in vendors.names if name in plugin}
    flags = {key: scheduler[key] for key in _SCHEDULER_FLAGS if key in scheduler}
    flags |= {"name": scheduler["schedulerName"]} if "schedulerName" in scheduler else {}
    config = {**plugin.get("config", {}), "vendors": own, "scheduler": {**flags, **scheduler.get("config", {})}}
    entries = plugin.get("nodeConfig", [])
    problems: dict[str, None] = {}
    notes: dict[str, None] = {}
    with TemporaryDirectory() as folder:
        place = Path(folder)
        for name, content in (
            ("config.yaml", config),
            ("device-config.yaml", values.get("deviceConfig", {})),
            ("config.json", {"nodeconfig": entries}),
        ):
            (place / name).write_text(json.dumps(content), encoding="utf-8")
        for node in dict.fromkeys(["a-node", *(_node(one) for one in entries[:MAX_NODES])]):
            try:
                found = load(
                    config=place / "config.yaml",
                    device_config=place / "device-config.yaml",
                    node_config=place / "config.json",
                    overrides={"nodeName": node},
                    environment={},
                    vendor_settings=vendors.settings,
                    vendor_names=vendors.names,
                )
                notes |= dict.fromkeys(line.replace(f"{folder}/", "") for line in found.warnings)
            except ConfigError as error:
                problems |= dict.fromkeys(line.replace(f"{folder}/", "") for line in error.problems)
    return [_located(line) for line in problems], tuple(notes)


def _node(entry: object) -> str:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    return name if isinstance(name, str) and name else "a-node"


def _located(line: str) -> tuple[str, str]:
    """The path of ours that a problem is about, and its text."""
    found = _PROBLEM.fullmatch(line)
    if found is None:
        return "", line
    path = found["path"]
    section, _, name = path.partition(".")
    match found["file"], section:
        case "device-config.yaml", _:
            path = f"deviceConfig.{path}"
        case "config.json", _:
            path = "devicePlugin.nodeConfig"
        case _, "vendors":
            path = f"devicePlugin.{name}"
        case _, "scheduler" if name in _SCHEDULER_FLAGS:
            pass
        case _, "scheduler":
            path = _OF_FLAGS.get(name, f"scheduler.config.{name}")
        case _:
            path = f"devicePlugin.config.{path}"
    return path, found["text"]


def _without(findings: Sequence[ConvertedValue], problems: Sequence[tuple[str, str]]) -> list[ConvertedValue]:
    """The findings without what is wrong, which is refused with the text of the first problem."""
    left: list[ConvertedValue] = []
    refused = False
    for finding in findings:
        text = next((text for path, text in problems if any(_related(path, to) for to in finding.to)), "")
        if text:
            refused = True
            left.append(ConvertedValue(key=finding.key, outcome=ValueOutcome.REFUSED, text=text))
        else:
            left.append(finding)
    if not refused:
        raise ConfigError([f"{path}: {text}".removeprefix(": ") for path, text in problems])
    return left


def _related(one: str, other: str) -> bool:
    """Whether one path is the other or inside it."""
    return bool(one) and (f"{one}.[".startswith((f"{other}.", f"{other}[")) or f"{other}.".startswith(f"{one}."))


def _at(values: object, path: str) -> Any:
    for key in path.split("."):
        if not isinstance(values, Mapping) or key not in values:
            return None
        values = values[key]
    return values


def _holds(values: Mapping[str, Any], path: str) -> bool:
    parent, _, name = path.rpartition(".")
    section = _at(values, parent) if parent else values
    return isinstance(section, Mapping) and name in section


def _several(to: str | Sequence[str]) -> tuple[str, ...]:
    return (to,) if isinstance(to, str) else tuple(to)


def _file(name: str) -> str:
    return files("hami_plugin.config").joinpath(name).read_text(encoding="utf-8")
