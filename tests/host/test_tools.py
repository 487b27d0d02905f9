"""Tools that answer, fail, hang with children of their own, or print JSON between banners."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hami_plugin.host.tools import ToolError, json_object, output


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


def test_a_child_that_has_left_the_group_is_not_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()

    with pytest.raises(ToolError, match=r"not answered within 0\.2 s"):
        output(script(tmp_path, "setsid sleep 30 & wait"), deadline=0.2)

    assert time.monotonic() - began < 5


@pytest.mark.parametrize("text", ['{"card0": {"a": "1"}}', 'banner {not json}\n{"card0": {"a": "1"}}\n=== end {\n'])
def test_json_is_found_among_banners(text: str) -> None:
    assert json_object(text, Path("smi")) == {"card0": {"a": "1"}}


def test_no_json_at_all_is_an_error() -> None:
    with pytest.raises(ToolError, match="smi printed no JSON object: '===== nothing'"):
        json_object("=====\nnothing", Path("smi"))
