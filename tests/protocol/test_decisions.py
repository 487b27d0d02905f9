from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_plugin.errors import WireError
from hami_plugin.model.placement import Grant
from hami_plugin.protocol.pods import Piece, decode_devices, encode_devices, erase

words = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters=",:;"), max_size=10)
amounts = st.integers(0, 2**31 - 1)
grants = st.builds(Grant, uuid=words, device_type=words, memory=amounts, cores=amounts)
pods = st.lists(st.lists(grants, max_size=3).map(tuple), max_size=5)

TWO = "GPU-a,NVIDIA,3000,0:;GPU-b,NVIDIA,5000,0:;"


@settings(deadline=None)
@given(pods)
def test_what_is_encoded_comes_back_and_one_empty_piece_stands_for_the_end(pieces: list[Piece]):
    decoded = decode_devices(encode_devices(pieces))

    assert decoded == (*pieces, ())
    assert encode_devices(decoded[:-1]) == encode_devices(pieces)


@settings(deadline=None)
@given(pods, st.data())
def test_erasing_takes_one_piece_and_leaves_every_other_where_it_was(pieces: list[Piece], data: st.DataObject):
    text = encode_devices(pieces)
    position = data.draw(st.integers(0, len(pieces)))

    erased = erase(text, position)

    expected = [() if i == position else piece for i, piece in enumerate(decode_devices(text))]
    assert decode_devices(erased) == tuple(expected)
    assert erased.count(";") == text.count(";")
    assert erase(erased, position) == erased


def first_pending(pieces: Sequence[Piece]) -> int | None:
    """The position of the container that is served next."""
    return next((position for position, piece in enumerate(pieces) if piece), None)


@settings(deadline=None)
@given(pods)
def test_erasing_piece_by_piece_ends_with_nothing_pending(pieces: list[Piece]):
    text, served = encode_devices(pieces), []

    while (position := first_pending(decode_devices(text))) is not None:
        assert any(decode_devices(text))
        served.append(decode_devices(text)[position])
        text = erase(text, position)

    assert served == [piece for piece in pieces if piece]
    assert not any(decode_devices(text))
    assert text == ";" * len(pieces)


@pytest.mark.parametrize(
    ("start", "hami"),
    [
        ("GPU-a,NVIDIA,3000,30:;", [";;"]),
        (TWO, [";GPU-b,NVIDIA,5000,0:;;", ";;;;"]),
        (
            ";GPU-a,NVIDIA,3000,30:;;GPU-b,NVIDIA,5000,50:GPU-c,NVIDIA,5000,50:;",
            [";;;GPU-b,NVIDIA,5000,50:GPU-c,NVIDIA,5000,50:;;", ";;;;;;"],
        ),
    ],
)
def test_each_step_says_what_hami_says_without_the_semicolons_that_hami_adds(start: str, hami: list[str]):
    text = start
    for theirs in hami:
        position = first_pending(decode_devices(text))
        assert position is not None
        text = erase(text, position)

        ours, longer = decode_devices(text), decode_devices(theirs)
        assert longer[: len(ours)] == ours
        assert not any(longer[len(ours) :])


def test_what_hami_made_of_a_text_is_read_like_our_own():
    assert list(map(len, decode_devices(";GPU-b,NVIDIA,5000,0:;;"))) == [0, 1, 0, 0]
    assert not any(decode_devices(";;;;"))


def test_the_first_container_may_have_no_device():
    pieces = decode_devices(";GPU-a,NVIDIA,3000,30:;")

    assert pieces == ((), (Grant(uuid="GPU-a", device_type="NVIDIA", memory=3000, cores=30),), ())


def test_what_has_no_comma_is_no_device():
    assert decode_devices("GPU-a,NVIDIA,3000,30:rest:;") == decode_devices("GPU-a,NVIDIA,3000,30:;")


def test_nothing_is_pending_in_an_empty_text():
    assert decode_devices("") == ((),)


@pytest.mark.parametrize("position", [-1, 3, 10**9])
def test_erasing_a_container_that_is_not_there_is_an_error(position: int):
    with pytest.raises(WireError, match=f"no container {position} among 3"):
        erase(TWO, position)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("GPU-a,NVIDIA,500:;", r"container\[0\]: 'GPU-a,NVIDIA,500' has 3 fields"),
        (";GPU-a,NVIDIA,5x,3:;", r"container\[1\]: memory of 'GPU-a': '5x' is not a whole number"),
        ("a,T,1_000,3:;", "'1_000' is not a whole number"),
        ("a,T,\u0661,3:;", "is not a whole number"),
        ("a,T, 1,3:;", "' 1' is not a whole number"),
        ("a,T,2147483648,3:;", "is not within 0 to 2147483647"),
        ("a,T,1,99999999999999999999999:;", "is not within"),
        ("a,T,-1,3:;", "-1 is not within 0"),
        ("a\n,T,1,3:;", r"contains '\\n' at 1"),
        ("a\ud800,T,1,3:;", "contains"),
    ],
)
def test_an_error_says_which_container_and_which_value(text: str, problem: str):
    with pytest.raises(WireError, match=problem):
        decode_devices(text)


@pytest.mark.parametrize(
    "grant",
    [
        Grant(uuid="a;b", device_type="T"),
        Grant(uuid="a", device_type="T,1"),
        Grant(uuid="a:", device_type="T"),
        Grant(uuid="a", device_type="T", memory=2**31),
        Grant(uuid="a", device_type="T", cores=-1),
    ],
)
def test_a_grant_that_would_read_as_another_is_not_written(grant: Grant):
    with pytest.raises(WireError):
        encode_devices([(grant,)])
