"""A difference from HAMi is no excuse: an answer that is wrong in another way is found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.hami.vendors.metax import parity

RULES = {one.id: one for one in parity().differences}
Json = Mapping[str, Any]


def card(number: int, **more: Any) -> Json:
    base = {"id": f"G{number}", "index": number, "count": 4, "totalmem": 64, "totalcore": 100, "health": True}
    return {**base, **more}


def question(device_type: str, devices: list[Json], **more: Any) -> Json:
    request = {"nums": 1, "type": device_type, "coresreq": 100, "memreq": 0, "mempercentagereq": 0}
    return {"fn": "fit", "vendor": device_type, "devices": devices, "request": request, "pod": {}, **more}


def answer(*uuids: str, reason: str = "") -> Json:
    return {"ok": bool(uuids), "reason": reason, "devices": {"": [{"uuid": uuid} for uuid in uuids]}}


def test_the_second_whole_card_must_be_a_healthy_one() -> None:
    rule = RULES["D-120"]
    devices = [card(0, health=False), card(1)]
    asked = question("Metax-GPU", devices, allocated={"Metax-GPU": [[{"uuid": "G2"}]]})
    theirs = {"ok": False, "reason": "1/2 CardNotFoundCustomFilterRule, 1/2 CardNotHealth"}

    assert rule.applies(asked)
    assert not rule.applies(question("Metax-GPU", devices))
    assert rule.right(asked, answer("G1"), theirs)
    assert not rule.right(asked, answer("G0"), theirs)
    assert not rule.right(asked, answer(reason="2/2 CardNotHealth"), theirs)
    assert not rule.right(asked, answer(reason="1/2 CardNotHealth, 1/2 AllocatedCardsInsufficientRequest"), theirs)


def test_an_offline_pods_second_container_is_still_kept_from_online_pods() -> None:
    rule = RULES["D-123"]
    name = "metax-tech.com/sgpu-app-class"
    devices = [card(0, used=1), card(1, used=1, pods=[{"annotations": {name: "online"}}])]
    devices.append(card(2, used=1, pods=[{}]))
    mine = {"pod": {"annotations": {name: "offline"}}, "allocated": {"Metax-SGPU": [[{"uuid": "G0"}]]}}
    asked = question("Metax-SGPU", devices, **mine)
    theirs = answer(reason="3/3 CardAppClassMismatch")

    assert rule.applies(asked)
    assert rule.right(asked, answer("G0"), theirs)
    assert not rule.right(asked, answer("G1"), theirs)
    assert not rule.right(asked, answer("G2"), theirs)
    assert not rule.right(asked, answer("G0"), answer(reason="3/3 CardUuidMismatch"))
    assert not rule.right(asked, answer("G0"), answer("G1"))


def test_another_zone_must_be_as_well_linked() -> None:
    rule = RULES["D-124"]
    devices = [card(number, custominfo={"LinkZone": zone}) for number, zone in enumerate([1, 1, 2, 2, 0, 0])]
    asked = question("Metax-SGPU", devices)
    asked = {**asked, "request": {**asked["request"], "nums": 2}}

    assert rule.applies(asked)
    assert rule.right(asked, answer("G0", "G1"), answer("G3", "G2"))
    assert not rule.right(asked, answer("G1", "G2"), answer("G3", "G2"))
    assert not rule.right(asked, answer("G4", "G5"), answer("G3", "G2"))
