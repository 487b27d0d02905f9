"""The API server as a scheduler sees it, over real HTTP."""

import asyncio
import contextlib
import dataclasses
import time

import aiohttp
import pytest

from hami_plugin.cluster import informer
from hami_plugin.cluster.client import connect_wide
from hami_plugin.errors import ClusterError
from hami_plugin.model.ports import Subject
from hami_plugin.model.views import Feed, PodPatch
from hami_plugin.process.concurrency import poll_condition, run_without_pauses
from tests.support.scheduling import until
from tests.support.watching import LIST_PODS, Pods, manifest, running


@pytest.fixture
async def wide(server, timing, observer, tmp_path):
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with connect_wide(
        "toy", host="here", kubeconfig=kubeconfig, timing=timing, observer=observer, environ={}
    ) as it:
        yield it


async def test_pods_of_all_namespaces_are_followed_until_they_end(server, wide):
    server.create_pod(manifest("first"))
    server.create_pod({**manifest("ended"), "status": {"phase": "Failed"}})
    pods = Pods()
    async with running(wide.follow_pods(pods.feed)):
        await pods.until(lambda pods: pods.names == {"first"})
        other = manifest("second", node="")
        other["metadata"]["namespace"] = "other"
        server.create_pod(other)
        await pods.until(lambda pods: pods.names == {"first", "second"})
        server.set_phase("team", "first", "Succeeded")
        await pods.until(lambda pods: pods.names == {"second"})

    assert pods.log[-1] == ("delete", "first")


async def test_the_first_list_of_pods_is_the_present_state(server, wide):
    """What a server has at hand may be older than decisions that a scheduler made before its restart."""
    pods = Pods()
    async with running(wide.follow_pods(pods.feed)):
        await pods.until(lambda pods: pods.replaced)

    (listed,) = (one for one in server.requests if one.path == "/api/v1/pods" and not one.watches)
    assert "resourceVersion" not in listed.query


LIST_NODES = r"GET /api/v1/nodes\?(?!.*watch)"


class Nodes:
    """Lists of nodes as they were delivered."""

    def __init__(self):
        self.lists = []
        self.feed = Feed(replace=self.lists.append, update=lambda _: None, delete=lambda _: None)

    @property
    def names(self):
        return [node.name for node in self.lists[0]]


async def test_a_long_list_comes_in_pages_and_is_delivered_once(server, timing, tmp_path):
    """Also nodes, of which a server has all at hand and would send them as one answer."""
    for number in range(25):
        server.create_pod(manifest(f"p{number}"))
        server.create_node(f"m{number:02}")
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    pods, nodes = Pods(), Nodes()

    async with (
        connect_wide("toy", kubeconfig=kubeconfig, timing=dataclasses.replace(timing, page=10), environ={}) as wide,
        running(wide.follow_pods(pods.feed)),
        running(wide.follow_nodes(nodes.feed)),
    ):
        await until(lambda: pods.replaced and nodes.lists)

    assert pods.log == [("replace", 25)]
    assert nodes.names == [*(f"m{number:02}" for number in range(25)), "n1"]
    assert server.count(LIST_PODS) == server.count(LIST_NODES) == 3


async def test_the_next_page_is_asked_for_while_one_is_gone_through(server, timing, tmp_path, monkeypatch):
    for number in range(25):
        server.create_node(f"m{number:02}")
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    nodes, pages = Nodes(), []

    async def until_the_next_is_there(work):
        wanted = min(len(pages) + 2, 3)
        pages.append(await poll_condition(lambda: server.count(LIST_NODES) >= wanted, within=5.0))
        return run_without_pauses(work)

    monkeypatch.setattr(informer, "run_in_slices", until_the_next_is_there)

    async with (
        connect_wide("toy", kubeconfig=kubeconfig, timing=dataclasses.replace(timing, page=10), environ={}) as wide,
        running(wide.follow_nodes(nodes.feed)),
    ):
        await until(lambda: nodes.lists)

    assert pages == [True, True, True]


def refuse_later_pages(server, status, times):
    """Refuse so many requests for a page behind the first."""
    left = iter(range(times))

    def see(request):
        if "continue" in request.query and next(left, None) is not None:
            server.error(status, match="GET /api/v1/nodes")

    server.observe(see)


async def test_a_page_that_fails_is_asked_for_again_without_those_before_it(server, timing, tmp_path):
    for number in range(25):
        server.create_node(f"m{number:02}")
    refuse_later_pages(server, 500, 2)
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    nodes = Nodes()

    async with (
        connect_wide("toy", kubeconfig=kubeconfig, timing=dataclasses.replace(timing, page=10), environ={}) as wide,
        running(wide.follow_nodes(nodes.feed)),
    ):
        await until(lambda: nodes.lists)

    assert len(nodes.names) == 26
    assert server.count(r"GET /api/v1/nodes\?(?!.*(watch|continue))") == 1
    assert server.count(r"GET /api/v1/nodes\?.*continue") == 4


async def test_a_page_whose_place_in_the_list_is_gone_begins_the_list_anew(server, timing, tmp_path):
    for number in range(25):
        server.create_node(f"m{number:02}")
    refuse_later_pages(server, 410, 1)
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    nodes = Nodes()

    async with (
        connect_wide("toy", kubeconfig=kubeconfig, timing=dataclasses.replace(timing, page=10), environ={}) as wide,
        running(wide.follow_nodes(nodes.feed)),
    ):
        await until(lambda: nodes.lists)

    assert len(nodes.names) == 26
    assert server.count(r"GET /api/v1/nodes\?(?!.*(watch|continue))") == 2


@contextlib.asynccontextmanager
async def slowly(server, tmp_path, *, first_s, pieces, pause_s):
    """A kubeconfig for the server behind something slow: its answers begin late, and come in pieces."""

    async def answer(reader, writer):
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            asked = (await reader.readuntil(b"\r\n\r\n")).decode().split()[1]
            if "watch=1" in asked:
                await reader.read()
                return
            async with session.get(f"{server.url}{asked}") as real:
                body = await real.read()
            await asyncio.sleep(first_s)
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode())
            for at in range(pieces):
                writer.write(body[len(body) * at // pieces : len(body) * (at + 1) // pieces])
                await writer.drain()
                await asyncio.sleep(pause_s)

    async with aiohttp.ClientSession() as session, await asyncio.start_server(answer, "127.0.0.1", 0) as slow:
        port = slow.sockets[0].getsockname()[1]
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        kubeconfig.write_text(kubeconfig.read_text().replace(server.url, f"http://127.0.0.1:{port}"))
        yield kubeconfig


async def test_a_page_that_takes_longer_than_a_call_may_is_read_as_long_as_pieces_come(
    server, timing, tmp_path, monkeypatch
):
    monkeypatch.setattr(informer, "MAX_SLACK", 1)
    nodes, brief = Nodes(), dataclasses.replace(timing, deadline=1.0)

    async with (
        slowly(server, tmp_path, first_s=0.0, pieces=15, pause_s=0.1) as kubeconfig,
        connect_wide("toy", kubeconfig=kubeconfig, timing=brief, environ={}) as wide,
        running(wide.follow_nodes(nodes.feed)),
    ):
        await until(lambda: nodes.lists)

    assert nodes.names == ["n1"]


async def test_a_list_waits_longer_each_time_that_no_answer_came(server, timing, tmp_path):
    nodes, brief = Nodes(), dataclasses.replace(timing, deadline=0.5)

    async with (
        slowly(server, tmp_path, first_s=1.2, pieces=1, pause_s=0.0) as kubeconfig,
        connect_wide("toy", kubeconfig=kubeconfig, timing=brief, environ={}) as wide,
        running(wide.follow_nodes(nodes.feed)),
    ):
        await until(lambda: nodes.lists)

    assert nodes.names == ["n1"]


async def test_a_long_list_is_delivered_with_pauses_for_whatever_else_is_asked(server, wide):
    for number in range(5):
        server.create_node(f"m{number:02}")
    turns, taken, done = 0, [], asyncio.Event()

    def replacing(found):
        for node in found:
            taken.append((node.name, turns))
            time.sleep(0.01)  # what a node takes
            yield
        done.set()

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    feed = Feed(replace=lambda _: None, update=lambda _: None, delete=lambda _: None, replacing=replacing)
    async with running(wide.follow_nodes(feed)), running(others()):
        async with asyncio.timeout(60):
            await done.wait()

    assert [name for name, _ in taken] == [*(f"m{number:02}" for number in range(5)), "n1"]
    assert len({turn for _, turn in taken}) == len(taken)


async def test_nodes_and_quotas_are_followed(server, wide):
    seen: dict[str, list] = {"nodes": [], "quotas": []}

    def feed(kind):
        note = seen[kind].append
        return Feed(replace=lambda all_: note(list(all_)), update=note, delete=note)

    async with running(wide.follow_nodes(feed("nodes"))), running(wide.follow_quotas(feed("quotas"))):
        await until(lambda: seen["nodes"] and seen["quotas"])
        server.create_quota("team", "q", {"limits.toy.io/card": "4"})
        server.delete_node("n1")
        await until(lambda: len(seen["nodes"]) > 1 and len(seen["quotas"]) > 1)

    assert [node.name for node in seen["nodes"][0]] == ["n1"] == [seen["nodes"][1].name]
    assert seen["quotas"][0] == []
    quota = seen["quotas"][1]
    assert (quota.namespace, quota.name, quota.hard) == ("team", "q", {"limits.toy.io/card": "4"})


async def test_what_does_not_exist_is_none_and_anything_else_an_error(server, wide):
    assert await wide.get_node("n2") is None
    assert await wide.get_pod("team", "nobody") is None
    assert (await wide.get_node("n1")).name == "n1"

    server.error(403, match="GET /api/v1/nodes/n1", message="no nodes for you")
    with pytest.raises(ClusterError, match='allow verb "get" on "nodes"'):
        await wide.get_node("n1")


async def test_a_pod_is_patched_with_annotations_and_labels_and_only_if_it_is_the_same(server, wide):
    server.create_pod(manifest("p", node=""))
    pod = await wide.get_pod("team", "p")

    after = await wide.patch_pod(pod, PodPatch(annotations={"a": "1"}, labels={"b": "2"}))
    assert after.annotations == {"a": "1"}
    assert server.store.get("pods", "team", "p")["metadata"]["labels"] == {"b": "2"}

    server.delete_pod("team", "p")
    server.create_pod(manifest("p", node=""))
    with pytest.raises(ClusterError) as error:
        await wide.patch_pod(pod, PodPatch(annotations={"a": "1"}))
    assert error.value.conflict


async def test_a_pod_is_patched_and_bound_only_in_the_version_that_was_read(server, wide):
    server.create_pod(manifest("p", node=""))
    pod = await wide.get_pod("team", "p")
    newer = await wide.patch_pod(pod, PodPatch(annotations={"a": "1"}))

    for late in (wide.patch_pod(pod, PodPatch(annotations={"a": "2"})), wide.bind(pod, "n1")):
        with pytest.raises(ClusterError) as error:
            await late
        assert error.value.conflict

    assert server.pod("team", "p")["metadata"]["annotations"] == {"a": "1"}
    assert "nodeName" not in server.pod("team", "p")["spec"]
    await wide.bind(newer, "n1")


async def test_a_node_is_patched_only_in_the_version_that_was_read(server, wide):
    node = await wide.get_node("n1")
    await wide.patch_node("n1", {"a": "1"}, resource_version=node.resource_version)

    with pytest.raises(ClusterError) as error:
        await wide.patch_node("n1", {"a": "2"}, resource_version=node.resource_version)

    assert error.value.conflict
    assert server.node("n1")["metadata"]["annotations"] == {"a": "1"}


async def test_a_pod_is_bound_once(server, wide, observer):
    server.create_pod(manifest("p", node=""))
    pod = await wide.get_pod("team", "p")

    await wide.bind(pod, "n1")

    assert server.pod("team", "p")["spec"]["nodeName"] == "n1"
    with pytest.raises(ClusterError) as error:
        await wide.bind(pod, "n1")
    assert error.value.conflict
    assert ("create", "pods/binding", "201") in observer.calls


async def test_events_come_from_the_scheduler_by_its_name(server, wide):
    subject = Subject(kind="Pod", name="p", namespace="team", uid="u")

    await wide.create_event(subject, reason="R", message="m", warning=False)

    (event,) = server.events()
    assert event["source"] == {"component": "toy", "host": "here"}
    assert (event["reportingComponent"], event["type"]) == ("toy", "Normal")
