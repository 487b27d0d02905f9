"""How much of a card is lost because instances stand in each other's way, by how their places are chosen.

Requests come one after the other, each for a random profile, the small ones more often, and stay for a random time. The
same ones are served by our choice and by HAMi's. One that is refused although the card has enough free slices counts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.figures import Figure
from hami_plugin.protocol.nodes import MigProfile
from hami_plugin.sdk import Range
from vendors.nvidia.rules import Place, best_place, places_left
from vendors.nvidia.simulation.records import load_tables

SEED = 14
REQUESTS = 40
LONGEST = 10
"""How many further requests an instance outlives at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    profile: MigProfile
    stays: int


@dataclass(slots=True, kw_only=True)
class Served:
    """What became of a sequence of requests. ``work`` is compute slices by the time they were served."""

    refused: int = 0
    lost: int = 0
    work: int = 0

    def add(self, other: Served) -> None:
        self.refused += other.refused
        self.lost += other.lost
        self.work += other.work


def first_place(profile: MigProfile, _profiles: object, occupied: Sequence[Range]) -> Range | None:
    """HAMi's: the highest free place of 1g and 3g, the lowest of others."""
    return next(iter(places_left(profile, occupied)), None)


def profiles_of(table: str) -> tuple[MigProfile, ...]:
    """A card's profiles but for those that differ in their engines only."""
    return tuple(
        MigProfile(
            name=row["name"],
            memory=row["memory_mib"],
            cores=0,
            slices=row["compute_slices"],
            placements=tuple((start, row["size"]) for start in row["starts"]),
        )
        for row in load_tables()[table]["profiles"]
        if not set("+-") & set(row["name"])
    )


def sequences(profiles: Sequence[MigProfile], count: int, seed: int = SEED) -> Iterator[list[Request]]:
    chance = random.Random(seed)
    weights = [1 / profile.placements[0][1] for profile in profiles]
    for _ in range(count):
        chosen = chance.choices(profiles, weights, k=REQUESTS)
        yield [Request(profile=profile, stays=chance.randint(1, LONGEST)) for profile in chosen]


def serve(profiles: Sequence[MigProfile], requests: Sequence[Request], place: Place) -> Served:
    """Serve them on one card. The legal places alone keep the sum of compute slices, and the numbers, within bounds."""
    width = max(start + size for profile in profiles for start, size in profile.placements)
    served, there = Served(), list[tuple[int, Range]]()
    for now, request in enumerate(requests):
        there = [(end, taken) for end, taken in there if end > now]
        occupied = [taken for _, taken in there]
        found = place(request.profile, profiles, occupied)
        if found is None:
            served.refused += 1
            served.lost += width - sum(size for _, size in occupied) >= request.profile.placements[0][1]
        else:
            there.append((now + request.stays, found))
            served.work += request.profile.slices * request.stays
    return served


def total(table: str, count: int, place: Place) -> Served:
    profiles = profiles_of(table)
    everything = Served()
    for requests in sequences(profiles, count):
        everything.add(serve(profiles, requests, place))
    return everything


async def measure(*, sequences: int) -> list[Figure]:
    """Of every card, for the same requests."""
    figures = []
    for table in load_tables():
        ours, his = (total(table, sequences, place) for place in (best_place, first_place))
        more = f"refused {ours.refused} and {his.refused}, work {ours.work / his.work:.2%}"
        note = f"HAMi's {his.lost}; {more}"
        figures.append(
            Figure(name=f"{table}, of {sequences * REQUESTS} requests", value=ours.lost, limit=his.lost, note=note)
        )
    return figures
