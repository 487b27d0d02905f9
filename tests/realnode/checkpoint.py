"""The kubelet's device checkpoint, changed while it is stopped as if it had mixed up two answers.

It has a checksum over Go's own way to print its content (spew's ``%#v``), which is told here again.
"""

import json
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

PATH = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
_OFFSET, _PRIME = 0x811C9DC5, 0x01000193


def exchanged(text: bytes, one: str, other: str) -> bytes:
    """Return the checkpoint with the answers of two pods exchanged, by their UIDs. Ids stay where they are."""
    document = json.loads(text)
    assert document["Checksum"] == checksum(document["Data"]), "the checksum is made in another way"
    entries = {entry["PodUID"]: entry for entry in document["Data"]["PodDeviceEntries"]}
    answers = entries[one]["AllocResp"], entries[other]["AllocResp"]
    entries[other]["AllocResp"], entries[one]["AllocResp"] = answers
    return json.dumps({**document, "Checksum": checksum(document["Data"])}).encode()


def checksum(data: Mapping[str, Any]) -> int:
    """FNV-1a of 32 bits over the printed content."""
    value = _OFFSET
    for byte in _printed(data).encode():
        value = (value ^ byte) * _PRIME & 0xFFFFFFFF
    return value


def _printed(data: Mapping[str, Any]) -> str:
    entries = " ".join(map(_entry, data["PodDeviceEntries"]))
    registered = " ".join(f"{name}:{_list(ids)}" for name, ids in sorted(data["RegisteredDevices"].items()))
    return (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry)[{entries}] "
        f"RegisteredDevices:(map[string][]string)map[{registered}]}}"
    )


def _entry(entry: Mapping[str, Any]) -> str:
    nodes = " ".join(
        f"{node}:{_list(ids)}" for node, ids in sorted(entry["DeviceIDs"].items(), key=lambda i: int(i[0]))
    )
    answer = " ".join(map(str, b64decode(entry["AllocResp"])))
    return (
        f"{{PodUID:(string){entry['PodUID']} ContainerName:(string){entry['ContainerName']} "
        f"ResourceName:(string){entry['ResourceName']} DeviceIDs:(checkpoint.DevicesPerNUMA)map[{nodes}] "
        f"AllocResp:([]uint8)[{answer}]}}"
    )


def _list(texts: list[str]) -> str:
    return f"[{' '.join(texts)}]"
