"""The page of what each simulated machine offers to ResourceClaims is made from what would be published of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.dra.slices import described, offered
from tests.dra.test_vendors import BY_CLAIMS, MACHINES
from tests.support.machines import Case, found
from tests.support.pages import generated

PAGE = "docs/reference/claims.md"
HEAD = "| machine | vendor | devices | a claim has | capacities of one device |\n|---|---|---|---|---|\n"


def row(case: Case, folder: Path) -> str:
    vendor = case.machine.vendor
    it = found(case, folder, **BY_CLAIMS)
    devices = offered(it.family, it.snapshot)
    shared = any(one.shared for one in devices)
    capacity = described(devices[0]).get("capacity", {}) if devices else {}
    amounts = ", ".join(f"{name} {value['value']}" for name, value in capacity.items())
    return f"| {case} | {vendor} | {len(devices)} | {'a part, or all' if shared else 'a whole one'} | {amounts} |"


@pytest.mark.full
def test_the_page_of_what_machines_offer_is_what_is_published(tmp_path_factory: pytest.TempPathFactory) -> None:
    rows = [row(case, tmp_path_factory.mktemp("machine")) for case in sorted(MACHINES, key=str)]

    wanted = "\n" + HEAD + "\n".join(rows) + "\n\n"
    assert generated(PAGE, "claims", wanted) == wanted
