from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.config.layers import Layer, Layers, ValueLocation, dotted, nested, without_none

scalars = st.none() | st.booleans() | st.integers(0, 9) | st.lists(st.integers(0, 9), max_size=2)
trees = st.recursive(scalars, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8)
mappings = st.dictionaries(st.sampled_from("abc"), trees, max_size=3)


def test_mappings_merge_and_everything_else_is_replaced() -> None:
    low = Layer(name="low", values={"a": {"x": 1, "y": [1, 2]}, "b": 1})
    high = Layer(name="high", values={"a": {"y": [3], "z": 0}, "c": None})

    layers = Layers([low, high])

    assert layers.values == {"a": {"x": 1, "y": [3], "z": 0}, "b": 1, "c": None}


def test_a_value_is_traced_to_the_layer_that_had_the_last_word() -> None:
    low = Layer(name="low", values={"a": {"x": 1, "y": [1, 2]}})
    high = Layer(name="high", values={"a": {"y": [3]}}, places={("a", "y"): ValueLocation(where="high:7", path="A.y")})

    layers = Layers([low, high])

    assert layers.place(("a", "x")) == ValueLocation(where="low", path="a.x")
    assert layers.place(("a", "y", 0)) == ValueLocation(where="high:7", path="A.y[0]")
    assert layers.place(("a", "z")) == ValueLocation(where="high", path="a.z")
    assert layers.place(("q",)) == ValueLocation(where="configuration", path="q")


def test_dropping_a_key_leaves_the_source_alone() -> None:
    source = {"a": {"x": 1, "list": [{"k": 1}]}}
    layers = Layers([Layer(name="one", values=source)])

    layers.drop(("a", "x"))
    layers.drop(("a", "list", 0, "k"))
    layers.drop(("nowhere", "x"))

    assert layers.values == {"a": {"list": [{}]}}
    assert source == {"a": {"x": 1, "list": [{"k": 1}]}}


@given(low=mappings, high=mappings)
def test_the_highest_layer_always_gets_its_way(low: dict[str, object], high: dict[str, object]) -> None:
    merged = Layers([Layer(name="low", values=low), Layer(name="high", values=high)])

    assert Layers([Layer(name="m", values=merged.values), Layer(name="high", values=high)]).values == merged.values
    for key in high:
        source = merged.source((key,))
        assert source is not None
        assert source.name == "high"


@given(values=mappings)
def test_one_layer_alone_comes_out_as_it_went_in(values: dict[str, object]) -> None:
    assert Layers([Layer(name="one", values=values)]).values == values


def test_paths_are_written_as_people_write_them() -> None:
    assert dotted(("a", "b", 0, "c")) == "a.b[0].c"
    assert dotted((0, "c"), "start") == "start[0].c"
    assert nested("a.b", 1) == {"a": {"b": 1}}
    assert without_none({"a": None, "b": {"c": None, "d": 0}, "e": [None]}) == {"b": {"d": 0}, "e": [None]}
