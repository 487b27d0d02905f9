"""YAML as container runtimes read it."""

import pytest

from hami_plugin.host.bounded_yaml import MAX_NODES, FastLoader, read_yaml


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
    with pytest.raises(ValueError, match=f'"[abc]" is set twice in one mapping, on lines . and {line}$'):
        read_yaml(text)


def test_aliases_count_for_what_they_stand_for():
    rows = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]

    assert read_yaml("\n".join(rows[:10]))["a0"] == {"x": 1}
    with pytest.raises(ValueError, match="has more than 200000 keys and values, aliases included"):
        read_yaml("\n".join(rows))


@pytest.mark.parametrize("text", ["&a [*a]", "a: &x {b: {c: *x}}", "- &a\n  - *a"])
def test_a_document_that_contains_itself_is_refused(text):
    with pytest.raises(ValueError, match="or contains itself"):
        read_yaml(text)


DEEP = {
    "lists": "[" * 65_536,
    "lists that are closed": "[" * 65_536 + "]" * 65_536,
    "lists of dashes": "- " * 65_536,
    "mappings": "{a: " * 65_536,
    "keys": "? " * 65_536,
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_a_document_too_deep_for_the_parser_in_c_is_refused_and_ends_no_process(text):
    with pytest.raises(ValueError, match="is nested more than 50 levels deep"):
        read_yaml(text)


@pytest.mark.parametrize("most", [2_000, pytest.param(MAX_NODES, marks=pytest.mark.full)])
def test_a_document_of_more_nodes_than_any_spec_is_refused_while_it_is_read(most, monkeypatch):
    assert FastLoader.most_nodes == MAX_NODES
    monkeypatch.setattr(FastLoader, "most_nodes", most)

    with pytest.raises(ValueError, match=f"has more than {most} keys and values"):
        read_yaml("[" + "[]," * 2 * most + "]")


@pytest.mark.parametrize(
    "value",
    ["1" + ":1" * 100_000, "1" + ":1" * 100_000 + ".5", "9" * 5_000, "!!int 1" + ":1" * 100_000],
    ids=["base 60", "base 60 with a fraction", "digits", "base 60 with a tag"],
)
def test_a_number_that_takes_minutes_to_read_is_refused(value):
    with pytest.raises(ValueError, match=r"a value \((int|float)\) has \d+ characters; 256 are enough"):
        read_yaml(f"a: {value}")
