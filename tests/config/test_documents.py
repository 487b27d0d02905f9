from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_plugin.config.documents import Document, read_json, read_yaml, section
from hami_plugin.errors import ConfigError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "f"


def yaml_problem(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    (line,) = caught.value.problems
    return line.replace(str(path), "FILE")


def json_problem(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_json(path)
    (line,) = caught.value.problems
    return line.replace(str(path), "FILE")


def test_yaml_values_come_with_their_lines(path: Path) -> None:
    path.write_text("a: 1\nb:\n  c: [x, y]\n  d:\n  - e: true\n")

    document = read_yaml(path)

    assert document.value == {"a": 1, "b": {"c": ["x", "y"], "d": [{"e": True}]}}
    assert document.lines["a",] == 1
    assert document.lines["b", "c"] == 3
    assert document.lines["b", "c", 1] == 3
    assert document.lines["b", "d", 0, "e"] == 5


def test_an_empty_yaml_file_holds_nothing(path: Path) -> None:
    path.write_text("# only a comment\n")

    assert read_yaml(path).value is None


def test_anchors_and_merges_are_understood(path: Path) -> None:
    path.write_text("base: &b {x: 1, y: 2}\nother:\n  <<: *b\n  y: 3\n")

    assert read_yaml(path).value == {"base": {"x": 1, "y": 2}, "other": {"x": 1, "y": 3}}


@pytest.mark.scenario("H6")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", "FILE:3: a: is set twice, first on line 1; remove one of them"),
        ("x:\n  a: 1\n  a: 1\n", "FILE:3: a: is set twice, first on line 2; remove one of them"),
        ("a:\n\t- b\n", "indent with spaces, not tabs"),
        ("a: [1, 2\nb: 3\n", "FILE:2:2: is not YAML: while parsing a flow sequence, expected ',' or ']'"),
        ("a: b: c\n", "FILE:1:5: is not YAML: mapping values are not allowed here; correct the line, or the one above"),
        ("a: 1\n---\nb: 2\n", "FILE:2:1: is not YAML: expected a single document in the stream"),
        ("a: !!python/object:os.system {}\n", "FILE:1:4: is not YAML: could not determine a constructor"),
        ("a: *nobody\n", "FILE:1:4: is not YAML: found undefined alias 'nobody'"),
        ("a: \x01\n", "FILE: is not YAML: unacceptable character #x0001"),
        ("a: 2024-13-45\n", "FILE: has an impossible value: month must be in 1..12; put text in quotes"),
        ("? [a, b]\n: c\n", "FILE:1: a list or mapping is used as a key; use plain text"),
        ("&a [*a]\n", "FILE: is nested more than 50 levels deep, or contains itself; flatten it"),
        ("[" * 60 + "]" * 60, "FILE: is nested more than 50 levels deep, or contains itself; flatten it"),
        ("[" * 20_000, "FILE: is nested more than 50 levels deep, or contains itself; flatten it"),
    ],
)
def test_yaml_that_cannot_be_trusted_is_refused_with_line_and_remedy(path: Path, text: str, expected: str) -> None:
    assert expected in yaml_problem(path, text)


def test_aliases_that_multiply_are_stopped(path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]

    assert "has more than 50000 values, aliases included; shorten it" in yaml_problem(path, "\n".join(lines))


@pytest.mark.scenario("H6")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1,}', "FILE:1:"),
        ('{"a": 1\n "b": 2}', "FILE:2:2: is not JSON: Expecting ',' delimiter; correct the line, or the one above"),
        ("", "FILE:1:1: is not JSON: Expecting value"),
        ('{"a": 1, "a": 2}', "FILE: a: is set twice in one object; remove one of them"),
        ('{"a": NaN}', "FILE: NaN is not a JSON number; write a finite one"),
        ("[" * 100_000, "FILE: is nested more than 50 levels deep, or contains itself; flatten it"),
        ("[" * 60 + "]" * 60, "FILE: is nested more than 50 levels deep, or contains itself; flatten it"),
        ("9" * 5000, "FILE: a number has 5000 digits; the limit is 30"),
    ],
)
def test_json_that_cannot_be_trusted_is_refused_with_line_and_remedy(path: Path, text: str, expected: str) -> None:
    assert expected in json_problem(path, text)


def test_json_is_read(path: Path) -> None:
    path.write_text('{"nodeconfig": [{"name": "n1"}]}')

    assert read_json(path).value == {"nodeconfig": [{"name": "n1"}]}


def test_a_section_may_be_empty_but_nothing_else(path: Path) -> None:
    document = Document(path=path, value=None, lines={("a", "b"): 7})

    assert section(document, ("a", "b"), None) == {}
    assert section(document, ("a", "b"), {"c": 1}) == {"c": 1}
    with pytest.raises(ConfigError, match=r":7: a\.b: must be a section of keys, not list; write `key: value`"):
        section(document, ("a", "b"), [])
    with pytest.raises(ConfigError, match="must hold keys at the top, not str"):
        section(document, (), "x")


@settings(deadline=None)
@given(text=st.text(max_size=200))
def test_any_text_is_either_a_document_or_a_config_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    path.write_text(text, encoding="utf-8", errors="replace")

    for read in (read_yaml, read_json):
        try:
            outcome: object = read(path)
        except ConfigError as error:
            outcome = error.problems
        assert isinstance(outcome, Document) or all(line.startswith(str(path)) for line in outcome)
