from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.model.views import exact, whole


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
    "text",
    [
        "",
        "x",
        "1 Gi",
        "1GI",
        "Gi",
        "1_000",
        "0x10",
        "NaN",
        "inf",
        "1ki",
        "--1",
        "1e",
        "1e3k",
        "1E3Ki",
        " 1",
        "1\n",
        "\u0661",
    ],
)
def test_what_is_no_quantity_is_an_error_that_quotes_it(text: str):
    with pytest.raises(ValueError, match="is not a Kubernetes quantity"):
        whole(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "8Ei", "1e999", "10E", "9223372036854775807.5"])
def test_more_than_64_bits_is_the_most_that_they_hold(text: str):
    assert (whole(text), whole(f"-{text}")) == (2**63 - 1, 1 - 2**63)


@pytest.mark.parametrize("power", range(1, 7))
def test_every_suffix_is_its_power(power: int):
    decimal, binary = "kMGTPE"[power - 1], "KMGTPE"[power - 1] + "i"

    assert whole(f"7{decimal}") == exact(f"7{decimal}") == whole(f"7e{3 * power}") == whole(f"7E{3 * power}")
    assert whole(f"7{decimal}") == 7 * 1000**power
    assert whole(f"-7{binary}") == exact(f"-7{binary}") == -7 * 1024**power


@pytest.mark.parametrize(("suffix", "parts"), [("m", 10**3), ("u", 10**6), ("n", 10**9)])
def test_small_suffixes_are_fractions_that_are_rounded_away_from_zero(suffix: str, parts: int):
    for sign, text in ((1, ""), (1, "+"), (-1, "-")):
        assert whole(f"{text}{2 * parts}{suffix}") == exact(f"{text}{2 * parts}{suffix}") == 2 * sign
        assert whole(f"{text}{2 * parts + 1}{suffix}") == 3 * sign
        assert exact(f"{text}{2 * parts + 1}{suffix}") is None


@pytest.mark.parametrize(("text", "value"), [("5e-1", 1), ("15e-1", 2), ("-15E-1", -2), ("2.5e1", 25), ("0.0e9", 0)])
def test_an_exponent_may_be_negative(text: str, value: int):
    assert whole(text) == value


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
