"""What a kubelet writes down of its device manager, in the format of 1.20 and later."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from hami_plugin.kubelet.messages import allocate_response
from hami_plugin.simulation.kubelet_ledger import Allotment, Ledger, Slot

CHECKPOINT = "kubelet_internal_checkpoint"


def write_checkpoint(path: Path, ledger: Ledger) -> None:
    """Replace the file. Its checksum is over Go's own view of the data, which nobody else computes; it is 0."""
    entries = [_entry(slot, held, ledger) for slot, held in ledger.allotments.items()]
    devices = {resource: sorted(ledger.healthy(resource)) for resource in ledger.resources}
    data = {"PodDeviceEntries": entries, "RegisteredDevices": devices}
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps({"Data": data, "Checksum": 0}, separators=(",", ":")))
    new.replace(path)


def _entry(slot: Slot, held: Allotment, ledger: Ledger) -> dict[str, Any]:
    uid, container, resource = slot
    answer = allocate_response(held.answer).SerializeToString()
    return {
        "PodUID": uid,
        "ContainerName": container,
        "ResourceName": resource,
        "DeviceIDs": _by_numa(held.ids, ledger, resource),
        "AllocResp": base64.b64encode(answer).decode(),
    }


def _by_numa(ids: tuple[str, ...], ledger: Ledger, resource: str) -> dict[str, list[str]]:
    """NUMA node → ids; those without a node are told as if they were at node 0."""
    nodes = {offer.id: offer.numa for offer in ledger.offers(resource)}
    found: dict[str, list[str]] = {}
    for one in ids:
        found.setdefault(str(nodes.get(one) or 0), []).append(one)
    return found
