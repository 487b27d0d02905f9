"""Cambricon's simulated machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rigs import Rig, rig


@pytest.fixture
def machine(tmp_path: Path) -> Rig:
    return rig("cambricon-mlu590-8", tmp_path)
