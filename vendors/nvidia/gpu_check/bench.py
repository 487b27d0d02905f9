"""What every check needs: where to write down, what is claimed, where the files are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vendors.nvidia.gpu_check.claims import Claims
from vendors.nvidia.gpu_check.verdicts import Findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """The kernel's file trees, wherever this process sees them."""

    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Handed to every check."""

    findings: Findings
    claims: Claims
    trees: Trees
