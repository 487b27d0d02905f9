"""A simulated machine with Iluvatar GPUs: sysfs and dev trees, and an ``ixsmi`` that prints what Iluvatar's does."""

from __future__ import annotations

from collections.abc import Mapping

from hami_plugin.simulation.boards import Board, noted, without
from hami_plugin.simulation.tools import UNLISTED, Told, Tool
from vendors.iluvatar.node import CONTROL, FIELDS, GPUS, LINK, QUESTION


def _says(told: Told) -> Mapping[str, str]:
    """Of a GPU that is silent it tells no numbers."""
    header = ", ".join(FIELDS).replace("memory.total", "memory.total [MiB]")
    rows = (
        f"{one.index}, {one.uuid}, {one.model}, 0000{one.pci.upper()}, "
        f"{'[N/A]' if told.noted('silent', one) else f'{one.memory} MiB'}"
        for one in told.listed
    )
    return {" ".join(QUESTION): "\n".join([header, *rows, ""])}


simulate = Board(
    vendor=GPUS.vendors[0],
    device=lambda _one: "0003",
    driver=GPUS.module,
    module=GPUS.module,
    control=(CONTROL, LINK),
    own=lambda _machine, one: {f"dev/{GPUS.node}{one.index}": ""},
    tool=Tool(path="bin/ixsmi", setting="ixsmi", says=_says),
    faults={
        "silent": noted("silent"),
        "unlisted": noted(UNLISTED),
        "no-node": without(lambda one: f"dev/{GPUS.node}{one.index}"),
    },
).simulate
