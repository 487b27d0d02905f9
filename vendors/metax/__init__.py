"""MetaX GPUs: whole ones, which MetaX's own plugin picks, and shares of them, which are picked by link zone."""

from __future__ import annotations

import time
from collections.abc import Callable

from hami_plugin.parity import Parity
from hami_plugin.vendor import Family, Vendor
from vendors.metax import gpu, sgpu
from vendors.metax.parity import DIFFERENCES
from vendors.metax.settings import MetaxSettings


def families(settings: MetaxSettings, clock: Callable[[], int] = time.time_ns) -> tuple[Family, ...]:
    """Whole GPUs, and shares. ``clock`` says when a decision is written, in nanoseconds since 1970."""
    return (gpu.family(settings), sgpu.family(settings, clock))


def _parity() -> Parity:
    return Parity(differences=DIFFERENCES)


VENDOR = Vendor(name="metax", title="MetaX GPUs", settings=MetaxSettings, families=families, parity=_parity)
