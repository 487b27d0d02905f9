"""What is different in AMD: percentages become compute units, and a grant names the product."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import Admitted, Context, Demand, Denied, DeviceState, idle_state
from hami_plugin.scheduler.engine.fit import Granted, Refused, fit
from vendors.amd.rules import families
from vendors.amd.settings import AmdSettings

(AMD,) = families(AmdSettings())
POD = PodView(uid="u", namespace="n", name="p")
MI300X = "AMD_Instinct_MI300X_VF"


def card(cores: int = 304) -> DeviceState:
    return idle_state(DeviceInfo(id="GPU-1", count=10, devmem=196608, devcore=cores, type=MI300X, health=True))


def asked(**limits: str) -> object:
    assert AMD.rules.policy
    return AMD.rules.policy.request(
        ContainerView(name="c", limits={f"amd.com/{key}": text for key, text in limits.items()})
    )


def offered(state: DeviceState, memory: int | None, percent: int) -> Granted | Refused:
    assert AMD.rules.policy
    demand = Demand(device_type="AMD", count=1, memory=memory, cores=percent)
    return fit(AMD.rules.policy, [state], Context(demand=demand, pod=POD))


@pytest.mark.parametrize(
    ("cores", "percent", "units"),
    [(304, 25, 76), (304, 33, 100), (304, 67, 203), (304, 10, 30), (304, 1, 3), (64, 1, 1), (304, 100, 304)],
)
def test_a_percentage_is_a_whole_number_of_compute_units_and_at_least_one(cores: int, percent: int, units: int) -> None:
    outcome = offered(card(cores), 16384, percent)

    assert isinstance(outcome, Granted)
    assert [(grant.device_type, grant.memory, grant.cores) for grant in outcome.grants] == [(MI300X, 16384, units)]


def test_memory_alone_takes_all_compute_units_so_nobody_else_fits() -> None:
    demand = asked(gpu="1", gpumem="16384")
    assert demand == Demand(device_type="AMD", count=1, memory=16384, cores=100)

    assert str(offered(replace(card(), slots=1, memory=16384, cores=304), 1, 1)) == "1/1 CardInsufficientCore"


def test_a_gpu_without_further_words_is_a_whole_one() -> None:
    outcome = offered(card(), None, 100)

    assert isinstance(outcome, Granted)
    assert AMD.rules.patch(AMD, POD, {"AMD": (outcome.grants,)}) == {
        "hami.io/amd-devices-to-allocate": f"GPU-1,{MI300X},196608,304:;",
        "hami.io/amd-devices-allocated": f"GPU-1,{MI300X},196608,304:;",
    }


def test_requests_beside_limits_mean_nothing() -> None:
    assert AMD.rules.policy

    assert AMD.rules.policy.request(ContainerView(name="c", requests={"amd.com/gpu": "1"})) is None


@pytest.mark.parametrize("cores", ["0", "101", "500m", "-5"])
def test_cores_that_are_no_percentage_are_denied_at_admission(cores: str) -> None:
    container = ContainerView(name="c", limits={"amd.com/gpu": "1", "amd.com/gpucores": cores})

    denied = AMD.rules.admit(container, POD)

    assert isinstance(denied, Denied)
    assert denied.why == f"container 'c': amd.com/gpucores={cores} is not a whole number, 1 to 100"


def test_memory_without_a_gpu_is_ours_and_asks_for_nothing() -> None:
    assert AMD.rules.admit(ContainerView(name="c", limits={"amd.com/gpumem": "10"}), POD) == Admitted(found=True)
    assert asked(gpumem="10") is None


def test_no_handshake_is_expected_of_the_agent() -> None:
    assert AMD.rules.annotations.handshake == ""
    assert AMD.rules.annotations.register == "hami.io/node-amd-register"
