"""When is a device unwell, and when is it well again?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.inventory.health import (
    RELAPSE_WINDOW_S,
    WELL,
    HealthLimits,
    after_event,
    after_look,
    after_reload,
    min_unhealthy_s,
)
from hami_plugin.model.device import Action, Fault, Health

PATIENCE = HealthLimits(suspect_looks=2, clean_looks=3, hold=10.0, hold_cap=600.0)
FAULTS = {action: Fault(reason=action.value.title(), action=action) for action in Action}
DRAIN, RESET, REBOOT = FAULTS[Action.DRAIN], FAULTS[Action.RESET], FAULTS[Action.REBOOT]

steps = st.one_of(
    st.tuples(st.just("event"), st.sampled_from(list(FAULTS.values()))),
    st.tuples(st.just("look"), st.sampled_from([None, *FAULTS.values()])),
    st.tuples(st.just("reload"), st.none()),
)
histories = st.lists(st.tuples(steps, st.floats(0.0, 900.0)), max_size=30)


def step(condition, what, fault, now):
    match what:
        case "event":
            return after_event(condition, fault, now)
        case "look":
            return after_look(condition, fault, now, PATIENCE)
        case _:
            return after_reload(condition)


def lived(history, condition=WELL, now=0.0):
    """Every state on the way, with what led to it: (before, what, fault, after, now)."""
    path = []
    for (what, fault), pause in history:
        now += pause
        after = step(condition, what, fault, now)
        path.append((condition, what, fault, after, now))
        condition = after
    return path


def clean(condition, now, looks, pause):
    for _ in range(looks):
        now += pause
        condition = after_look(condition, None, now, PATIENCE)
    return condition, now


@given(histories)
def test_a_device_is_offered_again_only_by_looks_and_never_while_one_fails(history):
    for before, what, fault, after, _now in lived(history):
        if after.health.offered and not before.health.offered:
            assert what == "look"
            assert fault is None or fault.action is Action.IGNORE


@pytest.mark.scenario("D5")
@given(histories, st.floats(1.0, 10_000.0))
def test_a_fault_that_asks_for_a_reboot_never_heals_by_clean_looks_alone(history, pause):
    now = sum(p for _, p in history)
    condition = lived(history)[-1][3] if history else WELL
    if not condition.health.offered:
        return
    condition = after_event(condition, REBOOT, now)

    condition, _ = clean(condition, now, 50, pause)

    assert condition.health is Health.UNHEALTHY


@pytest.mark.parametrize("seen", ["broken", "confirmed", "reloaded"])
def test_a_fault_that_asks_for_a_reboot_heals_once_it_was_seen_broken_or_the_driver_came_anew(seen):
    condition = after_event(WELL, REBOOT, 0.0)
    match seen:
        case "broken":
            condition = after_look(condition, DRAIN, 1.0, PATIENCE)
        case "confirmed":
            condition = after_event(condition, DRAIN, 1.0, confirmed=True)
        case _:
            condition = after_reload(condition)

    condition, _ = clean(condition, 10.0, PATIENCE.clean_looks, 1.0)

    assert condition.health is Health.HEALTHY


def test_a_fault_that_asks_for_a_reset_heals_by_itself_only_after_the_longest_hold():
    condition, now = clean(after_event(WELL, RESET, 0.0), 0.0, 59, 10.0)
    assert condition.health is Health.UNHEALTHY

    condition, _ = clean(condition, now, PATIENCE.clean_looks, 10.0)

    assert condition.health is Health.HEALTHY


@given(histories)
def test_the_gravest_fault_decides_until_the_device_is_well(history):
    order = list(Action)
    for before, _what, _fault, after, _now in lived(history):
        if before.fault and after.fault and not before.health.offered and not after.health.offered:
            assert order.index(after.fault.action) >= order.index(before.fault.action)


@given(histories)
def test_a_fault_that_asks_for_nothing_does_no_harm(history):
    for before, what, fault, after, _now in lived(history):
        if fault and fault.action is Action.IGNORE and what == "event":
            assert after == before


@given(histories)
def test_a_mild_fault_is_not_believed_before_its_second_look(history):
    failed = 0
    for before, what, fault, after, _now in lived(history):
        if before.health.offered and what == "look" and fault == DRAIN:
            failed += 1
            assert after.health is (Health.SUSPECT if failed < PATIENCE.suspect_looks else Health.UNHEALTHY)
        elif what == "look" or not after.health.offered:
            failed = 0
        if after.health is Health.HEALTHY:
            failed = 0


@pytest.mark.parametrize("fault", [RESET, REBOOT], ids=str)
def test_a_grave_fault_is_believed_at_the_first_look(fault):
    assert after_look(WELL, fault, 0.0, PATIENCE).health is Health.UNHEALTHY


def test_one_clean_look_clears_a_suspicion():
    suspect = after_look(WELL, DRAIN, 0.0, PATIENCE)

    assert after_look(suspect, None, 1.0, PATIENCE).health is Health.HEALTHY


@pytest.mark.scenario("D7")
def test_recovery_needs_the_hold_and_then_clean_looks_in_a_row():
    condition = after_event(WELL, DRAIN, 100.0)
    condition = after_look(condition, None, 109.9, PATIENCE)
    assert (condition.health, condition.looks) == (Health.UNHEALTHY, 0)

    states = []
    for now in (110.0, 111.0):
        condition = after_look(condition, None, now, PATIENCE)
        states.append(condition.health)
    condition = after_look(condition, DRAIN, 112.0, PATIENCE)
    assert (condition.health, condition.looks) == (Health.UNHEALTHY, 0)
    for now in (113.0, 114.0, 115.0):
        condition = after_look(condition, None, now, PATIENCE)
        states.append(condition.health)

    assert states == [Health.PROBATION] * 4 + [Health.HEALTHY]


@pytest.mark.scenario("D7")
def test_the_hold_doubles_with_each_relapse_within_an_hour_and_has_a_cap():
    condition, now, holds = WELL, 0.0, []
    for _ in range(9):
        condition = after_event(condition, DRAIN, now)
        holds.append(min_unhealthy_s(condition, PATIENCE))
        condition, now = clean(condition, now + holds[-1], PATIENCE.clean_looks, 1.0)
        assert condition.health is Health.HEALTHY

    assert holds == [10, 20, 40, 80, 160, 320, 600, 600, 600]


def test_an_hour_without_a_relapse_forgets_the_former_ones():
    condition, now = clean(after_event(WELL, DRAIN, 0.0), 10.0, 3, 1.0)
    condition, now = clean(after_event(condition, DRAIN, now), now + 20.0, 3, 1.0)
    assert condition.relapses == 1

    condition = after_event(condition, DRAIN, now + RELAPSE_WINDOW_S)

    assert min_unhealthy_s(condition, PATIENCE) == PATIENCE.hold


@given(histories)
def test_a_device_has_a_fault_exactly_while_it_is_not_healthy(history):
    for _before, _what, _fault, after, _now in lived(history):
        assert (after.fault is not None) == (after.health is not Health.HEALTHY)


def test_a_suspicion_that_a_reload_met_does_not_excuse_a_later_fault():
    condition = after_reload(after_look(WELL, DRAIN, 0.0, PATIENCE))
    condition = after_look(condition, None, 1.0, PATIENCE)
    condition = after_event(condition, REBOOT, 2.0)

    condition, _ = clean(condition, 2.0, 50, 100.0)

    assert condition.health is Health.UNHEALTHY
