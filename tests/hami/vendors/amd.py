"""How our answers about AMD GPUs are compared with HAMi's."""

from __future__ import annotations

from hami_plugin.scheduler.engine.devices import Demand
from tests.hami.parity import Json, Parity


def parity() -> Parity:
    """AMD's part in the comparison."""
    return Parity(request=_as_hami)


def _as_hami(demand: Demand, unset_percent: int) -> Json:
    """HAMi never writes a percentage: no memory means all of it."""
    return {**Parity().request(demand, unset_percent), "mempercentagereq": unset_percent}
