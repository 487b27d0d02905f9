from __future__ import annotations

import pytest

from hami_plugin.model.device import Action
from vendors.nvidia.xid import TABLE, XidPolicy, of_one_instance, parse_selection


@pytest.mark.scenario("D6")
@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 109])
def test_an_application_fault_keeps_the_card(number: int) -> None:
    assert XidPolicy().fault(number) is None


@pytest.mark.scenario("D5", "D6")
@pytest.mark.parametrize(
    ("number", "action"),
    [
        (48, Action.RESET),
        (63, Action.RESET),
        (64, Action.RESET),
        (74, Action.RESET),
        (79, Action.REBOOT),
        (92, Action.DRAIN),
        (94, Action.RESET),
        (95, Action.RESET),
        (119, Action.RESET),
        (120, Action.RESET),
        (140, Action.RESET),
        (999, Action.DRAIN),
    ],
)
def test_a_card_fault_asks_for_what_the_table_says(number: int, action: Action) -> None:
    fault = XidPolicy().fault(number)

    assert fault is not None
    assert (fault.reason, fault.action) == (f"Xid{number}", action)
    assert fault.message.startswith(f"XID {number}: ")


@pytest.mark.parametrize(
    ("number", "alone"),
    [(94, True), (31, True), (32, True), (92, True), (999, True)]
    + [(number, False) for number in (48, 63, 64, 74, 79, 95, 119, 120)],
)
def test_what_needs_a_reset_is_every_instances_but_for_contained_memory_errors(number: int, alone: bool) -> None:
    assert of_one_instance(number) is alone


def test_an_instance_with_a_contained_error_has_another_chance_without_a_reset() -> None:
    fault = XidPolicy().fault(94, contained=True)

    assert fault is not None
    assert (fault.reason, fault.action) == ("Xid94", Action.DRAIN)


def test_hami_and_we_ignore_the_same_xids_by_default() -> None:
    ignored = {number for number in range(1000) if XidPolicy().action(number) is Action.IGNORE}

    assert ignored == {13, 31, 43, 45, 68, 109}
    assert set(TABLE) >= ignored


@pytest.mark.parametrize(
    ("disable", "enable", "acted_upon", "ignored"),
    [
        ("", "", {48, 79, 999}, {13, 31}),
        ("48", "", {79}, {48, 13}),
        ("all", "", set(), {13, 48, 79, 999}),
        ("XIDS", "", set(), {13, 48, 79, 999}),
        ("", "13", {13, 48}, {31}),
        ("", "all", {13, 31, 48, 999}, set()),
        ("48,79", "79", {79}, {48}),
        ("all", "48", {48}, {79, 13}),  # HAMi stops looking here, and misses 48
        ("all", "all", {13, 48, 999}, set()),
        (" 48 , ,79,", "", {95}, {48, 79}),
    ],
)
def test_the_operators_lists_outrank_the_table(
    disable: str, enable: str, acted_upon: set[int], ignored: set[int]
) -> None:
    policy = XidPolicy(disable=parse_selection(disable), enable=parse_selection(enable))

    assert all(policy.fault(number) for number in acted_upon)
    assert not any(policy.fault(number) for number in ignored)


def test_only_disabling_everything_makes_the_policy_silent() -> None:
    assert XidPolicy(disable="all").silent
    assert not XidPolicy(disable="all", enable=frozenset({48})).silent
    assert not XidPolicy(disable=frozenset({48})).silent


@pytest.mark.parametrize("text", ["x", "48,seventynine", "-1", "1.5", "٤٨"])
def test_a_list_that_cannot_be_read_is_refused_by_its_word(text: str) -> None:
    with pytest.raises(ValueError, match="is not an XID"):
        parse_selection(text)


@pytest.mark.parametrize(
    ("disable", "enable", "told"), [("", "", True), ("31", "", False), ("all", "", False), ("", "31", False)]
)
def test_an_applications_fault_is_told_unless_nobody_wants_it_or_it_counts(
    disable: str, enable: str, told: bool
) -> None:
    policy = XidPolicy(disable=parse_selection(disable.split(",")), enable=parse_selection(enable.split(",")))

    assert (policy.of_application(31) is not None) is told
    assert policy.of_application(79) is None
    assert policy.of_application(999) is None
