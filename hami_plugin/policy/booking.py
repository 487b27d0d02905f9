"""What a grant takes of a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import PodView
from hami_plugin.policy.reasons import Reason
from hami_plugin.policy.states import DeviceState

Booked = tuple[DeviceState, Grant]
"""The device afterwards, and the grant as it is recorded."""

Book = Callable[[DeviceState, Grant, PodView], Booked | Reason]


def booked(state: DeviceState, grant: Grant, _pod: PodView) -> Booked:
    """One slot, and the grant's memory and cores."""
    return taken(state, grant), grant


def taken(state: DeviceState, grant: Grant, slots: int = 1) -> DeviceState:
    return replace(
        state, slots=state.slots + slots, memory=state.memory + grant.memory, cores=state.cores + grant.cores
    )
