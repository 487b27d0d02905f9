from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import hami_plugin.simulation
from hami_plugin.model.device import Device, Link, Snapshot, symmetric
from hami_plugin.model.machine import Machine, machine

PROFILES = Path(hami_plugin.simulation.__file__).parent / "profiles"
LEVELS = {"PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}


def link(found: Machine, i: int, j: int) -> Link:
    level, lanes = found.levels[i][j], found.lanes[i][j]
    label = f"NV{lanes}" if lanes else level
    return Link(score=LEVELS[level] + 100 * lanes, label=label, level=level, lanes=lanes)


def snapshot_of(name: str) -> Snapshot:
    found = machine(yaml.safe_load((PROFILES / f"{name}.yaml").read_text()))
    devices = tuple(
        Device(uuid=d.uuid, family="gpu", index=d.index, model=d.model, memory=d.memory, pci=d.pci, numa=d.numa)
        for d in found.devices
    )
    directed = {
        (a.uuid, b.uuid): link(found, i, j) for i, a in enumerate(devices) for j, b in enumerate(devices) if i != j
    }
    return Snapshot(devices=devices, links=symmetric(directed), ready=True, reason="", facts={"driver": "570.1"})


@pytest.fixture(scope="session")
def snapshot() -> Callable[[str], Snapshot]:
    """A profile's machine as a driver would have seen it, well and measured."""
    return snapshot_of
