"""The page of what each simulated machine offers to ResourceClaims is made from what would be published of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from hami_plugin.dra.slices import device_entry, offered_devices
from tests.dra.test_vendors import BY_CLAIMS, MACHINES, had
from tests.support.machines import Case, found, reviewed, reviewed_variables
from tests.support.pages import generated

PAGE = "docs/reference/claims.md"
HEAD = "| machine | vendor | devices | a claim has | capacities of one device |\n|---|---|---|---|---|\n"


def row(case: Case, folder: Path) -> str:
    vendor = case.machine.vendor
    it = found(case, folder, **BY_CLAIMS)
    devices = offered_devices(it.family, it.snapshot)
    shared = any(one.shared for one in devices)
    capacity = device_entry(devices[0]).get("capacity", {}) if devices else {}
    amounts = ", ".join(f"{name} {value['value']}" for name, value in capacity.items())
    return f"| {case} | {vendor} | {len(devices)} | {'a part, or all' if shared else 'a whole one'} | {amounts} |"


@pytest.mark.full
def test_the_page_of_what_machines_offer_is_what_is_published(tmp_path_factory: pytest.TempPathFactory) -> None:
    rows = [row(case, tmp_path_factory.mktemp("machine")) for case in sorted(MACHINES, key=str)]

    wanted = "\n" + HEAD + "\n".join(rows) + "\n\n"
    assert generated(PAGE, "claims", wanted) == wanted


INSIDE = "| machine | nodes of a whole device | its variables | a part of 3000 MiB and 30 % |\n|---|---|---|---|\n"


def inside(case: Case, nodes: Iterable[str], env: Mapping[str, str], part: Mapping[str, str] | None, why: str) -> str:
    """The row of what containers have: the nodes and variables of one, and the limits of one with a ``part``."""
    below = " ".join(f"`{one.removeprefix('/dev/')}`" for one in sorted(nodes))
    limits = variables({name: part[name] for name in reviewed_variables(reviewed(case, "share"))}) if part else why
    return f"| {case} | {below} | {variables(env)} | {limits} |"


def variables(env: Mapping[str, str]) -> str:
    return " ".join(f"`{name}`" if "/" in text else f"`{name}={text}`" for name, text in sorted(env.items()))


@pytest.mark.full
async def test_the_page_of_what_containers_have_is_what_claims_add_to_them(tmp_path: Path) -> None:
    rows = []
    for case in sorted(MACHINES, key=str):
        (folder := tmp_path / str(case)).mkdir()
        seen = await had(case, folder)
        part = seen.part.env if seen.part else None
        nodes = [node.path for node in seen.whole.device_nodes]
        rows.append(inside(case, nodes, seen.whole.env, part, f"waits: {seen.why}"))

    wanted = "\n" + INSIDE + "\n".join(rows) + "\n\n"
    assert generated(PAGE, "inside", wanted) == wanted
