"""Following pods and the node through servers that are away, silent, or unwilling."""

import asyncio
import dataclasses

import pytest

from hami_plugin.cluster import informer
from hami_plugin.cluster.client import connect
from hami_plugin.cluster.informer import WatchTiming
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.scheduling import until
from tests.support.sleeping import Sleeping
from tests.support.watching import (
    LIST_PODS,
    WATCH_PODS,
    Nodes,
    Pods,
    manifest,
    reachable,
    requested,
    running,
    timers_towards,
)


@pytest.mark.scenario("P1")
async def test_a_server_that_is_away_shows_and_coming_back_heals(pods, cluster, server):
    await server.refuse()
    away = await reachable(cluster, bool)

    server.create_pod(manifest("a"))
    await server.accept()
    await pods.until(lambda pods: pods.names == {"a"})

    assert away.startswith("unreachable: watch pods")
    assert await reachable(cluster, lambda text: not text) == ""


async def test_starting_before_the_server_is_there_only_takes_longer(cluster, server):
    await server.refuse()
    pods = Pods()

    async with running(cluster.follow_pods(pods.feed)):
        await reachable(cluster, lambda text: text.startswith("unreachable: list pods"))
        await server.accept()
        await pods.until(lambda pods: pods.replaced)


async def test_a_list_that_hangs_ends_at_its_deadline_and_is_tried_again(brief, server):
    server.hang("GET /api/v1/pods", count=1)
    pods = Pods()

    async with brief() as cluster, running(cluster.follow_pods(pods.feed)):
        await pods.until(lambda pods: pods.replaced)

    assert server.count(LIST_PODS) >= 2


async def test_a_silent_peer_is_given_up_after_the_life_of_its_watch(server, timing, tmp_path):
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    brief = dataclasses.replace(timing, watch=(1.0, 1.0), grace=-0.5)  # before the server would end it
    pods = Pods()

    async with connect("n1", kubeconfig=kubeconfig, timing=brief) as cluster, running(cluster.follow_pods(pods.feed)):
        await requested(server, WATCH_PODS)
        server.store.rewind(0)  # a version of the future: not even bookmarks come
        said = await reachable(cluster, bool)

    assert "the stream broke" in said


async def test_the_kernel_asks_whether_the_peer_of_a_quiet_watch_still_lives(pods, server):
    await requested(server, WATCH_PODS)
    port = int(server.url.rpartition(":")[2])

    await until(
        lambda: "02" in timers_towards(port)
    )  # the timer of keep-alive probes; another while data are under way


async def test_retry_after_is_kept_by_the_watch_too(cluster, server, monkeypatch):
    server.error(429, match="GET /api/v1/pods", retry_after=90)
    pods, waits = Pods(), []

    async def sleep(seconds):
        waits.append((seconds, pods.replaced))
        await asyncio.sleep(0)

    monkeypatch.setattr(informer, "asyncio", Sleeping(sleep))

    async with running(cluster.follow_pods(pods.feed)):
        await pods.until(lambda pods: pods.replaced)

    assert waits[0] == (90, 0)


@pytest.mark.scenario("P8")
async def test_a_watch_that_is_forbidden_says_so_and_keeps_trying(pods, cluster, server):
    server.error(403, match="GET /api/v1/pods", message="pods is forbidden", count=3)
    server.drop_watches()

    said = await reachable(cluster, lambda text: "APIForbidden" in text)
    server.create_pod(manifest("a"))
    await pods.until(lambda pods: pods.names == {"a"})

    assert 'allow verb "watch" on "pods"' in said
    assert cluster.reachable.value == ""


async def test_a_quiet_watch_is_renewed_when_its_time_is_up(server, timing, tmp_path):
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    brief = dataclasses.replace(timing, watch=(1.0, 1.0))
    pods = Pods()

    async with connect("n1", kubeconfig=kubeconfig, timing=brief) as cluster, running(cluster.follow_pods(pods.feed)):
        await requested(server, WATCH_PODS, 2)

    assert server.count(LIST_PODS) == 1


@pytest.mark.scenario("P9")
async def test_the_node_is_followed_through_deletion_and_recreation(cluster, server):
    nodes = Nodes()

    async with running(cluster.follow_node(nodes)):
        await nodes.until(lambda node: node is not None)
        server.create_node("n2")
        server.annotate_node("n1", {"a": "1"})
        await nodes.until(lambda node: node is not None and node.annotations)
        server.delete_node("n1")
        await nodes.until(lambda node: node is None)
        again = server.create_node("n1")
        await nodes.until(lambda node: node is not None)

    assert nodes.seen[-1].uid == again["metadata"]["uid"]
    assert nodes.seen[-1].annotations == {}
    assert {node.name for node in nodes.seen if node} == {"n1"}


async def test_a_node_that_does_not_exist_yet_is_told_of_when_it_does(cluster, server):
    server.delete_node("n1")
    nodes = Nodes()

    async with running(cluster.follow_node(nodes)):
        await requested(server, "GET /api/v1/nodes.*watch")
        assert nodes.seen == []
        server.create_node("n1")
        await nodes.until(lambda node: node is not None)


async def test_a_node_that_was_deleted_before_the_version_was_lost_is_none(cluster, server):
    nodes = Nodes()

    async with running(cluster.follow_node(nodes)):
        await nodes.until(lambda node: node is not None)
        server.expire_watches()
        server.delete_node("n1")
        await nodes.until(lambda node: node is None)


async def test_a_node_deleted_during_a_gap_is_none(cluster, server):
    nodes = Nodes()

    async with running(cluster.follow_node(nodes)):
        await nodes.until(lambda node: node is not None)
        await server.refuse()
        server.delete_node("n1")
        server.compact()
        await server.accept()
        await nodes.until(lambda node: node is None)


@pytest.mark.scenario("P7")
async def test_a_watch_that_stalls_while_its_connection_lives_is_lost_after_a_few_bookmarks(server, timing, tmp_path):
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    brief = dataclasses.replace(timing, bookmarks=0.4)  # the server sends one each 0.1 s
    pods = Pods()

    async with (
        connect("n1", kubeconfig=kubeconfig, timing=brief, environ={}) as cluster,
        running(cluster.follow_pods(pods.feed)),
    ):
        await pods.until(lambda pods: pods.replaced)
        await requested(server, WATCH_PODS)
        server.stall_watches()
        server.create_pod(manifest("a"))
        await pods.until(lambda pods: pods.names == {"a"})

    assert server.count(LIST_PODS) == 1


def test_a_watch_may_be_silent_for_two_and_a_half_bookmarks():
    assert WatchTiming().silence == 150.0
    assert WatchTiming().silence < WatchTiming().watch[0]


async def test_a_server_that_never_sends_bookmarks_is_listed_now_and_then_and_not_at_each_watch(timing, tmp_path):
    brief = dataclasses.replace(timing, bookmarks=0.08, list_every=0.01)
    async with SimulatedApiServer(bookmark_seconds=3600) as server:
        server.create_node("n1")
        kubeconfig, pods = server.write_kubeconfig(tmp_path / "kubeconfig"), Pods()
        async with (
            connect("n1", kubeconfig=kubeconfig, timing=brief, environ={}) as cluster,
            running(cluster.follow_pods(pods.feed)),
        ):
            await requested(server, WATCH_PODS, 7)

    assert 2 <= server.count(LIST_PODS) <= 1 + server.count(WATCH_PODS) // 2


async def test_the_present_state_is_read_at_once_when_somebody_asks_and_not_too_often(server, timing, tmp_path):
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    rare = dataclasses.replace(timing, list_every=3600.0)  # the first list, and one more
    pods = Pods()
    async with (
        connect("n1", kubeconfig=kubeconfig, timing=rare, environ={}) as cluster,
        running(cluster.follow_pods(pods.feed)),
    ):
        await requested(server, WATCH_PODS)
        server.stall_watches()
        server.create_pod(manifest("a"))

        asked = [cluster.refresh_pods(), cluster.refresh_pods()]
        await pods.until(lambda pods: pods.names == {"a"})
        await requested(server, WATCH_PODS, 2)
        asked.append(cluster.refresh_pods())
        server.create_pod(manifest("b"))
        await pods.until(lambda pods: pods.names == {"a", "b"})

    assert asked == [True, True, False]
    assert [one.query.get("resourceVersion") for one in server.requests if one.path.endswith("/pods")][:3:2] == [
        "0",
        None,
    ]
    assert server.count(LIST_PODS) == 2


async def test_nobody_reads_the_present_state_while_there_is_no_watch(cluster, server):
    before = cluster.refresh_pods()
    await server.refuse()
    pods = Pods()

    async with running(cluster.follow_pods(pods.feed)):
        await reachable(cluster, lambda text: text.startswith("unreachable: list pods"))
        assert (before, cluster.refresh_pods()) == (False, False)
