"""Random lives of many pods on a card: what is called free can be made, and journal and hardware never part."""

import os
import random
from dataclasses import replace

import pytest

from hami_plugin.partitions.life import ABSENT, State, free_places
from hami_plugin.sdk import Reservation
from tests.support.partition_agent import Agent, reservation
from tests.support.partitions import Cards, Killed, profile
from tests.support.scale import sized
from vendors.nvidia.simulation.records import load_tables


def profiles(table):
    """A card's own, as its driver tells them."""
    return tuple(
        profile(row["name"], row["memory_mib"], row["compute_slices"], row["size"], row["starts"], row["max_instances"])
        for row in table["profiles"]
    )


LIVES = int(os.environ.get("PARTITION_LIVES", "0")) or sized(5, 120)
"""On each card's table; ``PARTITION_LIVES=1000`` takes some five minutes."""

TABLES = {name: profiles(table) for name, table in load_tables().items()}


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _file: None)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("seed", range(LIVES))
def test_a_place_that_is_called_free_can_be_had_whatever_came_before(tmp_path, table, seed):
    chance = random.Random(seed)
    cards = Cards(tables={"GPU-0": TABLES[table]})
    agent = Agent(cards=cards, path=tmp_path / "partitions")
    pods = []
    for number in range(25):
        match chance.choice(["come", "come", "come", "end", "again", "kill", "reset", "foreign"]):
            case "come":
                if wanted := any_free(chance, agent, cards):
                    one = agent.live(reserved(f"pod-{number}", *wanted))
                    pods.append(f"pod-{number}")
                    agent.allocate(one)
            case "end" if pods:
                agent.end(pods.pop(chance.randrange(len(pods))))
                agent.settle()
            case "again" if pods:
                ended, pod = pods.pop(chance.randrange(len(pods))), f"pod-{number}"
                (before,) = [one.wanted for one in agent.reserved if one.owner.uid == ended]
                agent.end(ended)
                one = agent.live(replace(reservation(pod), wanted=before))
                pods.append(pod)
                agent.allocate(one)
            case "kill":
                agent.kill_at = len(agent.moments) + chance.randrange(1, 8)
                if wanted := any_free(chance, agent, cards):
                    one = agent.live(reserved(f"pod-{number}", *wanted))
                    pods.append(f"pod-{number}")
                    try:
                        agent.allocate(one)
                    except Killed:
                        agent.restart()
                agent.kill_at = None
                agent.settle()
            case "reset" if chance.random() < 0.2:
                cards.reset("GPU-0")
                agent.settle()
                for pod in [one for one in pods if agent_lost(agent, one)]:
                    pods.remove(pod)
                    agent.end(pod)
                agent.settle()
            case "foreign" if chance.random() < 0.3:
                if wanted := any_free(chance, agent, cards):
                    agent.foreign.add(cards.cut("GPU-0", wanted[0].name, wanted[1].start).uuid)
                agent.settle()
        agent.check()
    for pod in pods:
        agent.end(pod)
    agent.settle()

    agent.at_rest()
    assert {one.uuid for one in cards.all()} <= agent.foreign


def any_free(chance, agent, cards):
    """A profile and a place that the card is said to have free; None where it is full."""
    table = cards.tables["GPU-0"]
    taken = [(one.profile, one.placement) for one in agent.journal.entries.values() if one.state not in ABSENT]
    # What is reserved for a pod and not made yet holds its place all the same.
    taken += [
        (one.wanted.profile, one.wanted.placement)
        for one in agent.reserved
        if not any(entry.owner == one.owner for entry in agent.journal.entries.values())
    ]
    free = [(profile, place) for profile in table for place in free_places(profile, table, taken)]
    return chance.choice(free) if free else None


def reserved(pod, profile, place):
    wanted = Reservation(container="main", device=0, card="GPU-0", profile=profile.name, placement=place)
    return replace(reservation(pod), wanted=wanted)


def agent_lost(agent, pod):
    entries = [one for one in agent.journal.entries.values() if one.owner and one.owner.uid == pod]
    return not entries or entries[0].state is State.LOST
