"""MIG: mode, profiles and placements against the table of the model. Nothing is created, switched or destroyed."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from tools.gpu_check.cards import Card
from tools.gpu_check.library import Refused, ask, constant, refused

PROFILE_NUMBERS = 0x12
_FIELDS = {
    "id": "gi_profile_id",
    "memorySizeMB": "memory_mib",
    "sliceCount": "compute_slices",
    "instanceCount": "max_instances",
    "multiprocessorCount": "sm_count",
    "copyEngineCount": "copy_engines",
    "decoderCount": "decoders",
    "encoderCount": "encoders",
    "jpegCount": "jpeg",
    "ofaCount": "ofa",
}
"""The binding's name of each number of a profile, and the table's."""


def check_mig(card: Card) -> None:
    mode = ask("nvmlDeviceGetMigMode", card.handle)
    with card.about("MIG") as findings:
        is_mig = ask("nvmlDeviceIsMigDeviceHandle", card.handle)
        findings.equal("the card itself is no MIG device", 0, getattr(is_mig, "value", is_mig))
        card.supported("mode", "mig", mode)
        name = next((name for name in card.facts.get("mig", ()) if name), None)
        if name is None:
            _without_mig(card, mode)
            return
        table = card.bench.claims.mig[name]
        count = ask("nvmlDeviceGetMaxMigDeviceCount", card.handle)
        findings.equal("most MIG devices", table["max_mig_devices"], count)
        first = ask("nvmlDeviceGetMigDeviceHandleByIndex", card.handle, 0)
        if card.mig_on:
            findings.not_applicable("a MIG device's handle while MIG is off", "MIG is on")
        else:
            findings.equal("a MIG device's handle while MIG is off", refused(card.code("INVALID_ARGUMENT")), first)
        profiles = {row["nvml_enum"]: row for row in table["profiles"]}
        for number in range(PROFILE_NUMBERS):
            _profile(card, number, profiles.get(number))


def _without_mig(card: Card, mode: object) -> None:
    if not card.facts and not isinstance(mode, Refused):
        card.findings.not_applicable("profiles", "the simulation has no table for this model", _seen(card))
        return
    info = ask("nvmlDeviceGetGpuInstanceProfileInfo", card.handle, 0)
    card.findings.equal("profiles", refused(card.code("NOT_SUPPORTED")), info)


def _seen(card: Card) -> dict[str, Any]:
    """Every profile of a card that no table describes: the table that could be written."""
    infos = {n: ask("nvmlDeviceGetGpuInstanceProfileInfo", card.handle, n) for n in range(PROFILE_NUMBERS)}
    return {
        str(n): {"name": _name(info), **_numbers(info), "placements": _placements(card, int(info.id))}
        for n, info in infos.items()
        if not isinstance(info, Refused)
    }


def _profile(card: Card, number: int, row: Mapping[str, Any] | None) -> None:
    """By NVML's number of the profile, which is not its id."""
    findings = card.findings
    info = ask("nvmlDeviceGetGpuInstanceProfileInfo", card.handle, number)
    if row is None:
        expected = refused(card.code("NOT_SUPPORTED"))
        observed = info if isinstance(info, Refused) else {"name": _name(info), **_numbers(info)}
        findings.equal(f"profile number {number}, which the table lacks", expected, observed)
        return
    name = f"profile {row['name']}"
    if isinstance(info, Refused):
        findings.judge(name, "an answer", info, same=False)
        return
    findings.equal(f"{name}: name", f"MIG {row['name']}", _name(info))
    findings.equal(name, {field: row[key] for field, key in _FIELDS.items()}, _numbers(info))
    expected_places = [[start, row["placements"]["size"]] for start in row["placements"]["starts"]]
    findings.equal(f"{name}: placements", expected_places, _placements(card, int(info.id)))


def _numbers(info: Any) -> dict[str, int]:
    return {field: int(getattr(info, field)) for field in _FIELDS}


def _name(info: Any) -> str:
    return info.name.decode(errors="replace") if isinstance(info.name, bytes) else str(info.name)


def _placements(card: Card, profile_id: int) -> list[list[int]] | Refused:
    """Where instances of the profile may start, and their size, in memory slices. Asked twice, as NVML wants it."""
    ask_for, count = "nvmlDeviceGetGpuInstancePossiblePlacements", ctypes.c_uint(0)
    answer = ask(ask_for, card.handle, profile_id, None, ctypes.byref(count))
    if isinstance(answer, Refused):
        return answer
    places = (constant("c_nvmlGpuInstancePlacement_t") * count.value)()
    answer = ask(ask_for, card.handle, profile_id, places, ctypes.byref(count))
    if isinstance(answer, Refused):
        return answer
    return sorted([int(place.start), int(place.size)] for place in places[: count.value])
