"""What is different in NVIDIA's policy, above all where HAMi goes wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hami_plugin.model.device import Link, Links
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.nodes import DeviceInfo, MigProfile
from hami_plugin.scheduler.engine.devices import Admitted, Context, Demand, Denied, DeviceState, Invalid, Quota, Reason
from hami_plugin.scheduler.engine.fit import Granted, Refused, fit
from vendors.nvidia import VENDOR
from vendors.nvidia.settings import NvidiaSettings

(NVIDIA,) = VENDOR.families(NvidiaSettings())
assert NVIDIA.rules.policy
POLICY = NVIDIA.rules.policy
PROFILES = (
    MigProfile(name="1g.5gb", memory=4864, cores=14, slices=1, placements=tuple((n, 1) for n in range(7))),
    MigProfile(name="3g.20gb", memory=19968, cores=42, slices=3, placements=((0, 4), (4, 4))),
    MigProfile(name="7g.40gb", memory=40192, cores=100, slices=7, placements=((0, 8),)),
)


def card(number: int, **info: Any) -> DeviceState:
    told = {"count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA-A100", "health": True, **info}
    return DeviceState(info=DeviceInfo(id=f"GPU-{number}", index=number, mode=told.pop("mode", "hami-core"), **told))


def cut(number: int) -> DeviceState:
    return card(number, mode="mig", mig_profiles=PROFILES)


def asking(count: int = 1, annotations: dict[str, str] | None = None, **amounts: Any) -> Context:
    pod = PodView(uid="u", namespace="n", name="p", annotations=annotations or {})
    return Context(demand=Demand(device_type="NVIDIA", count=count, **amounts), pod=pod)


def granted(outcome: Granted | Refused) -> list[str]:
    assert isinstance(outcome, Granted), outcome
    return [grant.uuid for grant in outcome.grants]


def booked(states: list[DeviceState], outcome: Granted | Refused) -> list[tuple[str, int, int]]:
    """Profile, start and MiB of each instance."""
    assert isinstance(outcome, Granted), outcome
    after = {state.uuid: state for state in states}
    found = []
    for grant in outcome.grants:
        booking = POLICY.book(after[grant.uuid], grant, PodView(uid="", namespace="", name=""))
        assert not isinstance(booking, Reason)
        after[grant.uuid], instance = booking
        assert instance.notes
        found.append((instance.notes["migProfile"], instance.notes["migPlacement"]["start"], instance.memory))
    return found


TOPOLOGY = {"hami.io/gpu-scheduler-policy": "topology-aware"}
PAIRS = Links(
    pairs={
        (f"GPU-{a}", f"GPU-{b}"): Link(score=450 if a // 2 == b // 2 else 10, label="")
        for a in range(8)
        for b in range(a + 1, 8)
    }
)


def test_two_of_eight_are_a_pair_and_one_is_torn_from_a_broken_pair() -> None:
    states = [card(n) for n in range(8)]
    two = replace(asking(2, TOPOLOGY), links=PAIRS)
    one = replace(asking(1, TOPOLOGY), links=PAIRS)

    assert granted(fit(POLICY, states, two)) == ["GPU-7", "GPU-6"]
    assert granted(fit(POLICY, [*states[:3], *states[4:]], one)) == ["GPU-2"]


def test_a_numa_node_that_fits_is_kept_though_a_later_one_does_not() -> None:
    states = [card(0, numa=0), *(card(n, numa=1) for n in range(1, 5))]
    wish = {**TOPOLOGY, "nvidia.com/numa-bind": "true"}

    assert granted(fit(POLICY, states, replace(asking(2, wish), links=PAIRS))) == ["GPU-3", "GPU-2"]


def test_a_default_request_takes_the_largest_instance_of_an_idle_card() -> None:
    states = [cut(0)]

    assert booked(states, fit(POLICY, states, asking(percent=100, cores=100))) == [("7g.40gb", 0, 40192)]


def test_several_instances_of_one_card_are_put_where_they_hinder_least() -> None:
    states = [cut(0)]

    assert booked(states, fit(POLICY, states, asking(2, memory=10000))) == [
        ("3g.20gb", 4, 19968),
        ("3g.20gb", 0, 19968),
    ]
    assert booked(states, fit(POLICY, states, asking(1, memory=1))) == [("1g.5gb", 6, 4864)]
    assert "1/1 CardMigTopologyInfeasible" in str(fit(POLICY, states, asking(3, memory=10000)))


def test_a_cordoned_card_and_a_card_of_another_mode_take_no_new_pods() -> None:
    node = NodeView(name="n", annotations={"hami.io/device-cordon": "GPU-0, GPU-9"})
    context = replace(asking(annotations={"nvidia.com/vgpu-mode": "hami-core"}), node=node)

    assert str(fit(POLICY, [card(0), cut(1)], context)) == "1/2 CardCordoned, 1/2 CardTypeMismatch"


def test_a_quota_is_not_spent_by_cards_that_are_only_candidates() -> None:
    states = [card(n) for n in range(4)]
    context = replace(asking(1, TOPOLOGY, memory=1000), quota=Quota(limits={"nvidia.com/gpumem": 1000}), links=PAIRS)

    outcome = fit(POLICY, states, context)

    assert isinstance(outcome, Granted)
    assert all(verdict.reason is None for verdict in outcome.verdicts)
    assert "4/4 ResourceQuotaNotFit" in str(
        fit(POLICY, states, replace(context, demand=replace(context.demand, memory=1001)))
    )


@pytest.mark.parametrize(
    "limits", [{"gpu": "4294967297"}, {"gpu": "1", "gpucores": "3000000000"}, {"gpu": "1", "gpucores": "-1"}]
)
def test_numbers_do_not_wrap_around(limits: dict[str, str]) -> None:
    container = ContainerView(name="c", limits={f"nvidia.com/{name}": text for name, text in limits.items()})

    assert isinstance(POLICY.request(container), Invalid)


def test_admission_makes_a_bare_gpu_a_whole_one_and_refuses_101_percent() -> None:
    def admitted(**limits: str) -> Admitted | Denied:
        named = {f"nvidia.com/{name.replace('_', '-')}": text for name, text in limits.items()}
        return NVIDIA.rules.admit(ContainerView(name="c", limits=named), PodView(uid="", namespace="", name=""))

    assert admitted(gpu="1") == Admitted(found=True, limits={"nvidia.com/gpucores": "100"})
    assert admitted(gpu="1", gpumem="1000") == Admitted(found=True)
    assert admitted(gpumem="1000") == Admitted(found=True, limits={"nvidia.com/gpu": "1"})
    assert admitted(gpu="1", gpumem_percentage="101") == Denied(
        why="container 'c': nvidia.com/gpumem-percentage=101 is not within 0 to 100"
    )


@pytest.mark.parametrize(
    ("chosen", "device_type"),
    [
        ({}, "none"),
        ({"deviceListStrategy": "volume-mounts"}, "none"),
        ({"deviceListStrategy": "auto"}, "none"),
        ({"deviceListStrategy": "cdi-cri"}, "void"),
        ({"deviceListStrategy": "envvar", "cdi": {"enabled": True}}, "void"),
    ],
)
def test_a_container_without_a_card_opens_none_whatever_its_image_says(
    chosen: dict[str, Any], device_type: str
) -> None:
    (nvidia,) = VENDOR.families(NvidiaSettings.model_validate({"overwriteEnv": True, **chosen}))
    container = ContainerView(name="main")

    answer = nvidia.rules.admit(container, PodView(uid="1", namespace="default", name="p", containers=(container,)))

    assert isinstance(answer, Admitted)
    assert answer.env == {"NVIDIA_VISIBLE_DEVICES": device_type}


@pytest.mark.parametrize("resource", ["nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.10gb.me"])
def test_a_container_with_instances_that_the_kubelet_counts_is_left_as_it_is(resource: str) -> None:
    (nvidia,) = VENDOR.families(NvidiaSettings.model_validate({"overwriteEnv": True}))
    container = ContainerView(name="main", limits={resource: "1"})

    answer = nvidia.rules.admit(container, PodView(uid="1", namespace="default", name="p", containers=(container,)))

    assert answer == Admitted(found=False)
