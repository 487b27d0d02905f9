"""How long a resource's endpoint waits for the kubelet, and how long after each kind of failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hami_plugin.aio import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Waiting times of an endpoint, in seconds.

    ``settle`` is how long a kubelet that ended our stream has to show that it is restarting. ``pause`` follows a
    displacement: at least a minute, so that two plugins never fight over a resource.
    """

    tick: float = 1.0
    self_check: float = 5.0
    register: float = 10.0
    dial_back: float = 10.0
    settle: float = 0.5
    close: float = 0.3
    pace: float = 0.2
    serve: Backoff = field(default_factory=lambda: Backoff(first=0.2, cap=2.0))
    again: Backoff = field(default_factory=lambda: Backoff(first=0.05, cap=1.0))
    refused: Backoff = field(default_factory=lambda: Backoff(first=1.0, cap=30.0))
    pause: Backoff = field(default_factory=lambda: Backoff(first=60.0, cap=600.0, jitter=0.0))


class Patience:
    """How long to wait after each kind of failure. A new kubelet, or a long time without failure, gets a new one."""

    def __init__(self, timing: Timing) -> None:
        self.again: Iterator[float] = timing.again.delays()
        self.refused: Iterator[float] = timing.refused.delays()
        self.pause: Iterator[float] = timing.pause.delays()
        self.losses = 0
