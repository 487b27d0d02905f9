"""How our answers about Moore Threads GPUs are compared with HAMi's, and where they differ on purpose."""

from __future__ import annotations

from dataclasses import replace

from hami_plugin.scheduler.engine.devices import Reason
from hami_plugin.scheduler.engine.policy import on_the_pods_device
from tests.hami import fits
from tests.hami.parity import PLACED, Json, Parity, asks_fit, but_for, differences, granted, sound
from vendors.mthreads import DEVICE_TYPE, INDICES, MthreadsSettings, all_of, families, shares_on_one_card

PLACE = (Reason.CUSTOM_RULE, Reason.TOO_FEW)
"""What HAMi and we count otherwise when a card is left out for the sake of the pod's others."""


def _whole_cards_in_a_pod(question: Json) -> bool:
    """The pod has cards already, and a whole one is among them or asked for."""
    if not asks_fit(question, DEVICE_TYPE):
        return False
    cores = {device["id"]: device.get("totalcore", 0) for device in question["devices"]}
    had = [grant for piece in (question.get("allocated") or {}).get(DEVICE_TYPE, ()) for grant in piece or ()]
    asked = any(all_of(total, question["request"]["coresreq"]) for total in cores.values())
    return bool(had) and (asked or any(_is_whole(grant, cores) for grant in had))


def _placed_apart(question: Json, ours: Json, theirs: Json) -> bool:
    """Each new card is a whole one, or the one that all shares of the pod are on; or no on both sides."""
    if not _all_on_one(question, theirs):
        return False
    if not ours["ok"]:
        return not theirs["ok"] and but_for(ours["reason"], *PLACE) == but_for(theirs["reason"], *PLACE)
    cores = {device["id"]: device.get("totalcore", 0) for device in question["devices"]}
    had = [grant for piece in question["allocated"][DEVICE_TYPE] for grant in piece or ()]
    shared = {grant["uuid"] for grant in had if not _is_whole(grant, cores)}
    new = granted(ours)
    return sound(question, ours) and all(_is_whole(grant, cores) or shared <= {grant["uuid"]} for grant in new)


def _all_on_one(question: Json, theirs: Json) -> bool:
    """HAMi's rule: whatever the pod's containers have is one card."""
    (family,) = families(MthreadsSettings())
    assert family.rules.policy
    checks = [on_the_pods_device if check is shares_on_one_card else check for check in family.rules.policy.checks]
    return fits.answered_by(question, theirs, replace(family.rules.policy, checks=tuple(checks)), Parity())


def _is_whole(grant: Json, cores: Json) -> bool:
    return all_of(cores.get(grant["uuid"], 0), grant.get("usedcores", 0))


def _pieces(question: Json) -> list[list[int]]:
    """The indices of what each container has that has any, in a decision that is to be written down."""
    if question["fn"] != "patch_annotations" or question["vendor"] != DEVICE_TYPE:
        return []
    return [[grant["idx"] for grant in piece] for piece in question["given"] if piece]


def _several_containers(question: Json) -> bool:
    return len(_pieces(question)) > 1


def _named_all(question: Json, ours: Json, theirs: Json) -> bool:
    """Every card once, in the containers' order; by HAMi the last container's."""
    pieces = _pieces(question)
    every = dict.fromkeys(index for piece in pieces for index in piece)
    mine, his = (answer["annotations"][INDICES] for answer in (ours, theirs))
    return bool(mine == ",".join(map(str, every)) and his == ",".join(map(str, pieces[-1])))


def parity() -> Parity:
    """Moore Threads' part in the comparison."""
    rules = {
        "D-190": (_whole_cards_in_a_pod, _placed_apart, PLACED),
        "D-193": (_several_containers, _named_all, (f"annotations.{INDICES}",)),
    }
    return Parity(differences=differences(rules))
