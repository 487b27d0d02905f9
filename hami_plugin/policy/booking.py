"""What a grant takes of a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import PodView
from hami_plugin.policy.reasons import Reason
from hami_plugin.policy.states import DeviceState, Tenant

Booked = tuple[DeviceState, Grant]
"""The device afterwards, and the grant as it is recorded."""

Book = Callable[[DeviceState, Grant, PodView], Booked | Reason]

Restore = Callable[[DeviceState, Grant, PodView], DeviceState]
"""The device with what a pod has of it already, as its annotations say."""


def booked(state: DeviceState, grant: Grant, _pod: PodView) -> Booked:
    """One slot, and the grant's memory and cores."""
    return taken(state, grant), grant


def taken(state: DeviceState, grant: Grant, slots: int = 1) -> DeviceState:
    return state.less(slots=slots, memory=grant.memory, cores=grant.cores)


def restored(state: DeviceState, grant: Grant, pod: PodView) -> DeviceState:
    """The grant's slots, memory and cores; the pod is a tenant."""
    tenant = Tenant(name=pod.name, annotations=pod.annotations)
    return replace(taken(state, grant, max(1, grant.slots)), tenants=(*state.tenants, tenant))
