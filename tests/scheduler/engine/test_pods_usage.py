"""What running pods have of a node, read from what schedulers wrote."""

from __future__ import annotations

import pytest

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import (
    PodAllocation,
    amount,
    count_request,
    effective_holding,
    idle_state,
    restore_grant,
    subtract_holdings,
)

request = count_request("red", count=amount("red/count"))


def app(name: str, *, asks: bool = True, init: bool = False, sidecar: bool = False) -> ContainerView:
    limits = {"red/count": "1"} if asks else {}
    return ContainerView(name=name, init=init or sidecar, restartable=sidecar, limits=limits)


def share(uuid: str, memory: int, cores: int = 0) -> tuple[Grant, ...]:
    return (Grant(uuid=uuid, device_type="red", memory=memory, cores=cores),)


def holding(containers, pieces, phase="Pending") -> PodAllocation:
    pod = PodView(uid="u", namespace="n", name="p", containers=tuple(containers), phase=phase)
    return PodAllocation(pod=pod, pieces=tuple(pieces))


def summed(one: PodAllocation) -> dict[str, tuple[int, int, int]]:
    return {grant.uuid: (grant.slots, grant.memory, grant.cores) for grant in effective_holding(one, request)}


def test_containers_add_up_and_init_containers_count_by_the_largest():
    containers = [app("i", init=True), app("j", init=True), app("a"), app("b")]
    pieces = [share("R", 10, 5), share("R", 4, 50), share("R", 3, 1), share("R", 3, 1)]

    assert summed(holding(containers, pieces)) == {"R": (2, 10, 50)}


def test_init_containers_are_over_once_the_pod_runs():
    containers, pieces = [app("i", init=True), app("a")], [share("R", 10), share("S", 3)]

    assert summed(holding(containers, pieces)) == {"R": (1, 10, 0), "S": (1, 3, 0)}
    assert summed(holding(containers, pieces, "Running")) == {"S": (1, 3, 0)}


@pytest.mark.difference("D-224")
@pytest.mark.parametrize("pieces", [[share("R", 7), ()], [(), share("R", 7)], [(), share("R", 7), ()]])
def test_a_share_belongs_to_the_container_that_asks_wherever_it_stands(pieces):
    """HAMi leaves out the entry of an init container without a device, and then takes the app's share for its."""
    containers = [app("i", asks=False, init=True), app("a")]

    assert summed(holding(containers, pieces, "Running")) == {"R": (1, 7, 0)}


@pytest.mark.difference("D-223")
def test_a_sidecar_stays_and_counts_beside_later_init_containers():
    containers = [app("s", sidecar=True), app("i", init=True), app("a")]
    pieces = [share("R", 5), share("R", 4), share("R", 1)]

    assert summed(holding(containers, pieces)) == {"R": (2, 9, 0)}
    assert summed(holding(containers, pieces, "Running")) == {"R": (2, 6, 0)}


@pytest.mark.difference("D-224")
def test_shares_that_do_not_go_with_the_containers_all_count():
    containers = [app("i", init=True), app("a")]

    assert summed(holding(containers, [share("R", 5), share("R", 5), share("R", 5)], "Running")) == {"R": (3, 15, 0)}


def test_devices_that_are_gone_count_for_nothing_and_tenants_are_known():
    states = [idle_state(DeviceInfo(id="R", count=4, devmem=100, devcore=100, health=True))]
    holdings = [holding([app("a")], [share("R", 30, 20)]), holding([app("a")], [share("gone", 50)])]

    (state,) = subtract_holdings(states, holdings, request, restore_grant)

    assert (state.slots, state.memory, state.cores) == (1, 30, 20)
    assert [tenant.name for tenant in state.tenants] == ["p"]
