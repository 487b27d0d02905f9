"""YAML as container runtimes read it."""

import pytest

from hami_plugin.host.plain_yaml import read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: 1\nb: [x, {c: y}]\n", {"a": 1, "b": ["x", {"c": "y"}]}),
        ("a: &one {b: 1, c: 2}\nd: {<<: *one, c: 3}\ne: [*one, *one]\n", None),
        ("1: a\n'1': b\n", {1: "a", "1": "b"}),
    ],
    ids=["nothing", "plain", "merged", "a number and a text"],
)
def test_a_document_becomes_plain_values(text, value):
    merged = {"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}, "e": [{"b": 1, "c": 2}] * 2}

    assert read_yaml(text) == (merged if "<<" in text else value)


@pytest.mark.parametrize(
    ("text", "line"), [("a: 1\nb: 2\na: 3\n", 3), ("a:\n- b: {c: 1, 'c': 2}\n", 2), ("{a: &x {b: 1, b: 2}, c: *x}", 1)]
)
def test_a_key_that_is_there_twice_is_refused_with_its_line(text, line):
    with pytest.raises(ValueError, match=f'"[abc]" is there twice in one mapping, on line {line}$'):
        read_yaml(text)


def test_aliases_of_aliases_are_looked_at_once():
    rows = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]

    assert read_yaml("\n".join(rows))["a0"] == {"x": 1}
