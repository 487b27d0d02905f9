"""Of cards that are linked equally well the device order decides, asked by HTTP as kube-scheduler asks."""

from __future__ import annotations

from itertools import permutations

import pytest

from hami_plugin.protocol.nodes import encode_scores
from hami_plugin.protocol.pods import decode_devices
from hami_plugin.scheduler.engine.devices import ORDER_KEY
from hami_plugin.scheduler.extender.extender import Extender
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.extender import Rig, listening
from tests.support.scheduling import KEYS, add_node, annotations, ask, manifest, serving, until, written

ALL_ALIKE, PAIRED = (lambda _a, _b: 1850), (lambda a, b: 450 if a // 2 == b // 2 else 10)


@pytest.fixture
async def server():
    async with SimulatedApiServer() as server:
        yield server


async def served(server: SimulatedApiServer, service: Extender, rig: Rig, name: str, **asked) -> list[int]:
    """The cards that a new pod is given, by index, in the decision's order."""
    pod = server.create_pod(manifest(name, **asked))
    status, answer = await rig.post("/filter", ask(server, pod))
    assert (status, answer["NodeNames"], answer["Error"]) == (200, ["n1"], "")
    await written(service, pod)
    (piece,) = filter(None, decode_devices(annotations(server.pod("team", name))[KEYS.allocated]))
    return [int(grant.uuid.removeprefix("n1-g")) for grant in piece]


def linked(server: SimulatedApiServer, score) -> None:
    add_node(server, count=8, counted=80)
    peers = {f"n1-g{a}": {} for a in range(8)}
    for a, b in permutations(range(8), 2):
        peers[f"n1-g{a}"][f"n1-g{b}"] = score(a, b)
    server.annotate_node("n1", {KEYS.score: encode_scores(peers, [*peers])})


@pytest.mark.parametrize(
    ("order", "score", "gpus", "expected"),
    [
        ("spread,topology-aware", ALL_ALIKE, 1, [[7], [6], [5], [4], [3], [2]]),
        ("binpack,topology-aware", ALL_ALIKE, 1, [[7]] * 6),
        ("spread,topology-aware", ALL_ALIKE, 2, [[7, 6], [5, 4], [3, 2], [1, 0], [7, 6], [5, 4]]),
        ("spread,topology-aware", PAIRED, 2, [[7, 6], [5, 4], [3, 2], [1, 0], [7, 6], [5, 4]]),
        ("binpack,topology-aware", PAIRED, 2, [[7, 6]] * 6),
    ],
)
async def test_load_decides_between_equally_linked_cards(server, tmp_path, order, score, gpus, expected):
    linked(server, score)
    async with serving(server, tmp_path) as service, listening(service) as rig:
        await until(lambda: service.cache.nodes.node_infos)

        given = [
            await served(server, service, rig, f"p{n}", gpus=gpus, memory=1000, **{ORDER_KEY: order}) for n in range(6)
        ]

    assert given == expected


async def test_whole_cards_leave_the_pairs_of_others_whole(server, tmp_path):
    """With one card in use, a pod of two takes no pair apart, and one of one takes the card whose pair is broken."""
    linked(server, PAIRED)
    async with serving(server, tmp_path) as service, listening(service) as rig:
        await until(lambda: service.cache.nodes.node_infos)

        async def whole(name: str, gpus: int) -> list[int]:
            return await served(
                server, service, rig, name, gpus=gpus, cores=100, **{ORDER_KEY: "spread,topology-aware"}
            )

        given = [await whole(name, gpus) for name, gpus in (("a", 1), ("b", 2), ("c", 1), ("d", 4))]

    assert given == [[7], [5, 4], [6], [3, 2, 1, 0]]
