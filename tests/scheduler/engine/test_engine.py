"""The laws that hold for every policy, shown on the usual one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import Context, Demand, DeviceState, Reason
from hami_plugin.scheduler.engine.fit import Granted, Refused, fit
from hami_plugin.scheduler.engine.policy import ByNumaIf, Misfit, Policy, consecutive, standard, whole_modules

POLICY = Policy(request=lambda _container: None, serves=standard("W", uuids=("x/use", "x/avoid"), types=("x/t", "x/n")))


def device(number: int, *, slots: int = 0, memory: int = 0, cores: int = 0, **info: object) -> DeviceState:
    told = {"count": 4, "devmem": 1000, "devcore": 100, "type": "W-1", "health": True, **info}
    return DeviceState(
        info=DeviceInfo(id=f"d{number}", index=number, **told),  # type: ignore[arg-type]  # builder
        slots=slots,
        memory=memory,
        cores=cores,
    )


def asking(count: int = 1, *, annotations: dict[str, str] | None = None, **amounts: int) -> Context:
    pod = PodView(
        uid="u", namespace="n", name="p", annotations=annotations or {}, containers=(ContainerView(name="c"),)
    )
    return Context(demand=Demand(device_type="W", count=count, **amounts), pod=pod)  # type: ignore[arg-type]  # builder


def granted(outcome: Granted | Refused) -> list[str]:
    assert isinstance(outcome, Granted), outcome
    return [grant.uuid for grant in outcome.grants]


DEVICES = st.lists(
    st.builds(
        lambda number, slots, memory, cores, health, numa: device(
            number, slots=slots, memory=memory, cores=cores, health=health, numa=numa
        ),
        st.integers(0, 40),
        st.integers(0, 5),
        st.integers(0, 1100),
        st.integers(0, 110),
        st.booleans(),
        st.integers(0, 1),
    ),
    max_size=8,
    unique_by=lambda state: state.uuid,
)
CONTEXTS = st.builds(
    lambda count, memory, percent, cores, order: asking(
        count,
        memory=memory,
        percent=percent,
        cores=cores,
        annotations={"hami.io/gpu-scheduler-policy": order},
    ),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 1200)),
    st.one_of(st.none(), st.integers(1, 100)),
    st.integers(0, 150),
    st.sampled_from(["spread", "mutex", "binpack,mutex", ""]),
)


@given(DEVICES, CONTEXTS)
def test_a_grant_never_exceeds_what_is_free(states: list[DeviceState], context: Context) -> None:
    outcome = fit(POLICY, states, context)

    if isinstance(outcome, Granted):
        free = {state.uuid: state for state in states}
        assert len({grant.uuid for grant in outcome.grants}) == context.demand.count
        for grant in outcome.grants:
            state = free[grant.uuid]
            assert grant.memory <= state.free_memory
            assert grant.cores <= state.free_cores
            assert state.slots < state.info.count
            assert state.info.health


@given(DEVICES, CONTEXTS)
def test_more_memory_never_turns_yes_into_no(states: list[DeviceState], context: Context) -> None:
    larger = [replace(state, info=replace(state.info, devmem=state.info.devmem + 500)) for state in states]
    absolute = replace(context, demand=replace(context.demand, percent=None))

    if isinstance(fit(POLICY, states, absolute), Granted):
        assert isinstance(fit(POLICY, larger, absolute), Granted)


@given(DEVICES, CONTEXTS)
def test_a_refusal_has_a_reason_and_a_verdict_on_each_device(states: list[DeviceState], context: Context) -> None:
    outcome = fit(POLICY, states, context)

    if isinstance(outcome, Refused):
        assert [verdict.state for verdict in outcome.verdicts] == states[::-1]
        counted = [verdict.reason for verdict in outcome.verdicts if verdict.reason]
        assert {reason: counted.count(reason) for reason in counted} == {
            reason: count for reason, count in outcome.reasons.items() if count and reason is not Reason.TOO_FEW
        }


def test_the_walk_starts_at_the_end() -> None:
    assert granted(fit(POLICY, [device(0), device(1), device(2)], asking(2))) == ["d2", "d1"]


def test_a_refusal_reads_as_hami_writes_it() -> None:
    states = [device(0), device(1, health=False), device(2, memory=1000), device(3, slots=4)]

    outcome = fit(POLICY, states, asking(2, memory=100))

    assert str(outcome) == (
        "1/4 AllocatedCardsInsufficientRequest, 1/4 CardInsufficientMemory, 1/4 CardNotHealth, "
        "1/4 CardTimeSlicingExhausted"
    )


def test_reasons_are_sorted_as_text() -> None:
    states = [*(device(n, health=False) for n in range(10)), device(10, slots=4), device(11, slots=4)]

    assert str(fit(POLICY, states, asking())) == "10/12 CardNotHealth, 2/12 CardTimeSlicingExhausted"


def test_a_gate_refuses_the_whole_node() -> None:
    closed = replace(POLICY, gates=(lambda _context: Reason.MODE,))

    assert str(fit(closed, [device(0), device(1)], asking())) == "1/2 ModeNotFit"


def test_numa_binding_takes_a_node_that_suffices_wherever_its_devices_stand() -> None:
    bound = replace(POLICY, group=ByNumaIf("x/bind"))
    states = [device(0, numa=0), device(1, numa=1), device(2, numa=0), device(3, numa=1, slots=4)]
    wish = {"x/bind": "true"}

    assert granted(fit(bound, states, asking(2, annotations=wish))) == ["d2", "d0"]
    assert str(fit(bound, states, asking(3, annotations=wish))) == (
        "1/4 CardTimeSlicingExhausted, 1/4 NumaNotFit, 2/4 AllocatedCardsInsufficientRequest"
    )


def test_one_device_may_give_several_shares_if_the_policy_says_so() -> None:
    again = replace(POLICY, again=lambda _state: True)

    assert granted(fit(again, [device(0)], asking(3))) == ["d0", "d0", "d0"]


def test_modules_are_granted_whole() -> None:
    paired = replace(POLICY, select=whole_modules(2))
    states = [device(0), device(1, slots=4), device(2), device(3), device(4), device(5)]

    assert granted(fit(paired, states, asking(2))) == ["d5", "d4"]
    assert (
        str(fit(paired, states[:4], asking(4))) == "1/4 CardTimeSlicingExhausted, 2/4 AllocatedCardsInsufficientRequest"
    )


def test_neighbours_start_where_they_may() -> None:
    states = [device(0), device(1, slots=4), *(device(n) for n in range(2, 9))]
    ring = replace(POLICY, select=consecutive(lambda _count: 1))
    aligned = replace(POLICY, select=consecutive(lambda count: count if count in (1, 4) else None))

    assert granted(fit(ring, states, asking(4))) == ["d2", "d3", "d4", "d5"]
    assert granted(fit(aligned, states, asking(4))) == ["d4", "d5", "d6", "d7"]
    assert str(fit(aligned, states, asking(2))) == "1/9 NumaNotFit"


def test_a_selectors_reasons_may_stand_alone() -> None:
    strict = replace(POLICY, select=lambda _eligible, _context: Misfit(reasons={Reason.NUMA: 1}, instead=True))

    assert str(fit(strict, [device(0, health=False)], asking())) == "1/1 NumaNotFit"
