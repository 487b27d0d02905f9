"""A vendor's tool answers in time, or its silence has words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hami_plugin.host.tools import ToolError, said


def tool(folder: Path, code: str) -> Path:
    path = folder / "tool"
    path.write_text(f"#!{sys.executable}\nimport sys, time\n{code}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_what_a_tool_prints_is_its_answer(tmp_path: Path) -> None:
    assert said(tool(tmp_path, "print(sys.argv[1:])"), ["topo", "-m"]) == "['topo', '-m']\n"


def test_a_tool_that_fails_is_quoted_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="ended with status 3: no driver is loaded"):
        said(tool(tmp_path, "sys.stderr.write('no driver\\n  is loaded\\n'); sys.exit(3)"))


def test_a_tool_that_is_not_there_has_a_reason(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="cannot be run: No such file or directory"):
        said(tmp_path / "none")


def test_a_tool_that_hangs_is_waited_for_until_its_deadline(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"did not answer within 0\.2 s"):
        said(tool(tmp_path, "time.sleep(3600)"), deadline=0.2)
