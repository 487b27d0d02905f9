"""A machine larger than any that ships: the profile ``dgx-h100``, with as many GPUs as one driver is asked to show."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import yaml

BASE = "dgx-h100"
FIRST_BUS = 0x20


def write_profile(path: Path, gpus: int) -> Path:
    """A profile file of ``gpus`` H100s behind NVSwitches, half of them at each socket. JSON is YAML."""
    text = (files("hami_plugin.simulation") / "profiles" / f"{BASE}.yaml").read_text(encoding="utf-8")
    profile = yaml.safe_load(text)
    model, lanes = profile["devices"][0], profile["fabric"]["links_per_device"]
    socket = [index * 2 // gpus for index in range(gpus)]
    profile |= {
        "id": f"bench-h100-{gpus}",
        "title": f"{gpus}x H100, larger than life",
        "devices": [
            model
            | {
                "index": index,
                "minor": index,
                "uuid": f"GPU-{index:08x}-5150-4ccd-8a11-f2a0380b{index:04x}",
                "pci_bus_id": f"0000:{FIRST_BUS + index:02x}:00.0",
                "numa_node": socket[index],
            }
            for index in range(gpus)
        ],
        "p2p_level": [
            ["X" if a == b else "NODE" if socket[a] == socket[b] else "SYS" for b in range(gpus)] for a in range(gpus)
        ],
    }
    profile["fabric"]["links"] = [[0 if a == b else lanes for b in range(gpus)] for a in range(gpus)]
    path.write_text(json.dumps(profile), encoding="utf-8")
    return path
