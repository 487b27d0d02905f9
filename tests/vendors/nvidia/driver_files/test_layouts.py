from __future__ import annotations

from pathlib import Path

from tests.support.pages import generated
from vendors.nvidia.driver_files import HOOK_PLACES, LAYOUTS, HostLayout

DOCUMENT = (Path(__file__).parents[4] / "docs/cdi-nvidia.md").read_text(encoding="utf-8")


def cells(layout: HostLayout) -> tuple[str, ...]:
    below = "" if layout.root == "/" else layout.root
    found = (
        *(" ".join(f"`{below}{folder}`" for folder in folders) for folders in (layout.libraries, layout.binaries)),
        f"`{below}{layout.cache}`" if layout.cache else "",
        f"`{layout.inside}`" if layout.inside else "the same, below the root",
    )
    return (layout.name, *found)


def test_the_table_of_places_is_the_search_s_own() -> None:
    heads = ("host", "libraries", "programs", "ld.so.cache", "in the container")
    lines = [heads, ("---",) * len(heads), *map(cells, LAYOUTS)]
    wanted = "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"

    assert generated("docs/reference/driver-files.md", "layouts", wanted) == wanted, (
        "write it anew: UPDATE_DOCS=1 make test"
    )


def test_the_hooks_folders_are_documented() -> None:
    assert all(f"`{Path(place).parent}`" in DOCUMENT for place in HOOK_PLACES)
