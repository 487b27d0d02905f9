"""Every recorded answer of HAMi's codecs is ours too, or differs by a rule that is named here.

A difference is narrow: it applies to a question by its content, and once undone in both answers they are equal.
The list stands in docs/differences.md with the reasons.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hami_plugin.errors import WireError
from hami_plugin.protocol.nodes import (
    DeviceInfo,
    NodeLock,
    decode_json,
    decode_legacy,
    decode_scores,
    encode_json,
    encode_legacy,
    liveness,
    owned_by,
    parse_lock,
    render_lock,
)
from hami_plugin.protocol.pods import decode_devices, encode_devices
from tests.hami import values
from tests.hami.answers import allocations, infos
from tests.support.hami import answers, recorded
from tests.support.scale import whole
from vendors.nvidia.rules import MigAllocation, decode_mig, encode_mig

VECTORS = Path(__file__).parents[1] / "vectors"
FILES = ("annotations_codec", "node_lock", "health_handshake", "nvidia_mig")
REFUSED = "refused"
NOW = datetime(2026, 8, 21, 10, 11, 12, tzinfo=UTC)
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    id: str
    function: str
    question: Json
    answer: Json


def cases() -> list[Case]:
    with lzma.open(VECTORS / "codec.jsonl.xz", "rt") as file:
        rows = [json.loads(line) for line in file]
    found = [Case(id=row["id"], function=row["in"]["fn"], question=row["in"], answer=row["out"]) for row in rows]
    for name in FILES:
        for vector in recorded(name):
            question = {**vector["input"], **vector.get("context", {})}
            found.append(
                Case(id=vector["id"], function=vector["fn"], question=question, answer=vector.get("expected", {}))
            )
    return found


# Our answers, and HAMi's, in one form: text, or plain data in which absent and zero are the same.


def data(value: DeviceInfo | MigAllocation) -> dict[str, Any]:
    """Our value as the JSON that is written of it."""
    match value:
        case DeviceInfo():
            return json.loads(encode_json([value]))[0]
        case MigAllocation():
            return json.loads(encode_mig([value]))[0]


def without_zeros(value: Any) -> Any:
    """Without zero values, at every depth: HAMi's recorder leaves them out, and its writer most of them."""
    match value:
        case dict():
            return {key: without_zeros(item) for key, item in value.items() if item not in (0, "", False, None, [], {})}
        case list():
            return [without_zeros(item) for item in value]
        case _:
            return value


def node_devices(text: str, decode: Callable[[str], tuple[DeviceInfo, ...]]) -> Any:
    return [without_zeros(data(device)) for device in decode(text)]


def pod_devices(text: str) -> list[list[Json]]:
    return [
        [
            without_zeros({"uuid": g.uuid, "type": g.device_type, "usedmem": g.memory, "usedcores": g.cores})
            for g in devices
        ]
        for devices in decode_devices(text)
    ]


def mig(text: str) -> Any:
    return [without_zeros(data(item)) for item in decode_mig(text)]


def lock(text: str) -> Any:
    parsed = parse_lock(text)
    return {"time": parsed.time, "namespace": parsed.namespace, "name": parsed.pod}


def released(question: Json) -> Any:
    """Whether the node's lock would go away for this pod; None where no lock names an owner."""
    node = question["cluster"]["nodes"].get(question["node_name"], {})
    text = node.get("annotations", {}).get("hami.io/mutex.lock", "").replace("{now}", NOW.isoformat())
    if not text or not parse_lock(text).pod:
        return None
    return owned_by(text, question["pod"]["namespace"], question["pod"]["name"])


def conclusion(question: Json) -> Any:
    key = question["handshake_annotations"][question["device_type"]]
    count = int(question["node"].get("allocatable", {}).get(question["resourceCountName"], "0"))
    belief = liveness(question["node"]["annotations"][key], now=NOW.replace(tzinfo=None), allocatable=count)
    return {"healthy": belief.healthy, "need_update": belief.asks}


def by_key(question: Json) -> Any:
    keys = {device_type: key for device_type, key in question["checklist"].items() if key in (question["annos"] or {})}
    return {device_type: pod_devices(question["annos"][key]) for device_type, key in keys.items()}


OURS: dict[str, Callable[[Json], Any]] = {
    "encode_node": lambda q: encode_legacy(infos(q)),
    "device.EncodeNodeDevices": lambda q: encode_legacy(infos(q)),
    "marshal_node": lambda q: encode_json(infos(q)),
    "device.MarshalNodeDevices": lambda q: encode_json(infos(q)),
    "decode_node": lambda q: node_devices(q["str"], decode_legacy),
    "device.DecodeNodeDevices": lambda q: node_devices(q["str"], decode_legacy),
    "unmarshal_node": lambda q: node_devices(q["str"], decode_json),
    "device.UnMarshalNodeDevices": lambda q: node_devices(q["str"], decode_json),
    "device.DecodePairScores": lambda q: decode_scores(q["pairScores"]),
    "encode_pod": lambda q: encode_devices(values.pieces(q["pod_devices"])),
    "device.EncodePodSingleDevice": lambda q: encode_devices(values.pieces(q["pod_devices"])),
    "device.EncodeContainerDevices": lambda q: encode_devices(values.pieces([q["cd"]])).removesuffix(";"),
    "device.EncodePodDevices": lambda q: {
        q["checklist"][device_type]: encode_devices(values.pieces(devices))
        for device_type, devices in q["pod_devices"].items()
    },
    "decode_pod": lambda q: pod_devices(q["str"]),
    "device.DecodeContainerDevices": lambda q: pod_devices(q["str"])[0],
    "device.DecodePodDevices": by_key,
    "encode_mig": lambda q: encode_mig([a for a in allocations(q) if a.complete]),
    "nvidia.EncodeMigAllocations": lambda q: encode_mig([a for a in allocations(q) if a.complete]),
    "decode_mig": lambda q: mig(q["str"]),
    "nvidia.DecodeMigAllocations": lambda q: mig(q["raw"]),
    "nodelock.ParseNodeLock": lambda q: lock(q["value"]),
    "nodelock.GenerateNodeLockKeyByPod": lambda q: render_lock(
        NodeLock(time=NOW, namespace=q["pod"].get("namespace", ""), pod=q["pod"].get("name", ""))
    ),
    "nodelock.ReleaseNodeLock": released,
    "device.CheckHealth": conclusion,
}

EXCUSED = {
    "device.ExtractMigTemplatesFromUUID": "static MIG names of HAMi 2.7 to 2.9",
    "device.PlatternMIG": "static MIG geometries of HAMi 2.7 to 2.9",
    "device.GetDevicesUUIDList": "lists a pod's UUIDs, which is no format",
    "device.EncodeContainerDeviceType": "picks one family's devices out of a mixed list; here a piece has one family's",
}

_NAMES = {
    "custom_info": "custominfo",
    "device_vendor": "devicevendor",
    "gpuuuid": "gpuUUID",
    "mig_uuid": "migUUID",
    "gpu_instance_id": "gpuInstanceID",
    "compute_instance_id": "computeInstanceID",
}


def theirs(case: Case) -> Any:
    """HAMi's answer in the form of ours."""
    answer = case.answer
    if answer.get("err") or (answer.get("error") and case.function != "nodelock.ReleaseNodeLock"):
        return REFUSED
    match case.function.split(".")[-1]:
        case "ReleaseNodeLock":
            return theirs_released(case)
        case "GenerateNodeLockKeyByPod":
            return answer["result"].replace("{now}", render_lock(NodeLock(time=NOW)))
        case "ParseNodeLock":
            names = {key: answer[key] for key in ("namespace", "name")}
            return {"time": datetime.fromisoformat(answer["time"]), **names}
        case "DecodePairScores":
            return {item["id"]: item["scores"] for item in answer["scores"]}
        case "CheckHealth":
            return dict(answer)
        case "DecodePodDevices":
            return {
                device_type: [[grant_data(d) for d in devices] for devices in pod]
                for device_type, pod in answer["devices"].items()
            }
        case "decode_pod":
            return [[grant_data(d) for d in devices] for devices in answer["pod_devices"]]
        case "DecodeContainerDevices":
            return [grant_data(d) for d in answer["devices"]]
    for key in ("str", "result", "encoded"):
        if key in answer:
            return answer[key]
    [found] = [answer[key] for key in ("infos", "devices", "allocations") if key in answer]
    return [without_zeros({_NAMES.get(key, key): value for key, value in item.items()}) for item in found or ()]


def grant_data(device: Json) -> Any:
    return without_zeros({key: device.get(key) for key in ("uuid", "type", "usedmem", "usedcores")})


def theirs_released(case: Case) -> Any:
    node = case.question["node_name"]
    before = case.question["cluster"]["nodes"].get(node, {}).get("annotations", {}).get("hami.io/mutex.lock", "")
    after = case.answer["cluster_after"]["nodes"].get(node, {}).get("annotations", {}).get("hami.io/mutex.lock", "")
    return before != after if "," in before else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where we answer otherwise. ``undo`` takes the difference out of either answer."""

    id: str
    applies: Callable[[Case], bool]
    undo: Callable[[Any], Any]


def _amounts(case: Case) -> list[str]:
    texts = [case.question["str"]] if "str" in case.question else list((case.question.get("annos") or {}).values())
    parts = [part.split(",") for text in texts for piece in text.split(";") for part in piece.split(":")]
    devices = [
        d for part in (case.question.get("cd") or ()) for d in (part.get("usedmem", 0), part.get("usedcores", 0))
    ]
    return [amount for part in parts if len(part) >= 4 for amount in part[2:4]] + [str(number) for number in devices]


def _by_index(text: str) -> Any:
    if not text.startswith("["):
        return sorted(text.split(":"))
    return json.dumps(sorted(json.loads(text), key=lambda item: item.get("index", 0)))


def _without_extras(text: str) -> Any:
    items = json.loads(text)
    return json.dumps([{k: v for k, v in i.items() if k not in ("custominfo", "devicevendor")} for i in items])


DIFFERENCES = (
    Difference(
        id="extras are written",
        applies=lambda case: (
            case.function.lower().endswith(("marshal_node", ".marshalnodedevices"))
            and any(info.custom or info.vendor for info in infos(case.question))
        ),
        undo=_without_extras,
    ),
    Difference(
        id="devices stand in the order of their index",
        applies=lambda case: (numbers := [info.index for info in infos(case.question)]) != sorted(numbers),
        undo=_by_index,
    ),
    Difference(
        id="negative amounts are refused",
        applies=lambda case: (
            "odeContainerDevices" in case.function and any(amount.startswith("-") for amount in _amounts(case))
        ),
        undo=lambda _: REFUSED,
    ),
    Difference(
        id="a lock without owner has the legacy form",
        applies=lambda case: case.function == "nodelock.GenerateNodeLockKeyByPod" and not case.question["pod"],
        undo=lambda text: text.removesuffix(",,"),
    ),
    Difference(
        id="recorded without an API server, so that the question could not be written",
        applies=lambda case: (
            case.function == "device.CheckHealth"
            and "Requesting" not in case.question["node"]["annotations"]["hami.io/node-handshake-ascend"]
        ),
        undo=lambda belief: {"healthy": belief["healthy"]},
    ),
)


def ours(case: Case) -> Any:
    try:
        return OURS[case.function](case.question)
    except WireError:
        return REFUSED


ASKED = [case for case in cases() if case.function in OURS]


@answers(FILES, *(name for name in OURS if "." in name))
@whole((f"{case.function}-{case.id}", case) for case in ASKED)
def test_our_codecs_answer_as_hami_does(case: Case):
    mine, his = ours(case), theirs(case)
    applying = [difference for difference in DIFFERENCES if difference.applies(case)]

    for difference in applying:
        mine, his = difference.undo(mine), difference.undo(his)

    assert mine == his


def test_every_difference_is_needed():
    differing = {case.id: case for case in ASKED if ours(case) != theirs(case)}

    needed = {d.id for d in DIFFERENCES for case in differing.values() if d.applies(case)}

    assert needed == {difference.id for difference in DIFFERENCES}
