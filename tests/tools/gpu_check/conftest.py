"""The check as a process, over simulated machines that a test may disturb first."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.simulation.machines import load_machine
from vendors.nvidia.simulation import NvmlSimulator, simulate

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    status: int
    output: str
    errors: str
    report: Mapping[str, Any]

    def checks(
        self, verdict: str = "", area: str = "", name: str = "", card: int | None = None
    ) -> list[dict[str, Any]]:
        return [
            check
            for check in self.report["checks"]
            if verdict in ("", check["verdict"])
            and area in ("", check["area"])
            and name in ("", check["name"])
            and card in (None, check["card"])
        ]

    def differing(self) -> set[tuple[str, int | None, str]]:
        return {(check["area"], check["card"], check["name"]) for check in self.checks("differs")}


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str | Path], NvmlSimulator]:
    """A simulated machine by profile."""
    return lambda profile: simulate(load_machine(profile), tmp_path / "machine")


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., Result]:
    """Run the check on a simulated machine, or with ``arguments`` alone."""

    def run(
        simulator: NvmlSimulator | None = None,
        *arguments: str,
    ) -> Result:
        report = tmp_path / "out" / "report.json"
        places = {}
        if simulator:
            settings = simulator.settings()
            places = {"--nvml-library": settings["nvmlLibrary"]}
            places |= {f"--{name}-root": settings[f"{name}Root"] for name in ("sysfs", "proc", "dev")}
        words = [word for pair in places.items() for word in pair]
        done = subprocess.run(
            [sys.executable, "-m", "tools.gpu_check", "--report", str(report), *words, *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Result(
            status=done.returncode,
            output=done.stdout,
            errors=done.stderr,
            report=json.loads(report.read_text(encoding="utf-8")) if report.exists() else {},
        )

    return run
