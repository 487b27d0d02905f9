"""Whatever an API server answers: no reader ends, and one bad object hides no other."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from hami_plugin.allocation.pods import PodTable
from hami_plugin.cluster.client import connect, connect_wide
from hami_plugin.cluster.requests import read
from hami_plugin.errors import ClusterError
from hami_plugin.model.ports import PodFeed
from hami_plugin.model.views import Feed, NodeView, PodView, QuotaView, node_view, pod_view, quota_view
from tests.support.scale import spread
from tests.support.scheduling import until
from tests.support.watching import LIST_PODS, WATCH_PODS, Nodes, Pods, manifest, requested, running

PLACE = "a place for raw bytes"


def deep(levels: int) -> bytes:
    return b'{"f:a":' * levels + b"{}" + b"}" * levels


def put(item, path, value):
    for key in path[:-1]:
        item = item[key]
    item[path[-1]] = value


def shaped(*path, value=None, raw=b"null"):
    """An edit of the pod ``bad`` in a list or in a line of a watch: what is at ``path`` becomes ``value``, or raw."""

    def change(item):
        if (item.get("metadata") or {}).get("name") != "bad":
            return item
        if not path:
            return PLACE if value is None else value
        put(item, path, PLACE if value is None else value)
        return item

    def edit(body: bytes) -> bytes:
        try:
            found = json.loads(body)
        except ValueError:
            return body
        if "items" in found:
            found["items"] = [change(item) for item in found["items"]]
        elif "object" in found:
            found["object"] = change(found["object"])
        text = json.dumps(found).encode().replace(json.dumps(PLACE).encode(), raw)
        return text + b"\n" if body.endswith(b"\n") else text

    return edit


FIELDS = ("metadata", "managedFields")
NOTE = ("metadata", "annotations", "note")
DEEP = {
    "a managed field 1,200 deep": shaped(*FIELDS, raw=deep(1200)),
    "a managed field 9,000 deep": shaped(*FIELDS, raw=deep(9000)),
    "a managed field 100,000 deep": shaped(*FIELDS, raw=deep(100_000)),
    "lists 5,000 deep": shaped("spec", "volumes", raw=b"[" * 5000 + b"]" * 5000),
    "a list 20,000 deep that never ends in its text": shaped("spec", "volumes", value="[" * 20_000),
    "a number of 5,000 digits": shaped("spec", "priority", raw=b"9" * 5000),
    "bytes that are no UTF-8": shaped(*NOTE, raw=b'"\xff\xfe"'),
}
ODD = {
    "half a surrogate pair": shaped(*NOTE, raw=b'"\\ud800"'),
    "a number beyond all numbers": shaped("spec", "priority", raw=b"1e999"),
    "not a number": shaped("spec", "priority", raw=b"NaN"),
    "an annotation that is an object": shaped(*NOTE, value={"a": [1]}),
    "an annotation that is null": shaped(*NOTE),
    "an annotation 900 deep": shaped(*NOTE, raw=b"[" * 900 + b"]" * 900),
    "a volume that is a number": shaped("spec", "volumes", value=5),
}
MISSHAPEN = {
    "containers are a number": shaped("spec", "containers", value=5),
    "containers are a text": shaped("spec", "containers", value="main"),
    "containers are an object": shaped("spec", "containers", value={"name": "main"}),
    "a container is null": shaped("spec", "containers", value=[[], 5, "x"]),
    "init containers are a number": shaped("spec", "initContainers", value=5),
    "env is a number": shaped("spec", "containers", value=[{"name": "c", "env": 5}]),
    "a container's name is a list": shaped("spec", "containers", value=[{"name": ["c"], "env": [5, None, "x"]}]),
    "resources are a list": shaped("spec", "containers", value=[{"name": "c", "resources": [1]}]),
    "annotations are a list": shaped("metadata", "annotations", value=["a"]),
    "annotations are a text": shaped("metadata", "annotations", value="a=b"),
    "labels are a number": shaped("metadata", "labels", value=7),
    "the namespace is a number": shaped("metadata", "namespace", value=7),
    "the UID is a number": shaped("metadata", "uid", value=7),
    "the version is a list": shaped("metadata", "resourceVersion", value=[1]),
    "spec is a list": shaped("spec", value=[1]),
    "spec is a text": shaped("spec", value="x"),
    "status is a number": shaped("status", value=3),
    "the phase is an object": shaped("status", "phase", value={}),
    "the node is a list": shaped("spec", "nodeName", value=["n1"]),
}
NAMELESS = {
    "metadata is null": shaped("metadata"),
    "metadata is a list": shaped("metadata", value=[1]),
    "metadata is a text": shaped("metadata", value="x"),
    "the name is a number": shaped("metadata", "name", value=5),
    "the name is a list": shaped("metadata", "name", value=["bad"]),
    "the name is empty": shaped("metadata", "name", value=""),
    "it is a list": shaped(value=[1]),
    "it is a number": shaped(value=5),
    "it is a text": shaped(value="x"),
    "it is null": shaped(),
}


@pytest.fixture(params=["daemon", "scheduler"])
async def follow(request, server, timing, observer, tmp_path):
    """Begin to follow pods, as the daemon and as the scheduler do."""
    kubeconfig, more = server.write_kubeconfig(tmp_path / "kubeconfig"), {"observer": observer, "environ": {}}
    if request.param == "daemon":
        async with connect("n1", kubeconfig=kubeconfig, timing=timing, **more) as cluster:
            yield cluster.follow_pods
    else:
        async with connect_wide("toy", kubeconfig=kubeconfig, timing=timing, **more) as cluster:
            yield cluster.follow_pods


@pytest.mark.parametrize(
    "edit",
    spread([*DEEP.values(), *ODD.values(), *MISSHAPEN.values()], part=4),
    ids=spread([*DEEP, *ODD, *MISSHAPEN], part=4),
)
async def test_a_pod_of_any_shape_is_read_as_far_as_it_goes_and_hides_no_other(server, follow, edit):
    server.edit(edit, "(GET|WATCH) /api/v1/pods")
    for name in ("a", "bad", "z"):
        server.create_pod(manifest(name, note="x"))
    pods = Pods()

    async with running(follow(pods.feed)):
        await pods.until(lambda pods: pods.replaced)
        assert pods.names == {"a", "bad", "z"}
        await requested(server, WATCH_PODS)
        server.annotate_pod("team", "bad", {"again": "1"})
        server.create_pod(manifest("later"))
        await pods.until(lambda pods: "later" in pods.names)

    assert pods.names == {"a", "bad", "z", "later"}
    assert ("update", "bad") in pods.log


@pytest.mark.parametrize("edit", NAMELESS.values(), ids=NAMELESS)
async def test_an_object_without_a_name_is_left_out_and_hides_no_other(server, follow, edit):
    server.edit(edit, "(GET|WATCH) /api/v1/pods")
    for name in ("a", "bad", "z"):
        server.create_pod(manifest(name, note="x"))
    pods = Pods()

    async with running(follow(pods.feed)):
        await pods.until(lambda pods: pods.replaced)
        assert pods.names == {"a", "z"}
        await requested(server, WATCH_PODS)
        server.annotate_pod("team", "bad", {"again": "1"})
        server.create_pod(manifest("later"))
        await pods.until(lambda pods: "later" in pods.names)

    assert pods.names == {"a", "z", "later"}


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (DEEP["a managed field 1,200 deep"], "it is nested more than"),
        (shaped(*NOTE, raw=b"9" * 5000), "5000 digits"),
        (MISSHAPEN["containers are a number"], "spec.containers is a number"),
        (MISSHAPEN["annotations are a text"], "metadata.annotations is a text"),
        (NAMELESS["metadata is null"], "its metadata is null"),
    ],
)
async def test_a_bad_object_is_counted_at_each_reading_and_named_once_in_a_while(server, follow, observer, edit, said):
    server.edit(edit, "(GET|WATCH) /api/v1/pods")
    server.create_pod(manifest("bad", note="x"))
    pods = Pods()

    with capture_logs() as logs:
        async with running(follow(pods.feed)):
            await pods.until(lambda pods: pods.replaced)
            await requested(server, WATCH_PODS)
            for number in range(5):
                server.annotate_pod("team", "bad", {"again": str(number)})
            server.create_pod(manifest("later"))
            await pods.until(lambda pods: "later" in pods.names)

    assert observer.unreadable_objects == ["pods"] * 6
    (line,) = (line for line in logs if line["event"] == "an object cannot be read")
    assert said in line["why"]
    assert line["object"] == ("team/bad" if "metadata is null" not in said else "")


@pytest.mark.parametrize("follow", ["scheduler"], indirect=True)
@pytest.mark.parametrize("edit", [DEEP["a number of 5,000 digits"], ODD["a volume that is a number"]])
async def test_what_the_scheduler_passes_over_is_no_part_that_it_cannot_read(server, follow, observer, edit):
    server.edit(edit, "(GET|WATCH) /api/v1/pods")
    server.create_pod(manifest("bad", note="x"))
    pods = Pods()

    async with running(follow(pods.feed)):
        await pods.until(lambda pods: pods.replaced)
        await requested(server, WATCH_PODS)
        server.annotate_pod("team", "bad", {"again": "1"})
        await pods.until(lambda pods: ("update", "bad") in pods.log)

    assert pods.names == {"bad"}
    assert observer.unreadable_objects == []


ANSWERS = {
    "items are a text": b'{"metadata": {"resourceVersion": "1"}, "items": "many"}',
    "items are an object": b'{"metadata": {"resourceVersion": "1"}, "items": {"a": 1}}',
    "items are a number": b'{"metadata": {"resourceVersion": "1"}, "items": 7}',
    "metadata is a list": b'{"metadata": [1], "items": []}',
    "the token is a number": b'{"metadata": {"resourceVersion": "1", "continue": 5}, "items": []}',
    "the version is an object": b'{"metadata": {"resourceVersion": {}}, "items": []}',
    "a list": b"[1, 2]",
    "a number": b"5",
    "nothing": b"",
    "half an object": b'{"items": [',
    "a word": b"null",
    "no UTF-8": b"\xff\xfe\xfd",
    "a page of HTML": b"<html>moved</html>",
    "100,000 deep and open": b"[" * 100_000,
    "100,000 deep": b"[" * 100_000 + b"]" * 100_000,
    "NUL bytes": b"\0" * 1000,
}


@pytest.mark.scenario("P6")
@pytest.mark.parametrize("answer", spread(ANSWERS.values(), part=4), ids=spread(ANSWERS, part=4))
async def test_a_list_that_makes_no_sense_is_asked_for_again(server, follow, answer):
    server.edit(lambda _: answer, "GET /api/v1/pods", count=1)
    server.create_pod(manifest("a"))
    pods = Pods()

    async with running(follow(pods.feed)):
        await pods.until(lambda pods: pods.replaced)
        await requested(server, WATCH_PODS)
        server.create_pod(manifest("b"))
        await pods.until(lambda pods: "b" in pods.names)


async def test_a_list_whose_pages_never_end_is_given_up(server, follow):
    server.edit(
        lambda _: b'{"metadata": {"resourceVersion": "1", "continue": "more"}, "items": []}', "GET /api/v1/pods"
    )
    pods = Pods()

    async with running(follow(pods.feed)):
        await requested(server, LIST_PODS, 4)
        assert not pods.replaced
        server.heal()
        await pods.until(lambda pods: pods.replaced)


LINES = {
    "an ERROR whose code is a text": b'{"type": "ERROR", "object": {"code": "gone", "message": "x"}}',
    "an ERROR whose code is a list": b'{"type": "ERROR", "object": {"code": [410], "message": {"a": 1}}}',
    "an ERROR whose code is beyond all numbers": b'{"type": "ERROR", "object": {"code": 1e999}}',
    "an ERROR that is a list": b'{"type": "ERROR", "object": [1]}',
    "an ERROR that is null": b'{"type": "ERROR", "object": null}',
    "an ERROR with a message of a megabyte": b'{"type": "ERROR", "object": {"message": "' + b"x" * 2**20 + b'"}}',
    "a type that is a number": b'{"type": 5, "object": {"metadata": {"name": "a"}}}',
    "a type that nobody knows": b'{"type": "RENAMED", "object": {"metadata": {"name": "a"}}}',
    "no type": b'{"object": {"metadata": {"name": "a"}}}',
    "no object": b'{"type": "ADDED"}',
    "a bookmark of nothing": b'{"type": "BOOKMARK", "object": {}}',
    "a bookmark that is a list": b'{"type": "BOOKMARK", "object": []}',
    "a bookmark whose version is a list": b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": [5]}}}',
    "a list": b"[]",
    "a word": b"true",
    "half an object": b'{"type": "ADDED", "object": {',
    "100,000 deep": b"[" * 100_000,
    "no UTF-8": b"\xff\xfe",
    "an empty line": b"",
}


@pytest.mark.parametrize("line", spread(LINES.values(), part=4), ids=spread(LINES, part=4))
async def test_a_line_of_a_watch_that_makes_no_sense_costs_a_new_watch_at_most(server, follow, line):
    server.create_pod(manifest("a"))
    pods = Pods()

    async with running(follow(pods.feed)):
        await pods.until(lambda pods: pods.replaced)
        await requested(server, WATCH_PODS)
        server.edit(lambda _: line + b"\n", "WATCH /api/v1/pods", count=1)
        server.annotate_pod("team", "a", {"x": "1"})
        server.create_pod(manifest("b"))
        await pods.until(lambda pods: "b" in pods.names)


async def test_one_that_cannot_be_taken_in_is_left_out_and_the_reader_goes_on(server, follow, observer):
    """The line between one object and all others holds for what our own code makes of it, too."""
    for name in ("a", "bad", "z"):
        server.create_pod(manifest(name))
    pods = Pods()

    def guarded(take):
        def checked(pod):
            if pod.name == "bad":
                raise ZeroDivisionError
            take(pod)

        return checked

    def replace(found):
        if any(pod.name == "bad" for pod in found):
            raise ZeroDivisionError
        pods.feed.replace(found)

    feed = PodFeed(replace=replace, update=guarded(pods.feed.update), delete=guarded(pods.feed.delete))
    with capture_logs() as logs:
        async with running(follow(feed)):
            await pods.until(lambda pods: pods.replaced)
            assert pods.names == {"a", "z"}
            await requested(server, WATCH_PODS)
            server.annotate_pod("team", "bad", {"x": "1"})
            server.delete_pod("team", "bad")
            server.create_pod(manifest("later"))
            await pods.until(lambda pods: "later" in pods.names)

    assert len(observer.unreadable_objects) >= 3
    assert any("ZeroDivisionError" in str(line.get("why")) for line in logs)


@pytest.mark.parametrize("edit", [*NAMELESS.values(), *DEEP.values()], ids=[*NAMELESS, *DEEP])
async def test_a_single_answer_is_an_object_or_an_error(server, timing, observer, tmp_path, edit):
    server.create_pod(manifest("bad", note="x"))
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")

    def alone(body):
        whole = edit(b'{"items": [' + body + b"]}")
        return whole[len(b'{"items": [') : -2]

    async with connect_wide("toy", kubeconfig=kubeconfig, timing=timing, observer=observer, environ={}) as wide:
        server.edit(alone, "GET /api/v1/namespaces/team/pods/bad")
        if edit in DEEP.values():
            assert (await wide.get_pod("team", "bad")).name == "bad"
            return
        with pytest.raises(ClusterError, match="not") as caught:
            await wide.get_pod("team", "bad")
        assert caught.value.temporary


async def test_a_refusal_that_makes_no_sense_is_a_refusal(server, cluster):
    for answer in ANSWERS.values():
        server.error(409, match="GET /api/v1/nodes", count=1)
        server.edit(lambda _, answer=answer: answer, "GET /api/v1/nodes", count=1)
        with pytest.raises(ClusterError) as caught:
            await cluster.get_node()
        assert caught.value.status == 409


async def test_the_node_and_quotas_may_have_any_shape(server, timing, observer, tmp_path):
    server.create_node("bad")
    server.create_quota("team", "bad", {"a": "1"})
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    for edit in (*DEEP.values(), *ODD.values(), *NAMELESS.values()):
        seen = {"nodes": [], "quotas": []}

        def feed(kind, seen=seen):
            note = seen[kind].append
            return Feed(replace=lambda all_: note(list(all_)), update=note, delete=note)

        server.edit(_tolerant(edit), "(GET|WATCH) /api/v1/(nodes|resourcequotas)")
        async with (
            connect_wide("toy", kubeconfig=kubeconfig, timing=timing, observer=observer, environ={}) as wide,
            running(wide.follow_nodes(feed("nodes"))),
            running(wide.follow_quotas(feed("quotas"))),
        ):
            await until(lambda seen=seen: seen["nodes"] and seen["quotas"])
        server.heal()
        assert "n1" in {node.name for node in seen["nodes"][0]}


def _tolerant(edit):
    def changed(body):
        try:
            return edit(body)
        except (KeyError, TypeError):
            return body

    return changed


async def test_the_daemons_own_node_may_have_any_shape(server, cluster):
    nodes = Nodes()
    async with running(cluster.follow_node(nodes)):
        await nodes.until(lambda node: node is not None)
        for number, change in enumerate(
            ({"annotations": 5}, {"annotations": ["a"]}, {"labels": "x"}, {"uid": 5}, {"resourceVersion": [1]})
        ):

            def edit(line, change=change):
                event = json.loads(line)
                event["object"]["metadata"] |= change
                return json.dumps(event).encode() + b"\n"

            server.edit(edit, "WATCH /api/v1/nodes", count=1)
            server.annotate_node("n1", {"a": str(number)})
            server.annotate_node("n1", {"b": str(number)})
            await nodes.until(lambda node, n=number: node is not None and node.annotations.get("b") == str(n))


WORDS = (
    "metadata spec status name uid namespace annotations labels containers initContainers resources env value limits "
    "phase nodeName resourceVersion creationTimestamp deletionTimestamp hard capacity allocatable schedulingGroup "
    "podGroupName securityContext"
)
KEYS = st.sampled_from(WORDS.split())
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(KEYS, anything, max_size=5))
def test_views_are_made_of_anything_and_hold_texts_only(item):
    pod, node, quota = pod_view(item), node_view(item), quota_view(item)

    assert (type(pod), type(node), type(quota)) == (PodView, NodeView, QuotaView)
    for texts in (pod.annotations, pod.labels, node.annotations, node.capacity, node.allocatable, quota.hard):
        assert all(type(text) is str for pair in texts.items() for text in pair)
        "".join(text for pair in texts.items() for text in pair).encode()
    table = PodTable()
    table.replace([pod])
    table.update(pod)


@settings(deadline=None)
@given(st.binary(max_size=200) | st.lists(st.sampled_from(list('[]{}",:\\ae1-. ')), max_size=60).map(
    lambda parts: "".join(parts).encode()
))  # fmt: skip
async def test_bytes_are_json_or_an_error(body):
    try:
        await read(body)
    except ValueError:
        return


@given(st.integers(0, 3000))
@settings(deadline=None)
async def test_what_is_nested_too_deeply_is_left_out_and_the_rest_is_read(levels):
    body = b'{"metadata": {"name": "x", "deep": ' + deep(levels) + b'}, "spec": {"a": "]}\\"["}}'

    found = (await read(body)).value

    assert found["spec"] == {"a": ']}"['}
    assert found["metadata"]["name"] == "x"
