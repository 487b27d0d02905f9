"""What a kubelet writes down of its device manager, in the format of 1.20 and later."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hami_plugin.simulation.kubelet_ledger import Allotment, Ledger, Slot

CHECKPOINT = "kubelet_internal_checkpoint"


def write_checkpoint(path: Path, ledger: Ledger) -> None:
    """Replace the file. Its checksum is over Go's own view of the data, which nobody else computes; it is 0."""
    numa = {resource: {offer.id: offer.numa or 0 for offer in ledger.offers(resource)} for resource in ledger.resources}
    entries = [_entry(slot, held, numa.get(slot[2], {})) for slot, held in ledger.allotments.items()]
    devices = {resource: sorted(ledger.healthy(resource)) for resource in ledger.resources}
    data = {"PodDeviceEntries": entries, "RegisteredDevices": devices}
    new = os.fspath(path.with_name(f".{path.name}.new"))
    with open(new, "wb", buffering=0) as file:  # noqa: PTH123  # after each Allocate, and a Path is slow
        file.write(json.dumps({"Data": data, "Checksum": 0}, separators=(",", ":")).encode())
    os.replace(new, path)  # noqa: PTH105


def _entry(slot: Slot, held: Allotment, numa: Mapping[str, int]) -> dict[str, Any]:
    """``numa``: id → node. The kubelet writes those without a node as if they were at node 0."""
    uid, container, resource = slot
    by_node: dict[str, list[str]] = {}
    for one in held.ids:
        by_node.setdefault(str(numa.get(one, 0)), []).append(one)
    return {
        "PodUID": uid,
        "ContainerName": container,
        "ResourceName": resource,
        "DeviceIDs": by_node,
        "AllocResp": held.response,
    }
