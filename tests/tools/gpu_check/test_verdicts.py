"""Which observations count as differences."""

import ctypes

import pynvml
import pytest

from tools.gpu_check.findings import Findings, Verdict, plain
from tools.gpu_check.library import ask, kind, refused


def _verdict(expected, observed):
    findings = Findings()
    findings.equal("it", expected, observed)
    return findings.checks[0].verdict


def test_equal_values_are_the_same_and_others_differ():
    assert _verdict([1, 2], (1, 2)) is Verdict.SAME
    assert _verdict(1, 2) is Verdict.DIFFERS
    assert _verdict(refused(3), refused(3)) is Verdict.SAME
    assert _verdict(refused(3), refused(2)) is Verdict.DIFFERS


def test_a_refusal_for_want_of_permission_is_not_done():
    assert _verdict(7, refused(4)) is Verdict.NOT_DONE


def test_a_refusal_that_was_claimed_is_the_same_even_for_want_of_permission():
    assert _verdict(refused(4), refused(4)) is Verdict.SAME


def test_a_call_that_the_driver_is_too_old_for_is_not_applicable():
    assert _verdict(7, refused(13)) is Verdict.NOT_APPLICABLE


def test_machines_may_differ_in_how_they_wire_a_card():
    findings = Findings()

    assert findings.among("it", [[0], [2]], [2])
    assert not findings.among("it", [[0], [2]], [0, 2])
    assert findings.checks[1].expected == {"one of": [[0], [2]]}


def test_a_check_remembers_what_it_is_about():
    findings = Findings()

    with findings.about("memory", 3):
        findings.equal("total", 1, 1)
    findings.equal("count", 1, 1)

    assert [(check.area, check.card) for check in findings.checks] == [("memory", 3), ("", None)]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (refused(15), {"refused": "GpuIsLost", "code": 15}),
        (refused(12345), {"refused": "Error12345", "code": 12345}),
        ({"a": (1, None)}, {"a": [1, None]}),
        ({3, 1}, [1, 3]),
        (b"x", "b'x'"),
    ],
)
def test_values_are_shown_as_json_can_hold_them(value, shown):
    assert plain(value) == shown


def test_types_are_told_as_python_has_them():
    assert kind((1, 2)) == "tuple[int, int]"
    assert kind([]) == "list"
    assert kind(ctypes.c_uint(1)) == "c_uint"
    assert kind((pynvml.c_nvmlFieldValue_t * 2)()) == "array of c_nvmlFieldValue_t"


def test_a_function_that_the_binding_lacks_is_an_answer_too():
    assert ask("nvmlDeviceGetSomethingNew") == refused(13)
