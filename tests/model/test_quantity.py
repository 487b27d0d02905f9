from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.model.quantity import whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1", 1),
        ("1500m", 2),
        ("1m", 1),
        ("-1500m", -2),
        ("2Gi", 2 * 1024**3),
        ("1.5Gi", 1536 * 1024**2),
        ("3k", 3000),
        ("1Ki", 1024),
        ("1e3", 1000),
        ("12E2", 1200),
        ("2E", 2 * 10**18),
        ("1n", 1),
        (".5", 1),
        ("+4", 4),
        (7, 7),
        ("9223372036854775807", 2**63 - 1),
        ("7Ei", 7 * 1024**6),
    ],
)
def test_a_quantity_is_the_integer_that_kubernetes_makes_of_it(text: object, value: int):
    assert whole(text) == value


@pytest.mark.parametrize(
    "text", ["", "x", "1 Gi", "1GI", "Gi", "1_000", "0x10", "NaN", "inf", "1ki", "--1", "1e", "\u0661"]
)
def test_what_is_no_quantity_is_an_error_that_quotes_it(text: str):
    with pytest.raises(ValueError, match="is not a Kubernetes quantity"):
        whole(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "8Ei", "1e999", "-9223372036854775809"])
def test_more_than_64_bits_is_an_error(text: str):
    with pytest.raises(ValueError, match="64 bits"):
        whole(text)


@given(st.integers(-(2**62), 2**62))
def test_every_integer_is_itself(number: int):
    assert whole(str(number)) == number


@given(st.integers(0, 10**12), st.sampled_from([("Ki", 1024), ("k", 1000), ("Mi", 1024**2)]))
def test_a_suffix_multiplies(number: int, suffix: tuple[str, int]):
    assert whole(f"{number}{suffix[0]}") == number * suffix[1]


@given(st.text(max_size=40))
def test_any_text_is_a_number_or_a_value_error(text: str):
    try:
        value = whole(text)
    except ValueError:
        return
    assert abs(value) < 2**63
