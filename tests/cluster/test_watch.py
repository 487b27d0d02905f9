"""Following pods and the node through everything that breaks a watch."""

import asyncio
import dataclasses
import json
import tracemalloc
from functools import partial

import pytest

from hami_plugin.cluster import informer
from hami_plugin.cluster.client import connect
from hami_plugin.cluster.requests import ListPace
from hami_plugin.process.concurrency import Backoff
from tests.support.watching import (
    LIST_PODS,
    WATCH_PODS,
    Nodes,
    Pods,
    manifest,
    requested,
    running,
)


async def test_what_exists_comes_as_a_list_and_then_each_change_in_order(cluster, server):
    server.create_pod(manifest("a"))
    pods = Pods()

    async with running(cluster.follow_pods(pods.feed)):
        await pods.until(lambda pods: pods.replaced)
        server.create_pod(manifest("b", ""))
        server.bind("team", "b", "n1")
        server.annotate_pod("team", "b", {"hami.io/bind-phase": "allocating"})
        server.delete_pod("team", "a")
        await pods.until(lambda pods: pods.names == {"b"})

    assert pods.log == [("replace", 1), ("update", "b"), ("update", "b"), ("delete", "a")]
    assert pods.held["team/b"].annotations == {"hami.io/bind-phase": "allocating"}
    assert cluster.reachable.value == ""


@pytest.mark.scenario("P13")
async def test_only_this_nodes_pods_are_read_out_of_two_thousand(cluster, server):
    for number in range(2000):
        server.create_pod(manifest(f"other{number}", f"m{number % 40}"))
    for number in range(3):
        server.create_pod(manifest(f"mine{number}"))
    pods = Pods()

    async with running(cluster.follow_pods(pods.feed)):
        await pods.until(lambda pods: pods.replaced)
        for number in range(50):
            server.annotate_pod("team", f"other{number}", {"a": "1"})
        server.annotate_pod("team", "mine0", {"a": "1"})
        await pods.until(lambda pods: ("update", "mine0") in pods.log)

    assert pods.log == [("replace", 3), ("update", "mine0")]


async def test_an_idle_daemon_writes_nothing_and_reads_three_times(cluster, server, observer):
    pods, nodes = Pods(), Nodes()

    async with running(cluster.follow_pods(pods.feed)), running(cluster.follow_node(nodes)):
        await requested(server, "watch", 2)
        await asyncio.sleep(0.5)  # five bookmarks long

    assert [request.verb for request in server.requests] == ["GET"] * 3
    assert sorted(observer.calls) == [("list", "pods", "200"), ("watch", "nodes", "200"), ("watch", "pods", "200")]


@pytest.mark.scenario("P7")
async def test_a_dropped_watch_goes_on_where_it_was_without_a_list(pods, server):
    server.create_pod(manifest("a"))
    await pods.until(lambda pods: pods.names == {"a"})

    for name in ("b", "c", "d"):
        server.drop_watches()
        server.create_pod(manifest(name))
        await pods.until(lambda pods, name=name: name in pods.names)

    assert server.count(LIST_PODS) == 1


async def test_after_a_watch_that_lived_its_time_the_next_one_follows_without_a_pause(server, timing, tmp_path):
    """Pods that are bound meanwhile would be unknown to the daemon for as long as it paused."""
    never = Backoff(first=3600, cap=3600, jitter=0.0)
    brief = dataclasses.replace(timing, watch=(0.5, 1.0), backoff=never)
    pods, kubeconfig = Pods(), server.write_kubeconfig(tmp_path / "kubeconfig")

    async with (
        connect("n1", kubeconfig=kubeconfig, timing=brief, environ={}) as cluster,
        running(cluster.follow_pods(pods.feed)),
    ):
        await requested(server, WATCH_PODS, count=2)
        server.create_pod(manifest("a"))
        await pods.until(lambda pods: pods.names == {"a"})

    assert pods.replaced == 1


async def test_a_deletion_during_a_gap_is_not_missed(pods, server):
    server.create_pod(manifest("a"))
    await pods.until(lambda pods: pods.names == {"a"})

    await server.refuse()
    server.delete_pod("team", "a")
    await server.accept()
    await pods.until(lambda pods: not pods.names)

    assert pods.log[-1] == ("delete", "a")


@pytest.mark.scenario("P7")
@pytest.mark.parametrize("as_http", [False, True])
async def test_a_version_that_is_gone_is_answered_by_a_list(pods, server, as_http):
    server.create_pod(manifest("a"))
    await pods.until(lambda pods: pods.names == {"a"})

    await server.refuse()
    server.delete_pod("team", "a")
    server.create_pod(manifest("b"))
    server.compact(as_http=as_http)
    await server.accept()
    await pods.until(lambda pods: pods.names == {"b"})

    assert pods.log[-1] == ("replace", 1)
    assert server.count(LIST_PODS) == 2


@pytest.mark.parametrize("as_http", [False, True])
async def test_the_list_after_a_version_that_is_gone_does_not_wait_as_for_a_server_that_is_away(
    server, timing, tmp_path, as_http
):
    patient = dataclasses.replace(timing, backoff=Backoff(first=0.01, factor=10_000, cap=100.0, jitter=0.0))
    pods, kubeconfig = Pods(), server.write_kubeconfig(tmp_path / "kubeconfig")

    async with (
        connect("n1", kubeconfig=kubeconfig, timing=patient, environ={}) as cluster,
        running(cluster.follow_pods(pods.feed)),
    ):
        await pods.until(lambda pods: pods.replaced)
        server.create_pod(manifest("a"))
        await pods.until(lambda pods: pods.names == {"a"})
        server.drop_watches()
        server.create_pod(manifest("b"))
        server.compact(as_http=as_http)

        await pods.until(lambda pods: pods.names == {"a", "b"})

    assert pods.replaced == 2


async def test_an_error_event_in_an_open_watch_leads_to_a_list(pods, server):
    await requested(server, WATCH_PODS)

    server.expire_watches()
    server.create_pod(manifest("a"))
    await pods.until(lambda pods: pods.names == {"a"})

    assert pods.replaced == 2


@pytest.mark.scenario("P7")
async def test_lists_are_rare_however_often_the_watch_breaks(cluster, server, timing, monkeypatch):
    now, waits = [0.0], []

    class Turns(ListPace):
        async def turn(self):
            waits.append(self.take())
            now[0] += waits[-1]

    monkeypatch.setattr(informer, "ListPace", partial(Turns, clock=lambda: now[0]))

    async with running(cluster.follow_pods(Pods().feed)), asyncio.timeout(60):
        while server.count(LIST_PODS) < 6:
            server.expire_watches()
            await asyncio.sleep(0.02)
        assert len(waits) >= server.count(LIST_PODS)

    assert waits[:6] == pytest.approx([0, 0, *[timing.list_every] * 4])


@pytest.mark.scenario("P7")
async def test_a_bookmark_moves_the_version_so_that_compaction_costs_nothing(pods, server):
    await requested(server, WATCH_PODS)
    for number in range(5):
        server.annotate_node("n1", {"a": str(number)})
    from_newest = f"{WATCH_PODS}.*resourceVersion={server.store.version.value}"
    async with asyncio.timeout(30):
        while not server.count(from_newest):
            await asyncio.sleep(0.15)  # a bookmark long; it has come once a watch begins there
            server.drop_watches()

    server.compact()
    server.drop_watches()
    await requested(server, from_newest, 2)

    assert server.count(LIST_PODS) == 1


@pytest.mark.scenario("P7", "P11")
async def test_a_version_from_a_lost_future_heals_by_itself(server, timing, tmp_path):
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    brief = dataclasses.replace(timing, watch=(1.0, 1.0))
    for number in range(50):
        server.annotate_node("n1", {"a": str(number)})
    pods = Pods()

    async with connect("n1", kubeconfig=kubeconfig, timing=brief) as cluster, running(cluster.follow_pods(pods.feed)):
        await requested(server, WATCH_PODS)
        await server.refuse()
        server.store.rewind(5)
        server.create_pod(manifest("a"))
        await server.accept()
        await pods.until(lambda pods: pods.names == {"a"})


@pytest.mark.scenario("P6")
async def test_a_line_cut_in_half_is_read_again(pods, server):
    await requested(server, WATCH_PODS)

    server.truncate_next(WATCH_PODS[:16])
    server.create_pod(manifest("a"))
    await pods.until(lambda pods: pods.names == {"a"})

    assert server.count(LIST_PODS) == 1


async def test_pods_of_a_megabyte_pass_the_list_and_the_watch(cluster, server):
    big = "x" * 250_000
    server.create_pod(manifest("a", note=big))
    pods = Pods()

    async with running(cluster.follow_pods(pods.feed)):
        await pods.until(lambda pods: pods.replaced)
        item = manifest("b", note=big)
        item["spec"]["containers"] += [{"name": f"c{i}", "args": ["y" * 100_000]} for i in range(30)]
        server.create_pod(item)
        await pods.until(lambda pods: pods.names == {"a", "b"})

    assert len(pods.held["team/b"].annotations["note"]) == len(big)
    assert len(pods.held["team/b"].containers) == 31


async def test_raw_objects_are_not_kept(cluster, server):
    for number in range(20):
        item = manifest(f"p{number}")
        item["spec"]["containers"][0]["args"] = [str(number) * 100_000]
        server.create_pod(item)
    pods = Pods()
    decoded = tracemalloc.Filter(inclusive=True, filename_pattern=json.decoder.__file__)  # the server keeps its own
    tracemalloc.start()
    try:
        async with running(cluster.follow_pods(pods.feed)):
            await pods.until(lambda pods: pods.replaced)
            await requested(server, WATCH_PODS)
            held = tracemalloc.take_snapshot().filter_traces([decoded]).statistics("filename")
    finally:
        tracemalloc.stop()

    assert pods.names == {f"p{number}" for number in range(20)}
    assert sum(statistic.size for statistic in held) < 100_000  # the objects are 3 MB
