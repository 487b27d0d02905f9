"""The page of vendors and machines is made from the golden files that the vendors' tests are held against."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from hami_plugin.sdk import load_vendor, vendor_names
from hami_plugin.simulation.hardware import vendor_of
from tests.support.machines import profiles
from tests.support.pages import ROOT, generated
from tests.support.rigs import known

GOLDEN = ROOT / "tests/vendors/golden/machines"
PAGE = "docs/reference/machines.md"
Told = Mapping[str, Any]


def told(profile: str) -> dict[str, Told]:
    """What the golden file of a machine has, by the way in which it is served."""
    found: dict[str, Told] = yaml.safe_load((GOLDEN / f"{Path(profile).stem}.yaml").read_text(encoding="utf-8"))
    return found


def test_the_table_of_ways_is_what_the_golden_files_say() -> None:
    by_way: dict[tuple[str, str], list[Told]] = {}
    for profile in profiles():
        for way, facts in told(profile).items():
            by_way.setdefault((vendor_of(known(profile)).title, way), []).append(facts)
    heads = ("vendor", "served", "a scheduler knows the devices by", "a share", "a whole device")
    rows = [
        (vendor, way, known_by(facts), either(map(share, facts)), either(map(whole, facts)))
        for (vendor, way), facts in sorted(by_way.items())
    ]

    wanted = f"\n{table(heads, rows)}\n"

    assert generated(PAGE, "ways", wanted) == wanted, "write it anew: UPDATE_DOCS=1 make test"


def test_the_table_of_machines_is_what_the_profiles_say() -> None:
    heads = ("machine", "what it is", "devices", "of which the scheduler reads")
    rows = [(f"`{known(name).name}`", known(name).title, devices(name), first(name)) for name in profiles()]

    wanted = f"\n{table(heads, rows)}\n"

    assert generated(PAGE, "machines", wanted) == wanted, "write it anew: UPDATE_DOCS=1 make test"


def test_the_first_page_names_every_vendor() -> None:
    titles = [load_vendor(name).title for name in vendor_names()]
    wanted = f"\n{', '.join(titles)}.\n\n"

    assert generated("README.md", "makers", wanted) == wanted, "write it anew: UPDATE_DOCS=1 make test"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = tuple(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def known_by(facts: Iterable[Told]) -> str:
    """Register annotations, or the resources of which the capacity tells."""
    texts = {re.sub(r" \d+", "", one["known by"]) for one in facts}
    return "<br>".join(re.sub(r"([\w.-]+/[\w.-]+)", r"`\1`", text) for text in sorted(texts))


def either(texts: Iterable[str]) -> str:
    """The same for all machines, but for numbers."""
    return "<br>or ".join(dict.fromkeys(texts))


def share(facts: Told) -> str:
    """What tells a share from a whole device."""
    if "share" not in facts:
        return "none"
    trusted = facts.get("share, if trusted")
    names = ", ".join(differences(trusted or facts["share"], facts.get("whole", {}))) or "nothing"
    return f"refused; {names} with `unlimitedShares: true`" if trusted else names


def differences(one: Told, other: Told) -> Iterator[str]:
    for name, value in one.get("env", {}).items():
        if other.get("env", {}).get(name) != value:
            yield f"`{re.sub('_[0-9]+$', '_<n>', name)}`"
    for mount in one.get("mounts", ()):
        if other and mount not in other.get("mounts", ()):
            yield f"`{mount.split(' <- ')[0].replace('NODE/hook', '<hookPath>')}`"


def whole(facts: Told) -> str:
    """Variables, and nodes without the device's number."""
    answer = facts.get("whole") or facts["share"]
    names = [*answer.get("env", ()), *answer.get("nodes", ())]
    numbered = (re.sub(r"\d+(?=$|_ctl)", "<n>", name) for name in names)
    return ", ".join(f"`{name}`" for name in dict.fromkeys(numbered)) if "whole" in facts else "none"


def devices(profile: str) -> str:
    machine = known(profile)
    kinds = dict.fromkeys(f"{one.model}, {one.memory} MiB" for one in machine.devices)
    return f"{len(machine.devices)} x {' or '.join(kinds)}"


def first(profile: str) -> str:
    """One device in each way, but for its names."""
    lines = {way: facts["devices"][-1].split(", ") for way, facts in told(profile).items()}
    shown = {way: f"{count}, {memory}, {cores}" for way, (_, count, memory, cores, *_) in lines.items()}
    if len(set(shown.values())) == 1:
        return next(iter(shown.values()))
    return "<br>".join(f"{way}: {text}" for way, text in shown.items())
