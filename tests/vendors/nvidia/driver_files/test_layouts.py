from __future__ import annotations

from pathlib import Path

import pytest

from vendors.nvidia.driver_files.hooks import PLACES
from vendors.nvidia.driver_files.layouts import LAYOUTS, Layout

DOCUMENT = (Path(__file__).parents[4] / "docs/cdi-nvidia.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_every_place_is_documented(layout: Layout) -> None:
    (row,) = [line for line in DOCUMENT.splitlines() if line.startswith(f"| {layout.name} |")]

    if layout.root == "/":
        for folder in (*layout.libraries, *layout.binaries, layout.cache, layout.inside):
            assert folder in row
    else:
        assert (layout.libraries, layout.binaries) == (LAYOUTS[0].libraries, LAYOUTS[0].binaries)
        assert layout.root in row


def test_the_documented_order_is_the_order_of_the_search() -> None:
    rows = [line.split("|")[1].strip() for line in DOCUMENT.splitlines() if line.startswith("| ")]

    assert [row for row in rows if row in {layout.name for layout in LAYOUTS}] == [layout.name for layout in LAYOUTS]


def test_the_hooks_folders_are_documented() -> None:
    assert all(f"`{Path(place).parent}`" in DOCUMENT for place in PLACES)
