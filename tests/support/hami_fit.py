"""How HAMi chooses NVIDIA cards, worked out anew from its documented rules: what it answers to questions nobody asked.

Nothing of the code under test is used, so that a fault in it is no fault here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

Json = Mapping[str, Any]

TRUE = ("1", "t", "T", "TRUE", "true", "True")
MEMORY, CORES = "nvidia.com/gpumem", "nvidia.com/gpucores"


def answer(question: Json) -> dict[str, Any]:
    """Whether the cards fit the request, which ones, and why not."""
    return _Fit(question).answer()


class _Fit:
    def __init__(self, question: Json) -> None:
        self.question, self.request = question, question["request"]
        self.said = question["pod"].get("annotations") or {}
        self.words = [word.strip() for word in self.said.get("hami.io/gpu-scheduler-policy", "").split(",")]
        self.cores = min(self.request["coresreq"], 100)
        self.taken: list[tuple[Json, int]] = []
        self.against: Counter[str] = Counter()

    def answer(self) -> dict[str, Any]:
        wanted, linked = self.request["nums"], "topology-aware" in self.words
        numa: object = None
        for card in reversed(self.question["devices"]):
            if reason := self._unfit(card):
                self.against[reason] += 1
                continue
            if self.said.get("nvidia.com/numa-bind") in TRUE and numa != card.get("numa", 0):
                numa = card.get("numa", 0)
                if self.taken and not linked:
                    self.against["NumaNotFit"] += len(self.taken)
                self.taken.clear()
            while True:
                if reason := self._full(card):
                    self.against[reason] += 1
                    break
                self.taken.append((card, self._memory(card)))
                if len(self.taken) == wanted and not linked:
                    return self._granted(self.taken)
                if card.get("mode") != "mig":
                    break
        if len(self.taken) >= wanted:
            return self._granted(self._linked(wanted))
        if self.taken:
            self.against["AllocatedCardsInsufficientRequest"] = len(self.taken)
        total = len(self.question["devices"])
        return {"ok": False, "reason": ", ".join(sorted(f"{n}/{total} {why}" for why, n in self.against.items()))}

    def _granted(self, chosen: Sequence[tuple[Json, int]]) -> dict[str, Any]:
        devices = [
            {"idx": card["index"], "uuid": card["id"], "type": "NVIDIA", "usedmem": memory, "usedcores": self.cores}
            for card, memory in chosen
        ]
        return {"ok": True, "reason": "", "devices": {"NVIDIA": devices}}

    def _unfit(self, card: Json) -> str:
        cordoned = (self.question.get("node") or {}).get("annotations") or {}
        mode, kind = self.said.get("nvidia.com/vgpu-mode"), card["type"].lower()
        use, avoid = (_listed(self.said.get(f"nvidia.com/{device_type}use-gputype", "")) for device_type in ("", "no"))
        if not card.get("health"):
            return "CardNotHealth"
        if card["id"] in [one.strip() for one in cordoned.get("hami.io/device-cordon", "").split(",")]:
            return "CardCordoned"
        wrong = self.request["type"] != "NVIDIA" or (
            use is not None and not any(one and one.lower() in kind for one in use)
        )
        if wrong or any(one and one.lower() in kind for one in avoid or ()):
            return "CardTypeMismatch"
        return "CardTypeMismatch" if mode is not None and card.get("mode", "") not in mode else ""

    def _full(self, card: Json) -> str:
        use, avoid = (_listed(self.said.get(f"nvidia.com/{device_type}use-gpuuuid", "")) for device_type in ("", "no"))
        memory, used, free = self._memory(card), card.get("used", 0), card["totalmem"] - card.get("usedmem", 0)
        total, taken = card["totalcore"], card.get("usedcores", 0)
        checks: dict[str, bool] = {
            "CardUuidMismatch": (use is not None and card["id"] not in use) or card["id"] in (avoid or ()),
            "CardTimeSlicingExhausted": card["count"] <= used,
            "ExclusiveDeviceAllocateConflict": "mutex" in self.words and used > 0,
            "ResourceQuotaNotFit": not self._covered(card, memory),
            "CardInsufficientMemory": memory > free,
            "CardInsufficientCore": self.cores > total - taken,
        }
        if reason := next((reason for reason, true in checks.items() if true), ""):
            return reason
        if total == self.cores == 100 and used > 0:
            return "ExclusiveDeviceAllocateConflict"
        if total and taken == total and not self.cores:
            return "CardComputeUnitsExhausted"
        return "" if card.get("mode") != "mig" or self._has_place(card) else "CardMigTopologyInfeasible"

    def _memory(self, card: Json) -> int:
        percent = self.request["mempercentagereq"]
        return int(self.request["memreq"] or (card["totalmem"] * percent // 100 if percent != 101 else 0))

    def _covered(self, card: Json, memory: int) -> bool:
        limits, used = self.question.get("quota_limits") or {}, self.question.get("quota_used") or {}
        pieces = [
            [(one["uuid"], one.get("usedmem", 0), one.get("usedcores", 0)) for one in piece or ()]
            for piece in (self.question.get("allocated") or {}).get("NVIDIA") or ()
        ]
        pieces.append([*((one["id"], size, self.cores) for one, size in self.taken), (card["id"], memory, self.cores)])
        inits = self.question["pod"].get("init_count", 0)
        most = [0, 0]
        for uuid in {one[0] for piece in pieces for one in piece}:
            for dimension in (0, 1):
                own = [[one[1 + dimension] for one in piece if one[0] == uuid] for piece in pieces]
                peak = max((size for piece in own[:inits] for size in piece), default=0)
                most[dimension] += max(peak, sum(size for piece in own[inits:] for size in piece))
        return all(
            name not in limits or used.get(name, 0) + amount <= limits[name]
            for name, amount in zip((MEMORY, CORES), most, strict=True)
        )

    def _has_place(self, card: Json) -> bool:
        occupied = [_span(one["placement"]) for one in card.get("mig_in_use") or ()]
        for memory in [size for one, size in self.taken if one is card] + [self._memory(card)]:
            place = next(_places(card, memory, occupied), None)
            if place is None:
                return False
            occupied.append(place)
        return True

    def _linked(self, wanted: int) -> Sequence[tuple[Json, int]]:
        scores = {one["uuid"]: one["score"] for one in self.question.get("pair_scores") or ()}

        def link(one: int, other: int) -> int:
            return int(scores.get(self.taken[one][0]["id"], {}).get(self.taken[other][0]["id"], 0))

        places = range(len(self.taken))
        if len(self.taken) == wanted:
            return self.taken
        if wanted == 1:
            return [self.taken[min(places, key=lambda one: sum(link(one, other) for other in places if other != one))]]
        best = max(combinations(places, wanted), key=lambda some: sum(link(*pair) for pair in combinations(some, 2)))
        return [self.taken[one] for one in best]


def _listed(text: str) -> list[str] | None:
    return [one.strip() for one in text.split(",")] if text.strip() else None


def _span(place: Json) -> range:
    return range(place["start"], place["start"] + place["size"])


def _places(card: Json, memory: int, occupied: Sequence[range]) -> Iterator[range]:
    for profile in sorted(card.get("mig_profiles") or (), key=lambda one: (one["memoryMB"], one["sliceCount"])):
        high = profile["name"].startswith(("1g.", "3g."))
        spans = sorted(map(_span, profile["placements"]), key=lambda span: span.start, reverse=high)
        for span in spans if profile["memoryMB"] >= memory else ():
            if not any(set(span) & set(other) for other in occupied):
                yield span
