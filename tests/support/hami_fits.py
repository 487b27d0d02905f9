"""How HAMi chooses the devices of vendors other than NVIDIA, worked out anew from its documented rules.

As ``hami_fit``: nothing of the code under test is used, so that a fault in it is no fault here. Where HAMi decides by
the order of Go's maps, ``chance`` decides.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

Json = Mapping[str, Any]
Taken = tuple[Json, dict[str, Any]]
"""A device, and what is granted of it."""

NO_SLOT, EXCLUSIVE, TOO_FEW = (
    "CardTimeSlicingExhausted",
    "ExclusiveDeviceAllocateConflict",
    "AllocatedCardsInsufficientRequest",
)
UUID, TYPE, MEMORY, CORES = "CardUuidMismatch", "CardTypeMismatch", "CardInsufficientMemory", "CardInsufficientCore"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question, and the parts of it that many rules look at."""

    question: Json
    chance: random.Random

    @property
    def request(self) -> Json:
        found: Json = self.question["request"]
        return found

    @property
    def said(self) -> Json:
        return self.question["pod"].get("annotations") or {}

    @property
    def cards(self) -> Sequence[Json]:
        found: Sequence[Json] = self.question["devices"]
        return found

    @property
    def mutex(self) -> bool:
        return "mutex" in [word.strip() for word in self.said.get("hami.io/gpu-scheduler-policy", "").split(",")]

    def memory(self, card: Json) -> int:
        percent = self.request["mempercentagereq"]
        return int(self.request["memreq"] or (card["totalmem"] * percent // 100 if percent != 101 else 0))

    @property
    def cores(self) -> int:
        return min(self.request["coresreq"], 100)

    def barred(self, card: Json, use: str, avoid: str) -> bool:
        """By UUID."""
        wanted, unwanted = (_listed(self.said.get(key, "")) for key in (use, avoid))
        return (wanted is not None and card["id"] not in wanted) or card["id"] in (unwanted or ())

    def mistyped(self, card: Json, use: str, avoid: str) -> bool:
        """By model."""
        wanted, unwanted = (_listed(self.said.get(key, "")) for key in (use, avoid))
        kind = card["type"].lower()
        return (wanted is not None and not any(one and one.lower() in kind for one in wanted)) or any(
            one and one.lower() in kind for one in unwanted or ()
        )

    def given(self) -> list[str]:
        """The devices that the pod has already."""
        pieces = (self.question.get("allocated") or {}).get(self.question["vendor"]) or ()
        return [one["uuid"] for piece in pieces for one in piece or ()]


def _listed(text: str) -> list[str] | None:
    return [one.strip() for one in text.split(",")] if text.strip() else None


def answer(question: Json, chance: random.Random | None = None) -> dict[str, Any]:
    """Whether the devices fit the request, which ones, why not, and how they stand afterwards."""
    asked = Asked(question=question, chance=chance or random.Random(0))
    device_type = question["vendor"]
    chosen = _RULES.get(device_type, _ascend if device_type.startswith("Ascend") else _standard)(asked)
    if isinstance(chosen, str):
        return {"ok": False, "reason": chosen}
    return _granted(asked, chosen)


def _granted(asked: Asked, chosen: Sequence[Taken]) -> dict[str, Any]:
    told = {"ok": True, "reason": "", "devices": {asked.question["vendor"]: [grant for _, grant in chosen]}}
    if not asked.question.get("apply"):
        return told
    after = {card["id"]: _standing(card) for card in asked.cards}
    applied = [_book(asked, after, card, grant) for card, grant in chosen]
    return {
        **told,
        "devices": {asked.question["vendor"]: applied},
        "applied": applied,
        "usage_after": list(after.values()),
    }


def _standing(card: Json) -> dict[str, Any]:
    found = {key: card.get(key, 0) for key in ("index", "used", "usedmem", "usedcores")}
    return {"id": card["id"], **found, "custominfo": dict(card.get("custominfo") or {})}


def _book(asked: Asked, after: Mapping[str, dict[str, Any]], card: Json, grant: dict[str, Any]) -> dict[str, Any]:
    device_type, standing = asked.question["vendor"], after[card["id"]]
    standing["used"] += (grant["custominfo"]["drsSlice"] if device_type == "Enflame" else 1) or 1
    if device_type != "kunlun":
        standing["usedmem"] += grant["usedmem"]
        standing["usedcores"] += grant["usedcores"]
    notes = standing["custominfo"]
    if device_type == "AWSNeuron":
        for one in _seen(asked, card):
            after[one["id"]]["custominfo"].setdefault("awsusageinfo", _noted(asked, one))
        notes["awsusageinfo"] += grant["custominfo"]["awsusageinfo"]
    if device_type == "Metax-SGPU" and not _online(asked) and isinstance(notes.get("QosPolicy"), str):
        quality = "" if grant["usedcores"] == 100 else asked.said.get("metax-tech.com/sgpu-qos-policy", "")
        notes["QosPolicy"] = quality
    return grant


def _walk(
    asked: Asked, against: Callable[[Json], str], *, all_of_them: bool = False
) -> tuple[list[Json], Counter[str]]:
    """Those that pass, from the last one, and how often each reason stands against others."""
    found: list[Json] = []
    reasons: Counter[str] = Counter()
    for card in reversed(asked.cards):
        if reason := against(card):
            reasons[reason] += 1
            continue
        found.append(card)
        if len(found) == asked.request["nums"] and not all_of_them:
            break
    return found, reasons


def _refused(reasons: Mapping[str, int], total: int) -> str:
    return ", ".join(sorted(f"{count}/{total} {reason}" for reason, count in reasons.items()))


def _grant(asked: Asked, card: Json, memory: int, cores: int, **notes: Any) -> dict[str, Any]:
    """As most vendors' grants are."""
    device_type = asked.request["type"]
    told = {"idx": card["index"], "uuid": card["id"], "type": device_type, "usedmem": memory, "usedcores": cores}
    return {**told, "custominfo": notes}


def _short(asked: Asked, found: Sequence[Json], reasons: Counter[str]) -> str:
    if found:
        reasons[TOO_FEW] = len(found)
    return _refused(reasons, len(asked.cards))


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """What is a vendor's own in the walk that most share."""

    uuids: tuple[str, str] | None
    types: tuple[str, str] | None = None
    quota: tuple[str, str, int] | None = None
    by_model: bool = False
    own: Callable[[Asked, Json], str] = field(default=lambda _asked, _card: "")


def _with_the_others(asked: Asked, card: Json) -> str:
    return "" if set(asked.given()) <= {card["id"]} else "CardNotFoundCustomFilterRule"


def _kind(device_type: str) -> _Kind:
    return {
        "MLU": _Kind(
            uuids=("cambricon.com/use-gpuuuid", "cambricon.com/nouse-gpuuuid"),
            quota=("cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore", 256),
        ),
        "DCU": _Kind(
            uuids=("hygon.com/use-gpuuuid", "hygon.com/nouse-gpuuuid"),
            types=("hygon.com/use-dcutype", "hygon.com/nouse-dcutype"),
        ),
        "Mthreads": _Kind(
            uuids=("mthreads.ai/use-gpuuuid", "mthreads.ai/nouse-gpuuuid"), by_model=True, own=_with_the_others
        ),
        "Metax-GPU": _Kind(uuids=None, own=_with_the_others),
    }.get(device_type, _Kind(uuids=(f"hami.io/use-{device_type}-uuid", f"hami.io/no-use-{device_type}-uuid")))


def _standard(asked: Asked) -> Sequence[Taken] | str:
    kind, taken = _kind(asked.question["vendor"]), list[Json]()

    def against(card: Json) -> str:
        reason = _unfit(asked, card, kind) or _full(asked, card, kind, taken) or kind.own(asked, card)
        if not reason:
            taken.append(card)
        return reason

    found, reasons = _walk(asked, against)
    if len(found) < asked.request["nums"]:
        return _short(asked, found, reasons)
    return [(card, _grant(asked, card, asked.memory(card), asked.cores)) for card in found]


def _unfit(asked: Asked, card: Json, kind: _Kind) -> str:
    if not card.get("health"):
        return "CardNotHealth"
    wrong = asked.request["type"] != asked.question["vendor"] or (kind.types and asked.mistyped(card, *kind.types))
    if wrong or (kind.by_model and asked.request["type"] not in card["type"]):
        return TYPE
    return UUID if kind.uuids and asked.barred(card, *kind.uuids) else ""


def _full(asked: Asked, card: Json, kind: _Kind, taken: Sequence[Json], *, total: int | None = None) -> str:
    used, cores = card.get("used", 0), asked.cores
    total = card["totalcore"] if total is None else total
    if card["count"] <= used:
        return NO_SLOT
    if asked.mutex and used:
        return EXCLUSIVE
    if kind.quota and not _covered(asked, [*taken, card], *kind.quota):
        return "ResourceQuotaNotFit"
    if asked.memory(card) > card["totalmem"] - card.get("usedmem", 0):
        return MEMORY
    if cores > total - card.get("usedcores", 0):
        return CORES
    if total == cores == 100 and used:
        return EXCLUSIVE
    return "CardComputeUnitsExhausted" if total and card.get("usedcores", 0) == total and not cores else ""


def _covered(asked: Asked, cards: Sequence[Json], memory: str, cores: str, factor: int) -> bool:
    """What these cards and the pod's others come to."""
    limits, used = asked.question.get("quota_limits") or {}, asked.question.get("quota_used") or {}
    amounts = {memory: sum(map(asked.memory, cards)), cores: asked.cores * len(cards)}
    units = {memory: factor, cores: 1}
    return all(
        name not in limits or used.get(name, 0) + amount <= limits[name] * units[name]
        for name, amount in amounts.items()
    )


def _ascend(asked: Asked) -> Sequence[Taken] | str:
    device_type, count = asked.question["vendor"], asked.request["nums"]
    soft = asked.said.get("huawei.com/vnpu-mode") == "hami-core"
    node = (asked.question.get("node") or {}).get("annotations") or {}
    if soft and node.get("hami-vnpu-core") != "true":
        return _refused({"ModeNotFit": 1}, len(asked.cards))
    kind = _kind(device_type)
    modules = device_type == "Ascend910C" and count > 1
    networks = device_type.startswith("Ascend910") and all(
        "NetworkID" in (card.get("custominfo") or {}) for card in asked.cards
    )

    def against(card: Json) -> str:
        return _unfit(asked, card, kind) or _full(asked, card, kind, (), total=100 if soft else None)

    found, reasons = _walk(asked, against, all_of_them=modules or networks)
    able = found
    if modules:
        pairs = [pair for pair in _groups(able, lambda card: card["index"] // 2, asked.chance) if len(pair) == 2]
        found = [card for pair in pairs[: -(-count // 2)] for card in pair]
        if len(found) != count:
            return _refused({**reasons, TOO_FEW: len(found)}, count)
    elif len(able) < count:
        return _short(asked, able, reasons)
    elif networks and len(able) > count:
        numbered = [card for card in able if isinstance(card["custominfo"]["NetworkID"], (int, float))]
        groups = _groups(numbered, lambda card: card["custominfo"]["NetworkID"], asked.chance)
        found = able[:1] if count == 1 else [card for group in groups for card in group][:count]
    return [
        (card, _grant(asked, card, asked.memory(card), asked.cores, **(card.get("custominfo") or {}))) for card in found
    ]


def _groups(cards: Sequence[Json], key: Callable[[Json], Any], chance: random.Random) -> list[list[Json]]:
    """The largest first; of equal ones any."""
    groups: dict[Any, list[Json]] = {}
    for card in cards:
        groups.setdefault(key(card), []).append(card)
    mixed = list(groups.values())
    chance.shuffle(mixed)
    return sorted(mixed, key=len, reverse=True)


def _whole_gcu(asked: Asked) -> Sequence[Taken] | str:
    def against(card: Json) -> str:
        if not card.get("health"):
            return "CardNotHealth"
        if asked.request["type"] != "GCU":
            return TYPE
        return EXCLUSIVE if card.get("used") else ""

    found, reasons = _walk(asked, against)
    if len(found) < asked.request["nums"]:
        return _short(asked, found, reasons)
    return [(card, _grant(asked, card, asked.request["memreq"], asked.request["coresreq"])) for card in found]


def _biren(asked: Asked) -> Sequence[Taken] | str:
    def against(card: Json) -> str:
        return _simple(asked, card, "birentech.com/use-gpuuuid", "birentech.com/nouse-gpuuuid", set())

    found, reasons = _walk(asked, against)
    if len(found) < asked.request["nums"]:
        return _short(asked, found, reasons)
    return [(card, _grant(asked, card, 0, 0, **(card.get("custominfo") or {}))) for card in found]


def _simple(asked: Asked, card: Json, use: str, avoid: str, shut: set[str]) -> str:
    if not card.get("health"):
        return "CardNotHealth"
    if asked.request["type"] != asked.question["vendor"]:
        return TYPE
    if asked.barred(card, use, avoid):
        return UUID
    if card["count"] <= card.get("used", 0):
        return NO_SLOT
    return EXCLUSIVE if asked.mutex and (card.get("used") or _module(card) in shut) else ""


def _module(card: Json) -> str | None:
    name = (card.get("custominfo") or {}).get("AIC")
    return name if isinstance(name, str) else None


def _vastai(asked: Asked) -> Sequence[Taken] | str:
    count = asked.request["nums"]
    dies = (asked.cards[0].get("custominfo") or {}).get("DeviceStrategy") == "die"
    shut = {_module(card) for card in asked.cards if dies and card.get("used")} - {None}

    def against(card: Json) -> str:
        return _simple(asked, card, "vastaitech.com/use-gpuuuid", "vastaitech.com/nouse-gpuuuid", shut)  # type: ignore[arg-type]

    found, reasons = _walk(asked, against, all_of_them=dies)
    if len(found) < count:
        return _short(asked, found, reasons)
    if dies and len(found) > count:
        known = [card for card in found if _module(card) is not None]
        groups = _groups(known, _module, asked.chance)
        found = found[:1] if count == 1 else [card for group in groups for card in group][:count]
    return [(card, _grant(asked, card, 0, 0, **(card.get("custominfo") or {}))) for card in found]


def _amd(asked: Asked) -> Sequence[Taken] | str:
    def units(card: Json) -> int:
        percent = asked.request["coresreq"]
        if percent > 0:
            return max(1, min(card["totalcore"], card["totalcore"] * percent // 100))
        return int(card["totalcore"]) if memory(card) == card["totalmem"] else 0

    def memory(card: Json) -> int:
        return int(asked.request["memreq"] or card["totalmem"])

    def against(card: Json) -> str:
        if not card.get("health"):
            return "CardNotHealth"
        mistyped = asked.mistyped(card, "amd.com/use-gputype", "amd.com/nouse-gputype")
        if asked.request["type"].lower() != "amd" or mistyped:
            return TYPE
        if asked.barred(card, "amd.com/use-gpu-uuid", "amd.com/nouse-gpu-uuid"):
            return UUID
        if card["count"] <= card.get("used", 0):
            return NO_SLOT
        if asked.mutex and card.get("used"):
            return EXCLUSIVE
        if memory(card) > card["totalmem"] - card.get("usedmem", 0):
            return MEMORY
        none = asked.request["coresreq"] > 0 and card["totalcore"] <= 0
        return CORES if none or units(card) > card["totalcore"] - card.get("usedcores", 0) else ""

    found, reasons = _walk(asked, against)
    if len(found) < asked.request["nums"]:
        return _short(asked, found, reasons)
    return [(card, {**_grant(asked, card, memory(card), units(card)), "type": card["type"]}) for card in found]


ONLINE, OFFLINE, CLASS = "online", "offline", "metax-tech.com/sgpu-app-class"


def _online(asked: Asked) -> bool:
    return asked.said.get(CLASS) == ONLINE


def _classes(card: Json) -> Counter[str]:
    return Counter((pod.get("annotations") or {}).get(CLASS, "") for pod in card.get("pods") or ())


def _shared_metax(asked: Asked) -> Sequence[Taken] | str:
    count, own, online = asked.request["nums"], asked.said.get(CLASS), _online(asked)
    remembered = asked.question.get("metax_jq") or {}
    uuids = ("metax-tech.com/use-gpuuuid", "metax-tech.com/nouse-gpuuuid")

    def against(card: Json) -> str:
        classes, quality = _classes(card), (card.get("custominfo") or {}).get("QosPolicy", "")
        there, classed = bool(classes[ONLINE] or classes[OFFLINE]), own in (ONLINE, OFFLINE)
        quality = remembered.get(card["id"], quality)
        used = card.get("used", 0)
        if asked.request["type"] != "Metax-SGPU":
            return TYPE
        if not card.get("health"):
            return "CardUnhealthy"
        if used and (there != classed or (own == OFFLINE and classes[ONLINE])):
            return "CardAppClassMismatch"
        alike = quality in ("", asked.said.get("metax-tech.com/sgpu-qos-policy", ""))
        if not online and used and asked.request["coresreq"] != 100 and not alike:
            return "CardQosPolicyMismatch"
        if asked.barred(card, *uuids):
            return UUID
        if card["count"] <= used:
            return NO_SLOT
        if asked.mutex and used:
            return EXCLUSIVE
        if asked.memory(card) > card["totalmem"] - card.get("usedmem", 0):
            return MEMORY
        return "" if online else _full_sgpu(asked, card)

    found, reasons = _walk(asked, against, all_of_them=True)
    if len(found) < count:
        return _short(asked, found, reasons)
    if len(found) > count and online:
        found = sorted(found, key=_company)
    elif len(found) > count and own is None and asked.request["coresreq"] == 100:
        found = _by_zone(found, count, asked.chance)
    cores = 0 if online else asked.request["coresreq"]
    return [
        (card, _grant(asked, card, asked.memory(card), cores, **(card.get("custominfo") or {})))
        for card in found[:count]
    ]


def _full_sgpu(asked: Asked, card: Json) -> str:
    cores, total, used = asked.request["coresreq"], card["totalcore"], card.get("usedcores", 0)
    if cores > total - used:
        return CORES
    if total == cores == 100 and card.get("used"):
        return EXCLUSIVE
    return "CardComputeUnitsExhausted" if total and used == total and not cores else ""


def _company(card: Json) -> tuple[bool, int, int]:
    """Cards with offline pods alone come last."""
    classes = _classes(card)
    return bool(classes[OFFLINE] and not classes[ONLINE]), classes[ONLINE], classes[OFFLINE]


def _by_zone(found: Sequence[Json], count: int, chance: random.Random) -> list[Json]:
    zones: dict[int, list[Json]] = {}
    for card in found:
        zones.setdefault((card.get("custominfo") or {}).get("LinkZone", 0), []).append(card)
    linked = [cards for zone, cards in zones.items() if zone > 0]
    chance.shuffle(linked)
    linked.sort(key=len)
    rest = [card for zone, cards in zones.items() if zone <= 0 for card in cards]
    enough = next((cards for cards in linked if len(cards) >= count), None)
    return enough or [card for cards in [*linked, rest] for card in cards]


def _drs(asked: Asked) -> Sequence[Taken] | str:
    names = {name: key for card in asked.cards for name, key in (card["custominfo"].get("profiles") or {}).items()}
    profiles = sorted((*_size(name), name) for name in names)
    most = max(card["custominfo"].get("maxSlice", 0) for card in asked.cards) or max(
        (one[0] for one in profiles), default=0
    )
    largest = profiles[-1][1] if profiles else 0
    wanted, cores = asked.request["memreq"], asked.request["coresreq"]
    size = 0
    if asked.request["mempercentagereq"] == 0:
        fitting = [one for one in profiles if one[0] == wanted]
    else:
        size = -(-wanted // 1024) if wanted > 2 * largest else max(wanted, 0)
        fitting = [one for one in profiles if one[1] >= size and _share(one[0], most) >= cores]
    if not fitting:
        return _refused({"ModeNotFit": 1}, len(asked.cards))
    slices, gigabytes, name = fitting[0]
    memory, percent = gigabytes * 1024, _share(slices, most)

    def against(card: Json) -> str:
        reason = _simple(asked, card, "enflame.com/use-gpuuuid", "enflame.com/nouse-gpuuuid", set())
        if reason:
            return reason
        if memory > card["totalmem"] - card.get("usedmem", 0):
            return MEMORY
        return CORES if card["totalcore"] > 0 and percent > card["totalcore"] - card.get("usedcores", 0) else ""

    found, reasons = _walk(asked, against)
    if len(found) < asked.request["nums"]:
        return _short(asked, found, reasons)
    own = {"profileName": name, "profileID": names[name], "drsSlice": slices, "requestMem": 0, "requestCore": 0}
    if asked.request["mempercentagereq"] != 0:
        own.update(requestMem=size, requestCore=cores)
    return [
        (
            card,
            _grant(asked, card, memory, percent, **own, **{key: card["custominfo"][key] for key in ("index", "minor")}),
        )
        for card in found
    ]


def _size(name: str) -> tuple[int, int]:
    slices, memory = name.split(".")
    return int(slices.removesuffix("g")), int(memory.removesuffix("gb"))


def _share(slices: int, most: int) -> int:
    return -(-100 * slices // most)


def _neuron(asked: Asked) -> Sequence[Taken] | str:
    count, cores, total = asked.request["nums"], asked.request["coresreq"], len(asked.cards)
    if count > 1:
        start = next(_windows(asked, count), None)
        if start is None:
            return _refused({"NumaNotFit": 1}, total)
        by_index = {card["index"]: card for card in asked.cards}
        chosen = [by_index[place] for place in range(start, start + count) if place in by_index]
        return [
            (card, _grant(asked, card, card["totalmem"], card["totalcore"], awsusageinfo=_mask(asked, card)))
            for card in chosen
        ]

    def against(card: Json) -> str:
        reason = _simple(asked, card, "aws.amazon.com/use-neuron-uuid", "aws.amazon.com/nouse-neuron-uuid", set())
        free = card["totalcore"].bit_count() - card.get("usedcores", 0).bit_count()
        return reason or (CORES if free < cores else "")

    found, reasons = _walk(asked, against)
    if not found:
        return _refused(reasons, total)
    mask = _mask(asked, found[0])
    return [(found[0], _grant(asked, found[0], 0, mask, awsusageinfo=mask))]


def _windows(asked: Asked, count: int) -> Iterator[int]:
    kind = str((asked.cards[0].get("custominfo") or {}).get("AWSNodeType"))
    ring = "inf" in kind or "Inf" in kind
    if not ring and count not in (1, 4, 8, 16):
        return
    for start in range(0, len(asked.cards) - count + 1, 1 if ring else count):
        if all(card.get("health") and not card.get("used") for card in asked.cards[start : start + count]):
            yield start


def _mask(asked: Asked, card: Json) -> int:
    before = _noted(asked, card)
    return int(asked.request["coresreq"]) if before == 0 and asked.request["coresreq"] == 1 else 3 - before


def _noted(asked: Asked, card: Json) -> int:
    """What HAMi's copy of a device's mask says; made up on the way to a single device."""
    unseen = card.get("usedcores", 0) if asked.request["nums"] == 1 else 0
    return int((card.get("custominfo") or {}).get("awsusageinfo", unseen))


def _seen(asked: Asked, card: Json) -> Sequence[Json]:
    """The devices that are looked at on the way to this one."""
    walk = asked.cards[::-1]
    return walk[: walk.index(card) + 1] if asked.request["nums"] == 1 else [card]


LINKED = ("0145", "2367", "0246", "1357", "0347", "1256")


def _kunlun(asked: Asked) -> Sequence[Taken] | str:
    part, total = asked.question["vendor"] == "XPU", len(asked.cards)
    memory, cores = asked.request["memreq"], asked.request["coresreq"]
    able: list[int] = []
    others = conflicts = 0
    for place, card in enumerate(asked.cards):
        own = ("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"), ("baidu.com/use-gpuuuid", "baidu.com/nouse-gpuuuid")
        used = card.get("used", 0)
        barred = any(asked.barred(card, *pair) for pair in own)
        others += barred
        roomy = memory + card.get("usedmem", 0) <= card["totalmem"] and (not used or card["usedmem"] // used == memory)
        fits = card.get("health") and (roomy if part else not used)
        conflicts += bool(part and asked.mutex and fits and used)
        if fits and not barred and not (part and asked.mutex and used):
            able.append(place)
    found = _wired(asked.cards, able, asked.request["nums"])
    if found:
        by_index = {card["index"]: card for card in asked.cards}
        chosen = [by_index[index] for index in found if index in by_index]
        return [
            (one, _grant(asked, one, memory if part else one["totalmem"], cores if part else one["totalcore"]))
            for one in chosen
        ]
    if conflicts:
        return _refused({EXCLUSIVE: conflicts}, total)
    return _refused({UUID: others} if others else {"NumaNotFit": 1}, total)


def _wired(cards: Sequence[Json], able: Sequence[int], count: int) -> list[int]:
    """The indices of the cards to take; the wings are counted by place."""
    index = [card["index"] for card in cards]
    left, right = [one for one in able if one < 4], [one for one in able if one >= 4]
    if count == 8:
        return list(range(8)) if len(able) == 8 else []
    for level in {1: (1, 3, 2, 4), 2: (2, 3, 4), 4: (4,)}.get(count, ()):
        for wing in (left, right):
            if len(wing) == level:
                return [index[one] for one in wing[:count]]
    free = [index[one] for one in able]
    if count == 2:
        return next(([one, other] for one, other in permutations(free, 2) if abs(one - other) == 4), [])
    groups = [group for group in ([int(one) for one in text] for text in LINKED) if set(group) <= set(free)]
    if count != 4 or not groups:
        return []
    if len(free) in (4, 5):
        return groups[0]
    if len(free) != 6:
        return []
    return next((one for one in groups if _joined(*sorted(set(free) - set(one)))), groups[-1])


def _joined(one: int, other: int) -> bool:
    return other - one == 4 or one // 4 == other // 4


_RULES: Mapping[str, Callable[[Asked], Sequence[Taken] | str]] = {
    "GCU": _whole_gcu,
    "Biren": _biren,
    "Vastai": _vastai,
    "AMD": _amd,
    "Metax-SGPU": _shared_metax,
    "Enflame": _drs,
    "AWSNeuron": _neuron,
    "kunlun": _kunlun,
    "XPU": _kunlun,
}
