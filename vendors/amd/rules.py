"""How AMD's GPUs are requested and chosen: by memory, and by compute units, which containers ask for in percent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from hami_plugin.model.views import ContainerView, PodView, exact
from hami_plugin.scheduler.engine.devices import (
    WHOLE,
    Admit,
    Admitted,
    Candidate,
    Charge,
    Context,
    Denied,
    DeviceState,
    amount,
    count_request,
    memory_of,
)
from hami_plugin.scheduler.engine.policy import Policy, free_cores, free_memory, standard
from hami_plugin.sdk import AnnotationKeys, Family, Resources
from vendors.amd.settings import AmdSettings

DEVICE_TYPE: Final = "AMD"

KEYS = replace(AnnotationKeys.of_agent("amd"), handshake="")
"""Health is the kubelet's: a node with GPUs in its capacity is well."""


def families(settings: AmdSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    policy = Policy(
        request=count_request(
            DEVICE_TYPE,
            count=amount(settings.count, limits_only=True),
            memory=amount(settings.memory, limits_only=True),
            cores=amount(settings.cores, least=1, most=WHOLE, limits_only=True),
            default_cores=WHOLE,
        ),
        serves=standard(
            DEVICE_TYPE,
            types=("amd.com/use-gputype", "amd.com/nouse-gputype"),
            uuids=("amd.com/use-gpu-uuid", "amd.com/nouse-gpu-uuid"),
        ),
        charge=in_compute_units,
        checks=(free_memory, free_cores),
    )
    resources = Resources(
        device_type=DEVICE_TYPE,
        count=settings.count,
        memory=settings.memory,
        cores=settings.cores,
        cores_are_units=True,
    )
    return (Family.registered(resources, KEYS, policy, admit=admission(settings)),)


def in_compute_units(state: DeviceState, context: Context, _eligible: Sequence[Candidate]) -> Charge:
    """A percentage in whole compute units, at least one. The annotation names the product, not the vendor."""
    demand, total = context.demand, state.info.devcore
    memory = memory_of(demand, state) or state.info.devmem
    if demand.cores:
        units = max(1, total * min(demand.cores, WHOLE) // WHOLE)
    else:
        units = total if memory == state.info.devmem else 0
    return Charge(memory=memory, cores=units, device_type=state.info.type)


def admission(settings: AmdSettings) -> Admit:
    """Cores beside a count must be a percentage. Nothing changes."""
    resources = (settings.count, settings.memory, settings.cores)

    def admit(container: ContainerView, _pod: PodView) -> Admitted | Denied:
        cores = container.limits.get(settings.cores)
        if settings.count in container.limits and cores is not None and not _is_percentage(cores):
            return Denied(why=f"container {container.name!r}: {settings.cores}={cores} is not a whole number, 1 to 100")
        return Admitted(found=any(name in container.limits for name in resources))

    return admit


def _is_percentage(text: str) -> bool:
    try:
        return (exact(text) or 0) in range(1, WHOLE + 1)
    except ValueError:
        return False
