"""Questions like the recorded ones that nobody asked: their parts put together anew, at random."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from typing import Any

KEPT = ("id", "index", "type", "totalmem")
"""What makes a device the one that it is; everything else may be another's."""
KEPT_NOTES = ("AIC", "DeviceStrategy", "NetworkID", "LinkZone", "AWSNodeType", "index", "minor")


def varied(questions: Sequence[Any], chance: random.Random) -> Any:
    """The devices of one question in the state of others', and the request, the pod and the node of others."""
    base = chance.choice(questions)
    alike = [one for one in questions if one["vendor"] == base["vendor"]]
    other = copy.deepcopy(base)
    for part in ("request", "pod", "node", "quota_limits", "quota_used", "allocated"):
        found = copy.deepcopy(chance.choice(alike).get(part))
        other.pop(part, None)
        if found is not None:
            other[part] = found
    donors: dict[tuple[Any, Any], list[Any]] = {}
    for card in (card for one in alike for card in one["devices"]):
        donors.setdefault((card["type"], card["totalmem"]), []).append(card)
    other["devices"] = [_restored(card, donors, chance) for card in base["devices"]]
    if chance.random() < 0.3:
        chance.shuffle(other["devices"])
    ids = [card["id"] for card in other["devices"]]
    said = other["pod"].get("annotations") or {}
    for key in said:
        if "uuid" in key and said[key].strip():
            said[key] = _names(ids, chance)
    node = (other.get("node") or {}).get("annotations") or {}
    if node.get("hami.io/device-cordon"):
        node["hami.io/device-cordon"] = _names(ids, chance)
    for pieces in (other.get("allocated") or {}).values():
        for grant in (grant for piece in pieces or () for grant in piece or ()):
            grant["uuid"] = chance.choice([*ids, *ids, "other"])
    if "metax_jq" in other or (chance.random() < 0.3 and base["vendor"] == "Metax-SGPU"):
        qualities = ("", "best-effort", "fixed-share")
        other["metax_jq"] = {one: chance.choice(qualities) for one in chance.sample(ids, chance.randint(1, len(ids)))}
    return other


def _restored(card: Any, donors: Mapping[tuple[Any, Any], Sequence[Any]], chance: random.Random) -> Any:
    donor = copy.deepcopy(chance.choice(donors[card["type"], card["totalmem"]]))
    kept = {key: card[key] for key in KEPT if key in card}
    if donor.get("mode") != card.get("mode") or chance.random() < 0.3:
        return copy.deepcopy(card)
    notes = {key: value for key, value in (card.get("custominfo") or {}).items() if key in KEPT_NOTES}
    mixed = {key: value for key, value in (donor.get("custominfo") or {}).items() if key not in KEPT_NOTES}
    found = {**donor, **kept}
    found.pop("custominfo", None)
    return {**found, "custominfo": {**mixed, **notes}} if mixed or notes else found


def _names(ids: Sequence[str], chance: random.Random) -> str:
    some = chance.sample(ids, chance.randint(1, len(ids)))
    if chance.random() < 0.2:
        some.append("bogus-uuid")
    return chance.choice((",", ", ", " ,")).join(some)


def varied_container(questions: Sequence[Any], chance: random.Random) -> Any:
    """A question about a container, with amounts of other questions, and another one's configuration and pod."""
    base = copy.deepcopy(chance.choice(questions))
    alike = [one for one in questions if one["vendor"] == base["vendor"]]
    for part in ("pod", "config", "config_name", "cores_per_neuron"):
        base.pop(part, None)
    given = chance.choice(alike)
    for part in ("config", "config_name", "cores_per_neuron"):
        if part in given:
            base[part] = copy.deepcopy(given[part])
    pod = chance.choice(alike).get("pod")
    if pod is not None:
        base["pod"] = copy.deepcopy(pod)
    pool: dict[str, list[str]] = {}
    for one in questions:
        for place in ("limits", "requests"):
            for name, text in (one["container"].get(place) or {}).items():
                pool.setdefault(_kind(name, one["vendor"]), []).append(text)
    container = base["container"]
    for place, often in (("limits", 0.8), ("requests", 0.4)):
        names = {name for one in alike for at in ("limits", "requests") for name in one["container"].get(at) or {}}
        container[place] = {
            name: chance.choice(pool[_kind(name, base["vendor"])]) for name in sorted(names) if chance.random() < often
        }
    return base


def _kind(name: str, vendor: str) -> str:
    """A resource's name without the chip's."""
    return name.replace(vendor, "")
