"""How our answers about Moore Threads GPUs are compared with HAMi's, and where they differ on purpose."""

from __future__ import annotations

from hami_plugin.parity import Json, Parity, asks_fit, but_for, differences, granted, sound
from hami_plugin.policy.reasons import Reason
from vendors.mthreads.family import WORD, all_of

PLACE = (Reason.CUSTOM_RULE, Reason.TOO_FEW)
"""What HAMi and we count otherwise when a card is left out for the sake of the pod's others."""


def _whole_cards_in_a_pod(question: Json) -> bool:
    """The pod has cards already, and a whole one is among them or asked for."""
    if not asks_fit(question, WORD):
        return False
    cores = {device["id"]: device.get("totalcore", 0) for device in question["devices"]}
    had = [grant for piece in (question.get("allocated") or {}).get(WORD, ()) for grant in piece or ()]
    asked = any(all_of(total, question["request"]["coresreq"]) for total in cores.values())
    return bool(had) and (asked or any(_is_whole(grant, cores) for grant in had))


def _placed_apart(question: Json, ours: Json, theirs: Json) -> bool:
    """Each new card is a whole one, or the one that all shares of the pod are on; or no on both sides."""
    if not ours["ok"]:
        return not theirs["ok"] and but_for(ours["reason"], *PLACE) == but_for(theirs["reason"], *PLACE)
    cores = {device["id"]: device.get("totalcore", 0) for device in question["devices"]}
    had = [grant for piece in question["allocated"][WORD] for grant in piece or ()]
    shared = {grant["uuid"] for grant in had if not _is_whole(grant, cores)}
    new = granted(ours)
    return sound(question, ours) and all(_is_whole(grant, cores) or shared <= {grant["uuid"]} for grant in new)


def _is_whole(grant: Json, cores: Json) -> bool:
    return all_of(cores.get(grant["uuid"], 0), grant.get("usedcores", 0))


def parity() -> Parity:
    """Moore Threads' part in the comparison."""
    return Parity(differences=differences({"D-190": (_whole_cards_in_a_pod, _placed_apart)}))
