"""Pods that run and ask for other amounts: granted where device and quota have them, else the reason at the pod."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from hami_plugin.protocol.pods import RESIZE, RESIZE_GRANTED, RESIZE_REFUSED, decode_devices
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.scheduling import (
    CARD_MIB,
    HURRY,
    KEYS,
    MEMORY,
    add_node,
    annotations,
    ask,
    daemons,
    manifest,
    reasons,
    schedule,
    serving,
    until,
)


@pytest.fixture
async def server():
    async with SimulatedApiServer() as running:
        yield running


@asynccontextmanager
async def busy(server, tmp_path, **changes):
    """A service, and pods a and b of 3000 and 4000 MiB that run on one card."""
    add_node(server)
    options = replace(HURRY, resizes=True, resize_period=0.05, **changes)
    async with serving(server, tmp_path, options) as service, daemons(server):
        await until(lambda: service.cache.nodes.node_infos)
        for name, memory in (("a", 3000), ("b", 4000)):
            assert await schedule(server, service, server.create_pod(manifest(name, memory=memory))) == "n1"
            server.set_phase("team", name, "Running")
        yield service


def wish(server, text, name="a"):
    server.annotate_pod("team", name, {RESIZE: text})


def said(server, name="a"):
    return annotations(server.pod("team", name))


def memory(server, name="a"):
    return decode_devices(said(server, name)[KEYS.allocated])[0][0].memory


async def test_more_is_granted_and_counted_from_then_on(server, tmp_path):
    async with busy(server, tmp_path) as service:
        wish(server, "memory=5000")
        await until(lambda: said(server).get(RESIZE_GRANTED) == "memory=5000")

        assert memory(server) == 5000
        late = server.create_pod(manifest("late", memory=1001))
        assert (await service.filter(ask(server, late)))["NodeNames"] == []
        small = server.create_pod(manifest("small", memory=CARD_MIB - 9000))
        assert (await service.filter(ask(server, small)))["NodeNames"] == ["n1"]


async def test_less_is_granted_and_counts_once_the_daemon_has_done_it(server, tmp_path):
    async with busy(server, tmp_path):
        wish(server, "container=main,memory=1000")
        await until(lambda: RESIZE_GRANTED in said(server))

        assert memory(server) == 3000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memory=7000", f"has {CARD_MIB} MiB of memory, and 11000 would be given"),
        ("memory=lots", "is not from 1 to"),
        ("container=other,memory=1", "container other has devices"),
    ],
)
async def test_a_refusal_stands_at_the_pod_and_in_an_event(server, tmp_path, text, words):
    async with busy(server, tmp_path):
        wish(server, text)
        await until(lambda: RESIZE_REFUSED in said(server))

        assert words in said(server)[RESIZE_REFUSED]
        await until(lambda: words in reasons(server, "a").get("ResizeRefused", ""))
        assert RESIZE_GRANTED not in said(server)
        assert memory(server) == 3000


async def test_what_was_refused_is_granted_when_there_is_room(server, tmp_path):
    async with busy(server, tmp_path):
        wish(server, "memory=7000")
        await until(lambda: RESIZE_REFUSED in said(server))

        server.delete_pod("team", "b")

        await until(lambda: RESIZE_GRANTED in said(server))
        assert memory(server) == 7000


async def test_a_quota_holds_for_a_resize_as_for_a_new_pod(server, tmp_path):
    server.create_quota("team", "memory", {f"limits.{MEMORY}": "8000"})
    async with busy(server, tmp_path) as service:
        await until(lambda: service.cache.quotas._known)
        wish(server, "memory=4001")
        await until(lambda: RESIZE_REFUSED in said(server))
        assert "the pod would have 4001, and 4000 of 8000 are used" in said(server)[RESIZE_REFUSED]

        wish(server, "memory=4000")

        await until(lambda: said(server).get(RESIZE_GRANTED) == "memory=4000")


async def test_two_that_want_the_same_room_do_not_both_get_it(server, tmp_path):
    async with busy(server, tmp_path):
        wish(server, "memory=6000", "a")
        wish(server, "memory=7000", "b")

        await until(lambda: all(said(server, one).keys() & {RESIZE_GRANTED, RESIZE_REFUSED} for one in "ab"))
        assert memory(server, "a") + memory(server, "b") <= CARD_MIB


async def test_without_the_switch_nothing_is_answered(server, tmp_path):
    add_node(server)
    async with serving(server, tmp_path) as service:
        assert not service._options.resizes
        assert "resizes" not in {task.get_name() for task in asyncio.all_tasks()}
