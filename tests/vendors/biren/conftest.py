"""Biren's simulated machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rigs import Rig, rig

PROFILE = "biren-br106-8"


@pytest.fixture
def machine(tmp_path: Path) -> Rig:
    return rig(PROFILE, tmp_path)
