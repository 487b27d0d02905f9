"""Memory and CPU time of an idle daemon."""

from __future__ import annotations

import asyncio
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench import imports, ticking
from bench.figures import Figure
from bench.processes import Memory, cpu_seconds, memory, running
from bench.shipped import packages
from bench.testbed import Node, open_testbed

SETTLE_S = 3.0
"""After the node's annotation is written."""
SHARES_SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Limits for one size of node: MiB resident, and CPU as a multiple of a bare loop's."""

    node: Node
    memory: float
    cpu: float


ALLOWANCES = (
    Allowance(node=Node(gpus=8, split=10), memory=83, cpu=8.0),
    Allowance(node=Node(gpus=64, split=100), memory=88, cpu=12.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """An idle daemon. ``cpu`` in percent of one core."""

    memory: Memory
    cpu: float


async def idle(*, seconds: float) -> list[Figure]:
    """Daemons on a small and on a large node, left alone for ``seconds`` side by side, and beside a bare loop."""
    daemons = asyncio.gather(*(_left_alone(allowance.node, seconds) for allowance in ALLOWANCES))
    measured, bare = await asyncio.gather(daemons, bare_loop(seconds))
    costs = await _import_costs()
    figures = [
        Figure(
            name="A bare loop that wakes twice a second",
            value=bare,
            unit="%",
            note="of a core; what waking alone costs here",
        )
    ]
    for allowance, found in zip(ALLOWANCES, measured, strict=True):
        figures += _figures(allowance, found, seconds, bare)
    small = measured[0].memory.resident
    shares = sorted(costs.items(), key=lambda share: -share[1])
    figures += [
        Figure(
            name=f"  share of {ALLOWANCES[0].node}: {name}",
            value=round(cost, 1),
            unit="MiB",
            note=_percent(cost, small),
        )
        for name, cost in shares[:SHARES_SHOWN]
    ]
    rest = small - sum(costs.values())
    figures.append(
        Figure(
            name="  at run time: state, threads, buffers", value=round(rest, 1), unit="MiB", note=_percent(rest, small)
        )
    )
    return figures


async def _left_alone(node: Node, seconds: float) -> Idle:
    async with open_testbed(node) as testbed:
        await testbed.start_daemon()
        await testbed.published()
        await asyncio.sleep(SETTLE_S)
        before = cpu_seconds(testbed.pid)
        await asyncio.sleep(seconds)
        spent = cpu_seconds(testbed.pid) - before
        return Idle(memory=memory(testbed.pid), cpu=100 * spent / seconds)


async def bare_loop(seconds: float) -> float:
    """Percent of one core that a process takes which only wakes up twice a second."""
    async with running(Path(ticking.__file__)) as line:
        await asyncio.sleep(SETTLE_S)
        before = cpu_seconds(int(line))
        await asyncio.sleep(seconds)
        return 100 * (cpu_seconds(int(line)) - before) / seconds


def _figures(allowance: Allowance, found: Idle, seconds: float, bare: float) -> list[Figure]:
    node, used = allowance.node, found.memory
    kinds = f"{used.anonymous:.1f} of it anonymous, PSS {used.share:.1f}"
    return [
        Figure(name=f"Memory idle, {node}", value=used.resident, unit="MiB", limit=allowance.memory, note=kinds),
        Figure(
            name=f"CPU idle, {node} / the bare loop's",
            value=found.cpu / bare,
            unit="x",
            limit=allowance.cpu,
            note=f"{found.cpu:.2g} % of a core, over {seconds:g} s",
        ),
    ]


async def _import_costs() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="hami-bench-") as folder:
        script, shipped = Path(imports.__file__), packages(Path(folder) / "packages")
        async with running(script, packages=shipped) as line:
            return dict(json.loads(line))


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %"
