"""What a pod says when it asks for other amounts while it runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.errors import WireError
from hami_plugin.protocol.pods import Amounts, parse_resize


@pytest.mark.parametrize(
    ("text", "amounts"),
    [
        ("memory=8000", Amounts(memory=8000)),
        (" cores=50 , memory=1", Amounts(memory=1, cores=50)),
        ("container=main,memory=8000,cores=100", Amounts(container="main", memory=8000, cores=100)),
    ],
)
def test_amounts_are_read(text, amounts):
    assert parse_resize(text) == amounts


@pytest.mark.parametrize(
    "text",
    ["", "memory", "container=main", "memory=0", "memory=-1", "memory=8Gi", "memory=\u0663", "cores=101", "gpus=1",
     "memory=1,memory=2", f"memory=1,container={'c' * 300}", "memory=99999999999"],
)  # fmt: skip
def test_what_cannot_be_read_says_how_it_is_written(text):
    with pytest.raises(WireError) as caught:
        parse_resize(text)
    assert "container=main,memory=8000,cores=50" in caught.value.hint


@given(st.text(max_size=300))
def test_no_text_breaks_it(text):
    try:
        amounts = parse_resize(text)
    except WireError:
        return
    assert amounts.memory or amounts.cores
