"""How soon the kubelet hears of the daemon: after the daemon's start, and after the kubelet's own."""

from __future__ import annotations

from bench.figures import Figure, median
from bench.stage import Node, staged

START_LIMIT_S = 2.0
RESTART_LIMIT_S = 1.0
DOWN_S = 1.5
"""How long a kubelet is away that does not come back at once."""


async def registration(*, repeats: int) -> list[Figure]:
    """From exec to Register, and from a kubelet's new start to Register. The middle of ``repeats`` counts."""
    starts, quick, slow = [], [], []
    async with staged(Node()) as stage:
        for _ in range(repeats):
            await stage.stop_daemon()
            starts.append(await stage.start_daemon())
        for _ in range(repeats):
            quick.append(await stage.restart_kubelet(0.0))
            slow.append(await stage.restart_kubelet(DOWN_S))
    return [
        Figure(name="Start to Register", value=median(starts), unit="s", limit=START_LIMIT_S, note=_all(starts)),
        Figure(
            name="Kubelet restart to Register", value=median(quick), unit="s", limit=RESTART_LIMIT_S, note=_all(quick)
        ),
        Figure(
            name=f"The same, kubelet away for {DOWN_S:g} s",
            value=median(slow),
            unit="s",
            limit=RESTART_LIMIT_S,
            note=_all(slow),
        ),
    ]


def _all(seconds: list[float]) -> str:
    return "of " + ", ".join(f"{value:.2f}" for value in seconds)
