"""Our annotation codecs, asked by recorded questions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from hami_plugin.conformance import values
from hami_plugin.errors import WireError
from hami_plugin.parity import Json
from hami_plugin.protocol.decisions import decode_devices, encode_devices
from hami_plugin.protocol.mig import MigAllocation, decode_mig, encode_mig
from hami_plugin.protocol.register import DeviceInfo, decode_json, decode_legacy, encode_json, encode_legacy


def _or_error(answer: Callable[[Json], Json]) -> Callable[[Json], Json]:
    def guarded(question: Json) -> Json:
        try:
            return answer(question)
        except WireError as error:
            return {"err": str(error)}

    return guarded


def info(item: Json) -> DeviceInfo:
    """A recorded device of a node's annotation."""
    return DeviceInfo(
        id=item["id"],
        index=item.get("index", 0),
        count=item.get("count", 0),
        devmem=item.get("devmem", 0),
        devcore=item.get("devcore", 0),
        type=item.get("type", ""),
        numa=item.get("numa", 0),
        mode=item.get("mode", ""),
        health=item.get("health", False),
        mig_profiles=values.profiles(item.get("migProfiles")),
        vendor=item.get("device_vendor", item.get("devicevendor", "")),
        custom=_custom(item),
    )


def _custom(item: Json) -> Json | None:
    notes: Json | None = item.get("custominfo", item.get("custom_info"))
    return notes


def infos(question: Json) -> list[DeviceInfo]:
    """The recorded devices that a question is about, as either recorder names them."""
    return [info(item) for item in question.get("infos") or question.get("dlist") or ()]


def _read(found: Sequence[DeviceInfo]) -> Json:
    return {"infos": [member for one in found for member in json.loads(encode_json([one]))]}


def allocations(question: Json) -> list[MigAllocation]:
    """The instances of GPUs that a pod was decided, in the order of its containers."""
    return [
        MigAllocation(
            container=position,
            device=number,
            uuid=device["uuid"],
            profile=notes.get("migProfile", ""),
            start=(notes.get("migPlacement") or {}).get("start", 0),
            size=(notes.get("migPlacement") or {}).get("size", 0),
        )
        for position, devices in enumerate(question["pod_devices"])
        for number, device in enumerate(devices)
        for notes in [_custom(device) or {}]
    ]


def _encode_mig(question: Json) -> Json:
    found = [allocation for allocation in allocations(question) if allocation.complete]
    return {"ok": bool(found), "str": encode_mig(found)}


def _decode_mig(question: Json) -> Json:
    found = decode_mig(question["str"])
    return {"allocations": json.loads(encode_mig(found)) if found else []}


CODECS: Mapping[str, Callable[[Json], Json]] = {
    "encode_node": _or_error(lambda question: {"str": encode_legacy(infos(question))}),
    "marshal_node": _or_error(lambda question: {"str": encode_json(infos(question))}),
    "decode_node": _or_error(lambda question: _read(decode_legacy(question["str"]))),
    "unmarshal_node": _or_error(lambda question: _read(decode_json(question["str"]))),
    "encode_pod": _or_error(lambda question: {"str": encode_devices(values.pieces(question["pod_devices"]))}),
    "decode_pod": _or_error(
        lambda question: {
            "pod_devices": [[values.granted(g) for g in piece] for piece in decode_devices(question["str"])]
        }
    ),
    "encode_mig": _or_error(_encode_mig),
    "decode_mig": _or_error(_decode_mig),
}
