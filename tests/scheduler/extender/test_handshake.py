"""Nodes are asked whether their daemons live, and those that are silent offer nothing."""

import asyncio
from datetime import datetime, timedelta

import pytest

from hami_plugin.protocol.nodes import render_answer, render_question
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.scheduling import KEYS, add_node, annotations, ask, cards, manifest, serving, until


class Clock:
    def __init__(self):
        self.ahead = timedelta()

    def __call__(self):
        return datetime.now().astimezone() + self.ahead


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def server():
    async with SimulatedApiServer() as server:
        yield server


@pytest.fixture
async def service(server, clock, tmp_path):
    async with serving(server, tmp_path, now=clock) as service:
        yield service


def handshake(server, name="n1") -> str | None:
    return annotations(server.node(name)).get(KEYS.handshake)


def writes(server) -> int:
    return server.count("PATCH /api/v1/nodes")


async def chosen(server, service) -> list[str]:
    pod = server.create_pod({**manifest("a"), "metadata": {"generateName": "a", "namespace": "team"}})
    return (await service.filter(ask(server, pod)))["NodeNames"]


async def test_every_node_with_devices_is_asked_once_and_a_counted_one_never_again(server, service, clock):
    """HAMi's agents since 2.8 and this project's daemon do not answer; the kubelet's count speaks for them."""
    add_node(server)
    server.create_node("without")
    await until(lambda: handshake(server))

    assert handshake(server).startswith("Requesting_20")
    clock.ahead = timedelta(hours=1)
    await asyncio.sleep(0.6)
    assert writes(server) == 1
    assert handshake(server, "without") is None
    assert await chosen(server, service) == ["n1"]


async def test_a_daemon_that_reports_itself_is_asked_again_each_time(server, service, clock):
    """HAMi's agents until 2.7 overwrite the question."""
    add_node(server, counted=None)
    for _ in range(3):
        await until(lambda: (handshake(server) or "").startswith("Requesting"))
        clock.ahead += timedelta(seconds=30)
        server.annotate_node("n1", {KEYS.handshake: render_answer(clock())})

    await until(lambda: (handshake(server) or "").startswith("Requesting"))
    assert await chosen(server, service) == ["n1"]


@pytest.mark.difference("D-381")
async def test_a_daemon_that_is_silent_too_long_offers_nothing_until_it_is_heard_again(server, service, clock):
    add_node(server, counted=None)
    await until(lambda: handshake(server))
    assert await chosen(server, service) == ["n1"]

    clock.ahead = timedelta(seconds=61)
    await until(lambda: handshake(server) is None)
    assert await chosen(server, service) == []
    before = writes(server)
    await asyncio.sleep(0.6)
    assert writes(server) == before
    assert await chosen(server, service) == []

    server.annotate_node("n1", {KEYS.register: cards("n1", 2)})
    await until(lambda: handshake(server))
    assert await chosen(server, service) == ["n1"]


@pytest.mark.difference("D-383")
async def test_two_replicas_agree_and_do_not_ask_in_turn(server, clock, tmp_path):
    add_node(server, counted=None)
    server.annotate_node("n1", {KEYS.handshake: render_question(clock())})
    async with serving(server, tmp_path, now=clock) as one, serving(server, tmp_path, now=clock) as other:
        clock.ahead = timedelta(seconds=61)
        await until(lambda: handshake(server) is None)
        await asyncio.sleep(0.8)

        assert handshake(server) is None
        assert writes(server) <= 2
        assert await chosen(server, one) == await chosen(server, other) == []


async def test_a_node_that_is_gone_is_not_offered(server, service):
    add_node(server)
    await until(lambda: service.cache.nodes.node_infos)
    server.delete_node("n1")
    await until(lambda: not service.cache.nodes.node_infos)
    pod = server.create_pod(manifest("a"))

    answer = await service.filter({"Pod": pod, "Nodes": None, "NodeNames": ["n1"]})

    assert answer["FailedNodes"] == {"n1": "node unregistered"}


async def test_a_handshake_that_cannot_be_written_is_tried_again(server, service):
    server.error(500, match="PATCH .*/nodes/", count=2)
    server.error(409, match="PATCH .*/nodes/", count=1)
    add_node(server)

    await until(lambda: handshake(server))
