"""What cutting a card costs others: an Allocate beside one that makes a partition, and the choice of places.

The driver's calls take as long as they do on hardware; who waits for them must be the pod alone that they are for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.figures import Figure, Spread, cpu_beside, median, ratio
from bench.fragmentation import profiles_of
from bench.kubelet import Calls, Shares
from bench.testbed import Node, Testbed, open_testbed
from hami_plugin.model.placement import Grant
from hami_plugin.protocol.nodes import DeviceInfo, MigProfile, decode_json, encode_json
from hami_plugin.scheduler.engine.devices import Slice
from vendors.nvidia.rules import ALLOCATIONS, MigAllocation, choose, encode_mig
from vendors.nvidia.simulation.records import load_tables

PROFILE, MEMORY_MIB, PLACES = "1g.10gb", 9984, 7
SLOW_CARDS = 2
"""The last ones of the node. Whoever is not delayed has another card."""
CALLS_MS = {
    "nvmlDeviceCreateGpuInstanceWithPlacement": 900,
    "nvmlGpuInstanceCreateComputeInstance": 300,
    "nvmlComputeInstanceDestroy": 100,
    "nvmlGpuInstanceDestroy": 900,
}
BESIDE_LIMIT = 2.0
CARDS = 8
CHOICE_LIMIT = 2.0
"""Twice as long as the scheduler reads the same cards' register, which is under a millisecond."""


@dataclass(slots=True, kw_only=True)
class Times:
    """Seconds. ``within`` counts the Allocates that were answered while the slow one went on."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    slow: list[float] = field(default_factory=list)
    within: int = 0


async def measure(*, rounds: int, slack: float = 1.0) -> list[Figure]:
    """As many Allocates with nothing else under way as beside a slow one, in turns; at most 14 rounds."""
    async with open_testbed(Node(), vendor={"operatingMode": "mig"}) as testbed:
        testbed.hardware.simulator.inject("mig", value=1)
        for card in range(len(testbed.uuids) - SLOW_CARDS, len(testbed.uuids)):
            for call, milliseconds in CALLS_MS.items():
                testbed.hardware.simulator.inject("latency", card, f"{call}:{milliseconds}")
        await testbed.start_daemon()
        await _offered(testbed)
        with ExitStack() as stack:
            arrivals, times = _Arrivals(testbed, stack), Times()
            for number in range(rounds):
                await arrivals.alone(times, number)
                await arrivals.beside(times, number)
    alone, beside = Spread.of(times.alone), Spread.of(times.beside)
    return [
        Figure(
            name="Allocate beside a slow one / alone: p50",
            value=beside.p50 / alone.p50,
            unit="x",
            limit=slack * BESIDE_LIMIT,
            note=f"{beside}; alone {alone}",
        ),
        Figure(
            name="Allocates answered while a slow one went on",
            value=times.within,
            limit=rounds,
            floor=True,
            note=f"the slow ones: {Spread.of(times.slow)}",
        ),
        choice(),
    ]


async def _offered(testbed: Testbed) -> None:
    """Wait until the register has what cards may be cut into."""
    key = testbed.family.rules.annotations.register
    async with asyncio.timeout(20):
        while "migProfiles" not in (await testbed.cluster.node_annotations()).get(key, ""):  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.05)


class _Arrivals:
    """Pods with an instance each, which stay."""

    def __init__(self, testbed: Testbed, stack: ExitStack) -> None:
        self._testbed = testbed
        self._quick, self._slow = (Calls(testbed.socket, stack) for _ in range(2))
        self._shares = Shares(testbed.uuids, testbed.node)
        last = len(testbed.uuids) - SLOW_CARDS
        self._places = [(card, start) for start in range(PLACES) for card in range(last)]
        self._slow_places = [(card, start) for start in range(PLACES) for card in range(last, len(testbed.uuids))]

    async def alone(self, times: Times, number: int) -> None:
        ids = await self._arrived(f"alone-{number}", *self._places.pop())
        times.alone.append(await asyncio.to_thread(_timed, self._quick, ids))

    async def beside(self, times: Times, number: int) -> None:
        """A pod whose instance takes its time, and while it is made another one, of another card."""
        slow_ids = await self._arrived(f"slow-{number}", *self._slow_places.pop())
        ids = await self._arrived(f"beside-{number}", *self._places.pop())
        slow = asyncio.create_task(asyncio.to_thread(_timed, self._slow, slow_ids))
        await self._under_way(f"slow-{number}")
        times.beside.append(await asyncio.to_thread(_timed, self._quick, ids))
        times.within += not slow.done()
        times.slow.append(await slow)

    async def _arrived(self, name: str, card: int, start: int) -> list[str]:
        """Have a pod bound, known to the daemon, and answer the ids that the kubelet will name."""
        testbed, uuid = self._testbed, self._testbed.uuids[card]
        place = MigAllocation(container=0, device=0, uuid=uuid, profile=PROFILE, start=start, size=1)
        grant = Grant(uuid=uuid, device_type=testbed.family.resources.device_type, memory=MEMORY_MIB, cores=0)
        annotations = {ALLOCATIONS: encode_mig([place])}
        await testbed.cluster.create_pod(name, [[grant]], lock=False, annotations=annotations)
        pair = [
            Grant(uuid=one, device_type=testbed.family.resources.device_type, memory=1, cores=0)
            for one in testbed.uuids[:2]
        ]
        await testbed.cluster.create_pod("mark", [pair], lock=False)
        await asyncio.to_thread(self._quick.prefer, self._shares.free, len(pair))
        await testbed.cluster.delete_pod("mark")
        return [self._shares.take(uuid)]

    async def _under_way(self, name: str) -> None:
        """Wait until the daemon has written down what it is about to make for this pod."""
        journal = self._testbed.directory / "state" / "partitions-nvidia-NVIDIA"
        async with asyncio.timeout(20):
            while not _intended(journal, name):  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.005)


def _intended(journal: Path, name: str) -> bool:
    return any(f'"{name}"' in line and '"intent-create"' in line for line in journal.read_text().splitlines())


def _timed(calls: Calls, ids: Sequence[str]) -> float:
    return calls.allocate(ids)[1]


def choice() -> Figure:
    """Choosing a place on each card of a node, against reading its register, of the cards for which that is slowest."""
    ratio, ours, reading, table = max(_choice(table) for table in load_tables())
    note = f"{1000 * ours:.2f} ms of CPU on {CARDS} of {table}, reading {1000 * reading:.2f} ms"
    return Figure(name="Choosing places / reading the register", value=ratio, unit="x", limit=CHOICE_LIMIT, note=note)


def _choice(table: str) -> tuple[float, float, float, str]:
    profiles = profiles_of(table)
    text = encode_json([_card(number, profiles) for number in range(CARDS)])
    occupied = [(Slice(profile=profiles[0].name, start=card % 4, size=1),) for card in range(CARDS)]

    def places() -> None:
        for there in occupied:
            choose(profiles, there, profiles[0].memory)

    ours, reading = cpu_beside(places, lambda: decode_json(text), 50)
    return ratio(ours, reading), median(ours), median(reading), table


def _card(number: int, profiles: Sequence[MigProfile]) -> DeviceInfo:
    return DeviceInfo(
        id=f"GPU-{number}",
        index=number,
        count=PLACES,
        devmem=81920,
        type="NVIDIA",
        mode="mig",
        mig_profiles=tuple(profiles),
    )
