"""Vastai's simulated machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.rigs import Rig, rig

PROFILE = str(Path(__file__).parents[1] / "machines/vastai-two-cards.yaml")


@pytest.fixture
def build(tmp_path: Path) -> Any:
    return lambda **settings: rig(PROFILE, tmp_path, **settings)


@pytest.fixture
def single(build: Any) -> Rig:
    machine: Rig = build(deviceStrategy="die")
    return machine
