"""Tools that answer, fail, hang with children of their own, or print JSON between banners."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.sdk.tools import ToolError, json_object, output, read


def script(folder: Path, text: str) -> Path:
    tool = folder / "smi"
    tool.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    tool.chmod(0o755)
    return tool


def test_what_a_tool_prints_is_handed_on(tmp_path: Path) -> None:
    assert output(script(tmp_path, 'echo "$1" "$2"'), "-i", "0") == "-i 0\n"


def test_a_tool_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="ended with status 3: no device"):
        output(script(tmp_path, "echo no device >&2; exit 3"))


def test_a_tool_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="smi cannot be run: No such file"):
        output(tmp_path / "smi")


def test_a_tool_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """The child has the pipe: as long as it lives, reading would not end."""
    with pytest.raises(ToolError, match=r"not answered within 0\.2 s"):
        output(script(tmp_path, "sleep 60 & wait"), deadline=0.2)


@pytest.mark.timeout(60)
def test_a_child_that_has_left_the_group_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"not answered within 0\.2 s"):
        output(script(tmp_path, "setsid sleep 120 & wait"), deadline=0.2)


@pytest.mark.parametrize("text", ['{"card0": {"a": "1"}}', 'banner {not json}\n{"card0": {"a": "1"}}\n=== end {\n'])
def test_json_is_found_among_banners(text: str) -> None:
    assert json_object(text, Path("smi")) == {"card0": {"a": "1"}}


def test_no_json_at_all_is_an_error() -> None:
    with pytest.raises(ToolError, match="smi printed no JSON object: '===== nothing'"):
        json_object("=====\nnothing", Path("smi"))


def test_a_tool_that_prints_without_end_is_ended_at_a_megabyte_and_named(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="smi printed more than 1024 KiB and was killed"):
        output(script(tmp_path, "while :; do echo x; done"), deadline=600)


def test_of_what_a_tool_complains_without_end_the_last_is_told(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"ended with status 3: …x.*no device$"):
        output(script(tmp_path, "head -c 3000000 /dev/zero | tr '\\0' x >&2; echo no device >&2; exit 3"))


def test_what_is_printed_up_to_the_bound_is_read_whole(tmp_path: Path) -> None:
    assert output(script(tmp_path, "head -c 1048576 /dev/zero | tr '\\0' x")) == "x" * (1 << 20)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{" * (1 << 20), "printed no JSON object"),
        ('{"a":' * 10_000, "nested too deeply"),
        ('{"a":' * 60 + "1" + "}" * 60, "nested more than 50 levels deep"),
        (f'{{"a": {"9" * 5_000}}} {{"b": 1}}', "printed JSON in which a number has 5000 digits"),
        ('{"a": NaN} {"b": 1}', "printed JSON in which a number is NaN"),
    ],
    ids=["braces", "deep", "rather deep", "digits", "nan"],
)
def test_json_that_nobody_can_use_is_the_tools_problem(text: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        json_object(text, Path("smi"))


def test_braces_before_the_object_are_tried_a_bounded_number_of_times() -> None:
    assert json_object("{" * 60 + '{"a": 1}', Path("smi")) == {"a": 1}
    with pytest.raises(ToolError, match="no JSON object"):
        json_object("{" * 64 + '{"a": 1}', Path("smi"))


@pytest.mark.parametrize(
    "error", [ValueError("nine"), KeyError("nine"), RecursionError("nine"), OverflowError("nine"), ZeroDivisionError()]
)
def test_whatever_a_parser_raises_is_the_tools_problem(tmp_path: Path, error: Exception) -> None:
    def parse(text: str) -> None:
        raise error

    with pytest.raises(ToolError, match=r"smi printed unreadable output: ('?nine|ZeroDivisionError)"):
        read(script(tmp_path, "echo x"), parse)


def test_a_script_without_its_interpreter_says_so(tmp_path):
    tool = tmp_path / "smi"
    tool.write_text("#!/no/such/shell -e\n")
    tool.chmod(0o755)

    with pytest.raises(ToolError, match="smi cannot be run: it is a script for /no/such/shell, which is not here"):
        output(tool)
