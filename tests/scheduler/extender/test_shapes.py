"""Bodies of any shape, sent to the real port: each gets an answer that says what is wrong, and the process lives."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_plugin.scheduler.extender.extender import Extender
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.extender import Rig, listening
from tests.support.pods import of_vendor
from tests.support.scale import examples, spread
from tests.support.scheduling import FAMILIES, KEYS, add_node, cards, manifest, schedule, serving, until

Json = Any
POD: Mapping[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "a",
        "namespace": "team",
        "uid": "11111111-2222-3333-4444-555555555555",
        "resourceVersion": "7",
        "labels": {"app": "x"},
        "annotations": {"nvidia.com/use-gputype": "toy", "hami.io/gpu-scheduler-policy": "binpack"},
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:metadata": {"f:annotations": {".": {}}}}}],
        "ownerReferences": [{"kind": "ReplicaSet", "name": "a", "uid": "o"}],
    },
    "spec": {
        "schedulerName": "default-scheduler",
        "nodeName": "",
        "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {}}],
        "containers": [
            {
                "name": "main",
                "resources": {
                    "limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"},
                    "requests": {"nvidia.com/gpu": "1"},
                },
                "env": [{"name": "A", "value": "b"}, {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
                "securityContext": {"privileged": False},
            }
        ],
    },
    "status": {"phase": "Pending"},
}
NODE: Mapping[str, Any] = {
    "metadata": {"name": "n1", "uid": "u", "annotations": {KEYS.register: cards("n1", 2)}, "labels": {}},
    "status": {"capacity": {"nvidia.com/gpu": "20"}, "allocatable": {"nvidia.com/gpu": "20"}},
}
BODIES: Mapping[str, tuple[str, Json]] = {
    "filter": ("/filter", {"Pod": POD, "Nodes": None, "NodeNames": ["n1", "n2"]}),
    "filter of whole nodes": ("/filter", {"Pod": POD, "Nodes": {"items": [NODE]}, "NodeNames": None}),
    "bind": ("/bind", {"PodName": "a", "PodNamespace": "team", "PodUID": POD["metadata"]["uid"], "Node": "n1"}),
    "review": (
        "/webhook",
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "r",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "operation": "CREATE",
                "namespace": "team",
                "object": POD,
            },
        },
    ),
}
DEEP = 1200
ODD: tuple[Json, ...] = (
    None, True, False, 0, -1, 5, 1.5, 10**30, "", "gone", "\u0000", "\ud800", "\u202e\n", "9" * 5000, "../..", [], {},
    [None], [[]], [5], ["x"], {"": ""}, {"a": None}, {"a": {}}, {"name": 5}, [{"name": []}], {"nvidia.com/gpu": {}},
    {"nvidia.com/gpu": 1e300}, {"items": "text"}, {"nvidia.com/gpu": "1e99999999"},
)  # fmt: skip
RAW = ("NaN", "-Infinity", "1e999", "9" * 5000, "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "[" * 9000)
"""What Python writes for no value, or not in this way."""


def places(value: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value."""
    yield path
    match value:
        case Mapping():
            for key, each in value.items():
                yield from places(each, (*path, key))
        case [*items]:
            for number, each in enumerate(items):
                yield from places(each, (*path, number))


def with_at(value: Json, path: Sequence[Any], new: Json) -> Json:
    if not path:
        return new
    key, *rest = path
    copy = dict(value) if isinstance(value, Mapping) else list(value)
    copy[key] = with_at(value[key], rest, new)
    return copy


HOLE = "⟨hole⟩"


def written(value: Json, path: Sequence[Any], raw: str) -> bytes:
    return json.dumps(with_at(value, path, HOLE)).replace(json.dumps(HOLE), raw).encode()


PLACES = {what: list(places(body)) for what, (_path, body) in BODIES.items()}
VALUES = st.one_of(
    st.sampled_from(ODD),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
        max_leaves=6,
    ),
)


@st.composite
def mutants(draw: st.DrawFn) -> tuple[str, bytes]:
    """A valid body, one or two of whose values are another one, or something nested deep."""
    what = draw(st.sampled_from(sorted(BODIES)))
    path, body = BODIES[what]
    where = draw(st.sampled_from(PLACES[what]))
    if draw(st.integers(0, 4)) == 0:
        return path, written(body, where, draw(st.sampled_from(RAW)))
    return path, json.dumps(with_at(body, where, draw(VALUES))).encode()


@asynccontextmanager
async def rigged() -> AsyncIterator[tuple[SimulatedApiServer, Extender, Rig]]:
    families = (*FAMILIES, *of_vendor("ascend", {}), *of_vendor("metax", {}), *of_vendor("enflame", {}))
    with tempfile.TemporaryDirectory() as folder:
        async with SimulatedApiServer() as server:
            for name in ("n1", "n2"):
                add_node(server, name, count=2)
            async with (
                serving(server, Path(folder), families=families) as service,
                listening(service, filter_mebibytes=8) as rig,
            ):
                await until(lambda: len(service.cache.nodes.node_infos) == 2)
                yield server, service, rig


async def answered(rig: Rig, path: str, body: bytes) -> None:
    status, answer = await rig.post(path, body)
    assert status in (200, 400, 413), (status, answer)
    assert isinstance(answer, dict)
    told = json.dumps(answer)
    assert "internal error" not in told, answer
    assert "Traceback" not in told
    if status != 200:
        assert answer["kind"] == "Status"
        assert answer["message"]


async def lives(server: SimulatedApiServer, service: Extender, rig: Rig, name: str) -> None:
    assert (await rig.get("/healthz"))[0] == 200
    assert await schedule(server, service, server.create_pod(manifest(name, memory=1)))
    server.delete_pod("team", name)
    for node in ("n1", "n2"):
        server.annotate_node(node, {"hami.io/mutex.lock": None})


@pytest.mark.scenario("X3")
@pytest.mark.parametrize("what", sorted(BODIES))
async def test_every_part_of_a_body_may_be_anything_else(what: str) -> None:
    path, body = BODIES[what]
    async with rigged() as (server, service, rig):
        for where in spread(PLACES[what], part=5):
            bodies = [json.dumps(with_at(body, where, odd)).encode() for odd in ODD]
            bodies += [written(body, where, raw) for raw in RAW]
            await asyncio.gather(*(answered(rig, path, one) for one in bodies))
        await lives(server, service, rig, "after")


@pytest.mark.scenario("X3")
@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(mutants(), min_size=10, max_size=20))
def test_a_body_of_any_shape_is_answered_and_the_next_pod_is_scheduled(bodies: list[tuple[str, bytes]]) -> None:
    async def sent() -> None:
        async with rigged() as (server, service, rig):
            for path, body in bodies:
                await answered(rig, path, body)
            await lives(server, service, rig, "after")

    asyncio.run(sent())


@pytest.mark.scenario("X3")
@pytest.mark.parametrize("deep", [1200, 9000])
@pytest.mark.parametrize("path", ["/filter", "/webhook"])
async def test_a_pod_that_is_nested_deep_is_refused_with_the_reason(path: str, deep: int) -> None:
    what = {"/filter": "filter", "/webhook": "review"}[path]
    where = next(one for one in PLACES[what] if one[-1:] == ("f:annotations",))
    body = written(BODIES[what][1], where, '{"f":' * deep + "{}" + "}" * deep)
    async with rigged() as (server, service, rig):
        status, answer = await rig.post(path, body)

        assert status == 400
        assert "more than 64 levels deep" in answer["message"]
        await lives(server, service, rig, "after")


@pytest.mark.parametrize(
    ("what", "path", "odd", "words"),
    [
        ("review", ("request", "object", "spec", "containers"), 5, "containers is no list of objects"),
        ("review", ("request", "object", "metadata", "annotations"), "x", "annotations is no object"),
        ("review", ("request", "object", "metadata", "annotations"), {"a": {}}, "annotations: a is no text"),
        ("filter of whole nodes", ("Nodes", "items"), "text", "items is no list of objects"),
        ("filter", ("NodeNames",), [5], "NodeNames has what is no name"),
        ("filter", ("Pod", "metadata", "name"), "a\nb", "name is no name of Kubernetes"),
        ("bind", ("PodName",), 5, "PodName is no name of Kubernetes"),
        ("bind", ("Node",), "../..", "Node is no name of Kubernetes"),
    ],
)
async def test_what_is_wrong_with_a_body_is_said(what: str, path: tuple[Any, ...], odd: Json, words: str) -> None:
    where, body = BODIES[what]
    async with rigged() as (_server, _service, rig):
        status, answer = await rig.post(where, with_at(body, path, odd))

    assert status == 400
    assert words in answer["message"]
