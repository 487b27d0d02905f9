from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.model.device import NO_LINKS, Link, Links, symmetric

names = st.sampled_from("abcde")
directions = st.tuples(names, names).filter(lambda pair: pair[0] != pair[1])
directed = st.dictionaries(directions, st.integers(0, 500).map(lambda score: Link(score=score, label=f"L{score}")))


@given(directed)
def test_a_pair_has_one_link_and_it_is_the_worse_direction(measured: dict[tuple[str, str], Link]):
    links = symmetric(measured)

    for a, b in combinations("abcde", 2):
        seen = [link for pair in ((a, b), (b, a)) if (link := measured.get(pair))]
        assert links.between(a, b) is links.between(b, a)
        assert links.score(a, b) == min((link.score for link in seen), default=0)


@pytest.mark.scenario("D14")
@given(directed)
def test_a_pair_is_asymmetric_when_its_directions_differ_or_one_is_missing(measured: dict[tuple[str, str], Link]):
    links = symmetric(measured, problems=["no answer"])

    odd = {
        tuple(sorted((a, b)))
        for a, b in measured
        if (back := measured.get((b, a))) is None or back.score != measured[a, b].score
    }
    assert links.asymmetric == tuple(sorted(odd))
    assert links.problems == ("no answer",)


def test_a_total_counts_each_pair_once():
    links = Links(pairs={("a", "b"): Link(score=5, label=""), ("b", "c"): Link(score=7, label="")})

    assert links.total(["c", "a", "b"]) == 12
    assert links.total(["a"]) == 0
    assert NO_LINKS.total(["a", "b"]) == 0
