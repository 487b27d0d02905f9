"""What kube-scheduler and the API server send and expect: extender and admission messages as JSON, with our values."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.decoder import JSONDecodeError, JSONDecoder
from typing import Any

from hami_plugin.errors import WireError
from hami_plugin.model.views import node_view
from hami_plugin.process.concurrency import Pausing
from hami_plugin.scheduler.engine.admission import Allowed
from hami_plugin.scheduler.engine.devices import Denied
from hami_plugin.scheduler.engine.filter import (
    FilterResult,
    NoDemand,
)

Json = Mapping[str, Any]

FORBIDDEN, OK = 403, 200
_ONE = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"
_NAME = re.compile(_ONE)
_NAMES = re.compile(rf"{_ONE}(?:\n{_ONE})*")
_AS_STORED = "send what the API server has"

MAX_DEPTH = 64
"""So deep may values lie in each other. Pods and nodes need some twenty levels."""
MAX_VALUES = 400_000
"""So many values may a request have that anybody may send, about: what parts them is counted, also within texts."""

_STEPPED = 3
"""So many levels of a long request are read value by value."""
SHORT = 1 << 15
"""Bytes that are read at once: well below a millisecond."""
FLAT_BYTES, FLAT_TEXTS, FLAT_GROUPS = 1 << 19, 20_000, 1000
"""A body of so many bytes, commas and brackets is read at once too: the names of 20,000 nodes take two milliseconds,
and longer one by one.
"""
_ESCAPED_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_SPACE = re.compile(r"[ \t\n\r]*")
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_NEXT = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")


class NestedTooDeepError(ValueError):
    """JSON whose values lie too deep in each other."""

    def __init__(self) -> None:
        super().__init__(f"its values lie more than {MAX_DEPTH} levels deep in each other")


def parse_json_pausing(body: bytes, *, short: int = SHORT) -> Pausing[Any]:
    """The value, with a pause after each part of it if the body has more than ``short`` bytes. ``ValueError`` for what
    is no JSON as Kubernetes reads it.
    """
    text = body.decode()
    value, end = yield from _value(
        text, _space(text, 0), 0 if len(body) <= short or (short and _flat(body)) else _STEPPED
    )
    if _space(text, end) != len(text):
        raise JSONDecodeError("Extra data", text, end)
    if _ESCAPED_PAIR.search(body):
        yield
        _whole_pairs(value)
    return value


def _flat(body: bytes) -> bool:
    """Whether it is mostly a list of texts, as a request with the nodes' names is."""
    if len(body) > FLAT_BYTES or body.count(b",") > FLAT_TEXTS:
        return False
    return body.count(b"{") + body.count(b"[") <= FLAT_GROUPS


def _whole_pairs(value: Any) -> None:
    """``ValueError`` for half a pair of surrogates, which no text in UTF-8 can hold: it could not be reported."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("a text has half a surrogate pair in it") from error


def values(body: bytes) -> int:
    """At least how many values there are; more where texts have commas and brackets in them."""
    return body.count(b",") + body.count(b"{") + body.count(b"[")


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:64]} is too large a number")
    return number


_DECODER = JSONDecoder(parse_constant=_constant, parse_float=_finite)


def _value(text: str, at: int, levels: int, above: int = 0) -> Pausing[tuple[Any, int]]:
    """A value that begins here, and where it ends. Objects and lists are gone through for so many ``levels``; so many
    are ``above`` it.
    """
    opening = text[at : at + 1]
    if levels and opening == "{":
        return (yield from _object(text, at + 1, levels - 1, above + 1))
    if levels and opening == "[":
        return (yield from _list(text, at + 1, levels - 1, above + 1))
    try:
        value, end = _DECODER.raw_decode(text, at)
    except RecursionError as error:
        raise NestedTooDeepError from error
    yield
    if opening in ("{", "["):
        yield from _bounded(value, MAX_DEPTH - above)
    return value, end


def _object(text: str, at: int, levels: int, above: int) -> Pausing[tuple[dict[str, Any], int]]:
    found: dict[str, Any] = {}
    at = _space(text, at)
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        if text[at : at + 1] != '"':
            raise JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        key, at = _DECODER.raw_decode(text, at)
        if not (colon := _COLON.match(text, at)):
            raise JSONDecodeError("Expecting ':' delimiter", text, _space(text, at))
        found[key], at = yield from _value(text, colon.end(), levels, above)
        if not (comma := _NEXT.match(text, at)):
            return found, _end(text, at, "}")
        at = comma.end()


def _list(text: str, at: int, levels: int, above: int) -> Pausing[tuple[list[Any], int]]:
    found: list[Any] = []
    at = _space(text, at)
    if text[at : at + 1] == "]":
        return found, at + 1
    while True:
        value, at = yield from _value(text, at, levels, above)
        found.append(value)
        if not (comma := _NEXT.match(text, at)):
            return found, _end(text, at, "]")
        at = comma.end()


def _end(text: str, at: int, sign: str) -> int:
    at = _space(text, at)
    if text[at : at + 1] != sign:
        raise JSONDecodeError("Expecting ',' delimiter", text, at)
    return at + 1


def _space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches everywhere, if only nothing


_LEVELS = frozenset({dict, list})


def _bounded(value: Any, levels: int) -> Pausing[None]:
    """``NestedTooDeepError`` where more levels lie in each other."""
    level = [value]
    while level:
        if not levels:
            raise NestedTooDeepError
        below: list[Any] = []
        for one in level:
            inside = one.values() if isinstance(one, dict) else one
            if not _LEVELS.isdisjoint(map(type, inside)):  # thousands of names are none
                below += [each for each in inside if type(each) in _LEVELS]
            yield
        level, levels = below, levels - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderArgs:
    """A filter request: the pod, and nodes by name, or as objects when they need not exist."""

    pod: Json
    names: Sequence[str] = ()
    nodes: Sequence[Json] | None = None


def extender_args(request: Json) -> ExtenderArgs:
    """Read ExtenderArgs. WireError when there is no pod, or no nodes in either form."""
    pod, nodes, names = request.get("Pod"), request.get("Nodes"), request.get("NodeNames")
    if not isinstance(pod, Mapping):
        raise WireError("filter request: no Pod", hint="send kube-scheduler's ExtenderArgs")
    require_pod_shape(pod, "filter request")
    if isinstance(nodes, Mapping):
        items = _objects(nodes, "items", "filter request")
        for node in items:
            name(member(node, "metadata", "filter request"), "name", "filter request")
        return ExtenderArgs(pod=pod, nodes=tuple(items))
    if not isinstance(names, list):
        raise WireError("filter request: neither NodeNames nor Nodes", hint="set nodeCacheCapable: true")
    if not _are_names(names):
        raise WireError("filter request: NodeNames has what is no name", hint=_AS_STORED)
    return ExtenderArgs(pod=pod, names=tuple(names))


def _are_names(found: Sequence[object]) -> bool:
    """Whether all are names as Kubernetes has them. There may be thousands, so they are looked at as one text."""
    if not {str}.issuperset(map(type, found)):
        return False
    text = "\n".join(found)  # type: ignore[arg-type]  # texts, as just seen
    return not found or (text.count("\n") == len(found) - 1 and _NAMES.fullmatch(text) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingArgs:
    """A bind request: the pod, and the node that it goes to."""

    namespace: str
    name: str
    uid: str
    node: str


def binding_args(request: Json) -> BindingArgs:
    """Read ExtenderBindingArgs. WireError when a part is missing, or no name."""
    found = [name(request, key, "bind request") for key in ("PodNamespace", "PodName", "PodUID", "Node")]
    if not all(found):
        raise WireError(
            "bind request: PodName, PodNamespace, PodUID or Node is missing",
            hint="send kube-scheduler's ExtenderBindingArgs",
        )
    return BindingArgs(namespace=found[0], name=found[1], uid=found[2], node=found[3])


def require_pod_shape(pod: Json, what: str) -> None:
    """WireError unless the pod has the shape of one, as far as it is read here."""
    metadata, spec = member(pod, "metadata", what), member(pod, "spec", what)
    for key in ("name", "namespace", "uid"):
        name(metadata, key, what)
    name(spec, "nodeName", what)
    for parent, key in ((metadata, "annotations"), (metadata, "labels")):
        _texts(parent, key, what)
    for container in (*_objects(spec, "initContainers", what), *_objects(spec, "containers", what)):
        _text(container, "name", what)
        resources = member(container, "resources", what)
        for key in ("limits", "requests"):
            _texts(resources, key, what, also=(int, float))
        for variable in _objects(container, "env", what):
            _text(variable, "name", what)
            _text(variable, "value", what)


def name(parent: Json, key: str, what: str) -> str:
    """A name as Kubernetes has them; empty where there is none. WireError for anything else."""
    value = parent.get(key)
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise WireError(f"{what}: {key} is no name of Kubernetes", hint=_AS_STORED)
    return value


def _text(parent: Json, key: str, what: str) -> None:
    if not isinstance(parent.get(key), str | None):
        raise WireError(f"{what}: {key} is no text", hint=_AS_STORED)


def _texts(parent: Json, key: str, what: str, *, also: tuple[type, ...] = ()) -> None:
    for each, value in member(parent, key, what).items():
        if not isinstance(value, (str, *also)) or isinstance(value, bool):
            raise WireError(f"{what}: {key}: {each[:64]} is no text", hint=_AS_STORED)


def mapping(value: Any) -> Json:
    """The value, if it is an object; else an empty one."""
    return value if isinstance(value, Mapping) else {}


def member(parent: Json, key: str, what: str) -> Json:
    """A part that is an object; empty where there is none. WireError for anything else."""
    value = parent.get(key) or {}
    if not isinstance(value, Mapping):
        raise WireError(f"{what}: {key} is no object", hint=_AS_STORED)
    return value


def _objects(parent: Json, key: str, what: str) -> Sequence[Json]:
    value = parent.get(key) or []
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise WireError(f"{what}: {key} is no list of objects", hint=_AS_STORED)
    return value


def filter_result(args: ExtenderArgs, result: FilterResult | NoDemand) -> Json:
    """ExtenderFilterResult, with the nodes in the form in which they were offered."""
    chosen = result.placed.node_info.node.name if isinstance(result, FilterResult) and result.placed else None
    failed = result.failed if isinstance(result, FilterResult) else {}

    def left(name: str) -> bool:
        return isinstance(result, NoDemand) or name == chosen

    answer: dict[str, Any] = {"FailedNodes": dict(failed), "Error": ""}
    if args.nodes is None:
        names = args.names if isinstance(result, NoDemand) else [chosen] if chosen else []
        return {**answer, "NodeNames": list(names)}
    return {**answer, "Nodes": {"items": [node for node in args.nodes if left(node_view(node).name)]}}


def bound_pod_result(args: ExtenderArgs, node: str) -> Json:
    """ExtenderFilterResult for a pod whose node is settled: that one, if it is among those offered."""
    why = f"the pod is bound, or being bound, to node {node}"
    failed = {name: why for name in args.names if name != node}
    return {"FailedNodes": failed, "Error": "", "NodeNames": [name for name in args.names if name == node]}


def admission_response(uid: str, decision: Allowed | Denied) -> Json:
    """The ``response`` of an AdmissionReview. A refusal is the pod's fault, never the webhook's: always 403."""
    if isinstance(decision, Denied):
        return {"uid": uid, "allowed": False, "status": {"code": FORBIDDEN, "message": decision.why}}
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if decision.why:
        response["status"] = {"code": OK, "message": decision.why}
    if decision.changes:
        patch = json.dumps(decision.changes, separators=(",", ":")).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode("ascii")}
    return response
