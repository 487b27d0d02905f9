"""Whole Gaudi accelerators, of one NUMA node where it has enough."""

from __future__ import annotations

from hami_plugin.model.views import PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import Context, Demand, idle_state
from hami_plugin.scheduler.engine.fit import Granted, fit
from vendors.gaudi import GaudiSettings, families

(FAMILY,) = families(GaudiSettings())


def chosen(count: int, *busy: int) -> list[int]:
    """Which of eight accelerators, four on each NUMA node in turns, a container gets beside those that are busy."""
    infos = [
        DeviceInfo(
            id=f"G{n}", index=n, count=1, devmem=100, devcore=100, numa=n % 2, health=n not in busy, type="Gaudi"
        )
        for n in range(8)
    ]
    pod = PodView(uid="u", namespace="n", name="p")
    assert FAMILY.rules.policy
    outcome = fit(
        FAMILY.rules.policy,
        list(map(idle_state, infos)),
        Context(demand=Demand(device_type="Gaudi", count=count), pod=pod),
    )
    return sorted(int(grant.uuid[1:]) for grant in outcome.grants) if isinstance(outcome, Granted) else []


def test_several_are_of_one_numa_node_while_one_has_enough() -> None:
    assert chosen(4) in ([0, 2, 4, 6], [1, 3, 5, 7])
    assert chosen(3, 1) == [2, 4, 6]
    assert len(chosen(6)) == 6
    assert chosen(6, 0, 1, 2) == []
