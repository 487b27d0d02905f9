"""MetaX GPUs: whole ones, which MetaX's own plugin picks, and shares of them, which are picked by link zone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from hami_plugin.sdk import Family, Vendor
from hami_plugin.sdk.lazy import deferred
from vendors.metax import gpu, node, sgpu
from vendors.metax.cards import GPUS
from vendors.metax.settings import MetaxSettings


def families(settings: MetaxSettings, clock: Callable[[], int] = time.time_ns) -> tuple[Family, ...]:
    """Whole GPUs, and shares. ``clock`` says when a decision is written, in nanoseconds since 1970."""
    return (
        replace(gpu.family(settings), node=node.whole(settings)),
        replace(sgpu.family(settings, clock), node=node.shared(settings)),
    )


VENDOR = Vendor(
    name="metax",
    title="MetaX GPUs",
    noun="GPU",
    settings=MetaxSettings,
    families=families,
    open=node.open_driver,
    present=GPUS.present,
    simulate=deferred("vendors.metax.simulation.simulate"),
)
