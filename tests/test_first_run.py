"""``make demo`` before anything is installed: what it would install, what it says, and whom its signals reach."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "runtime.py"
GUARD_S = 120


def commands(target: str, folder: Path) -> str:
    """What make would do for ``target`` where nothing is installed yet."""
    (folder / "proto").mkdir()
    (folder / "hami_plugin").mkdir()
    shutil.copy(ROOT / "hami_plugin" / "__init__.py", folder / "hami_plugin")
    for name in ("Makefile", "requirements.lock", "requirements-build.lock", "requirements-dev.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    make = ["make", "--dry-run", "--no-print-directory", target]
    return subprocess.run(make, cwd=folder, capture_output=True, text=True, check=True, timeout=GUARD_S).stdout


def test_the_demonstration_installs_what_a_run_needs_and_nothing_for_tests(tmp_path: Path):
    said = commands("demo", tmp_path)

    assert "tools/runtime.py --venv .venv install" in said
    assert "requirements-dev.lock" not in said


def test_the_setup_of_everything_builds_on_what_a_run_needs(tmp_path: Path):
    said = commands("setup", tmp_path)

    assert said.index("tools/runtime.py --venv .venv install") < said.index("--requirement requirements-dev.lock")


def program(folder: Path, script: str) -> Path:
    """A virtual environment whose ``hami-plugin`` is ``script``."""
    file = folder / "bin" / "hami-plugin"
    file.parent.mkdir()
    file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    file.chmod(0o755)
    return folder


def run(venv: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--venv", str(venv), "run", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=GUARD_S)


def test_the_first_run_shows_its_time_and_that_of_the_installation_before_it_once(tmp_path: Path):
    venv = program(tmp_path, 'echo "ran $*"')
    (venv / ".setup-times").write_text('{"download": 3.25, "install": 7.5}', encoding="utf-8")

    first, second = run(venv, "demo", "--profile", "x"), run(venv, "demo")

    assert "== running hami-plugin demo --profile x\n" in first.stdout
    assert "ran demo --profile x\n" in first.stdout
    assert re.search(r"Time: download 3\.2 s, install 7\.5 s, run \d+\.\d s", first.stdout)
    assert "download" not in second.stdout
    assert "(what it needs was installed before)" in second.stdout


def test_the_exit_status_is_the_commands(tmp_path: Path):
    assert run(program(tmp_path, "exit 7")).returncode == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_command(tmp_path: Path, number: int):
    venv = program(
        tmp_path, f'trap "touch {tmp_path}/heard; exit 5" TERM INT; touch {tmp_path}/up; while :; do sleep 0.05; done'
    )
    process = subprocess.Popen(
        # A job in the background of a script is born deaf to SIGINT, and a shell cannot trap what it was born deaf to.
        ["env", "--default-signal=INT", sys.executable, str(TOOL), "--venv", str(venv), "run"],
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + GUARD_S
        while not (tmp_path / "up").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(timeout=GUARD_S) == 5
        assert (tmp_path / "heard").exists()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_pin_is_taken_with_its_hashes():
    spec = importlib.util.spec_from_file_location("runtime_tool", TOOL)
    assert spec
    assert spec.loader
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)

    pinned = tool.pinned("editables", ROOT / "requirements-dev.lock")

    assert pinned.startswith("editables==")
    assert "--hash=sha256:" in pinned
    assert pinned.count("==") == 1
