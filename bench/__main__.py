"""``python -m bench``: run all parts, or the named ones. The exit status is 1 if a figure exceeds its limit."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from bench.dra import measure as claims
from bench.figures import Figure
from bench.filter import ROWS
from bench.filter import measure as filtering
from bench.footprint import idle
from bench.fragmentation import measure as fragmentation
from bench.latency import burst, spaced
from bench.monitoring import monitoring
from bench.partitions import measure as partitions
from bench.presence import registration
from bench.scale import Size
from bench.scale import measure as scale
from bench.selection import measure as selection
from bench.strain import measure as strain
from hami_plugin.errors import HamiError


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the bench, in full and in brief."""

    about: str
    full: Callable[[], Awaitable[list[Figure]]]
    quick: Callable[[], Awaitable[list[Figure]]] | None


PARTS = {
    "register": Part(
        about="How soon the kubelet hears of the daemon",
        full=lambda: registration(repeats=7),
        quick=lambda: registration(repeats=3),
    ),
    "idle": Part(
        about="What an idle daemon costs",
        full=lambda: idle(seconds=40),
        quick=lambda: idle(seconds=6),
    ),
    "monitoring": Part(
        about="What looking at the usage of 100 containers adds",
        full=lambda: monitoring(seconds=60),
        quick=None,  # shorter, the few looks in it say nothing
    ),
    "allocate": Part(
        about="Allocate for one pod at a time, beside a bare gRPC echo",
        full=lambda: spaced(rounds=1000),
        quick=lambda: spaced(rounds=100, slack=1.5),
    ),
    "burst": Part(
        about="Allocate 1,000 times back to back, beside a bare gRPC echo",
        full=lambda: burst(repeats=3),
        quick=None,  # some minutes on a busy machine
    ),
    "selection": Part(
        about="Choosing the best-linked devices, beside trying every choice",
        full=lambda: selection(repeats=51),
        quick=lambda: selection(repeats=5),
    ),
    "fragmentation": Part(
        about="Refused MIG instances for which a card has enough free slices, by our choice of places and by HAMi's",
        full=lambda: fragmentation(sequences=1000),
        quick=lambda: fragmentation(sequences=200),
    ),
    "partitions": Part(
        about="Allocate beside one that makes a MIG instance, at a driver's speed; and the choice of places",
        full=lambda: partitions(rounds=14),
        quick=lambda: partitions(rounds=4, slack=1.5),
    ),
    "dra": Part(
        about="A claim made ready, beside a bare gRPC echo; slices after a wipe; and the memory of both front ends",
        full=lambda: claims(rounds=300, wipes=20),
        quick=lambda: claims(rounds=30, wipes=3, settle_s=1.0, slack=1.5),
    ),
    "filter": Part(
        about="The extender's filter for one pod over many nodes, beside keeping nothing",
        full=lambda: filtering(repeats=51),
        quick=lambda: filtering(repeats=5, rows=ROWS[-1:]),
    ),
    "scale": Part(
        about="The scheduler process in a large cluster, asked as kube-scheduler asks",
        full=lambda: scale(Size(nodes=5000, bound=20_000, placed=300)),
        quick=lambda: scale(Size(nodes=200, bound=800, placed=20)),
    ),
    "strain": Part(
        about="What one hostile request costs the scheduler process",
        full=strain,
        quick=lambda: strain(nodes=500),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="run only this part; can be repeated")
    parser.add_argument("--quick", action="store_true", help="run fewer rounds: about a minute, less precise")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to this file")
    options = parser.parse_args()
    started = time.monotonic()
    found: dict[str, list[Figure]] = {}
    for name in options.part or PARTS:
        part = PARTS[name]
        measure = part.quick if options.quick else part.full
        if measure is None:
            continue
        print(f"\n{part.about}", flush=True)
        try:
            found[name] = asyncio.run(_measured(measure))
        except HamiError as error:
            print(f"FAIL  {name}: {error}")
            return 1
        for figure in found[name]:
            print(figure, flush=True)
    broken = [figure.name for figures in found.values() for figure in figures if not figure.holds]
    seconds = time.monotonic() - started
    verdict = f"Broken: {', '.join(broken)}" if broken else "Every limit holds"
    print(f"\n{verdict} ({seconds:.0f} s, {_machine()}).")
    if options.json:
        options.json.write_text(json.dumps(_document(found, seconds, quick=options.quick), indent=2) + "\n")
    return 1 if broken else 0


async def _measured(measure: Callable[[], Awaitable[list[Figure]]]) -> list[Figure]:
    return await measure()


def _document(found: dict[str, list[Figure]], seconds: float, *, quick: bool) -> dict[str, object]:
    return {
        "quick": quick,
        "seconds": round(seconds, 1),
        "machine": _machine(),
        "holds": all(figure.holds for figures in found.values() for figure in figures),
        "parts": {name: [figure.as_json() for figure in figures] for name, figures in found.items()},
    }


def _machine() -> str:
    return f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    sys.exit(main())
