"""How NVIDIA cards are requested, admitted and chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.scheduler.engine.devices import Context
from hami_plugin.scheduler.engine.policy import (
    CHARGED,
    DeviceCheck,
    Policy,
    ReadFirst,
    by_numa_if,
    linked_choice,
    standard,
    topology_aware,
    when,
    within_quota,
)
from hami_plugin.scheduler.engine.reasons import Reason
from hami_plugin.scheduler.engine.requests import Admit, Admitted, Denied, Invalid, amount, counted, percentage, written
from vendors.nvidia.host import FAMILY, VISIBLE, VOID
from vendors.nvidia.scheduling import mig

if TYPE_CHECKING:  # parts of the package also run where pydantic is not installed
    from vendors.nvidia.settings import NvidiaSettings

CORDON = "hami.io/device-cordon"
MODE = "nvidia.com/vgpu-mode"
NUMA_BIND = "nvidia.com/numa-bind"


def _not_cordoned(context: Context) -> DeviceCheck | None:
    text = context.node.annotations.get(CORDON, "")
    cordoned = frozenset(uuid.strip() for uuid in text.split(","))
    return (lambda state, _context: Reason.CORDONED if state.uuid in cordoned else None) if text else None


not_cordoned = ReadFirst(_not_cordoned)
"""The node's annotation does not keep new pods off the card."""


def _in_mode(context: Context) -> DeviceCheck | None:
    modes = context.pod.annotations.get(MODE)
    if modes is None:
        return None
    return lambda state, _context: None if state.info.mode in modes else Reason.TYPE_MISMATCH


in_mode = ReadFirst(_in_mode, keys=(MODE,))
"""The pod's annotation, if there is one, names the way in which the card is shared."""


def policy(settings: NvidiaSettings) -> Policy:
    """Shares of cards, or MIG instances; under ``topology-aware`` the best-linked ones."""
    usual = standard(
        FAMILY,
        types=("nvidia.com/use-gputype", "nvidia.com/nouse-gputype"),
        uuids=("nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"),
    )
    return Policy(
        request=counted(
            FAMILY,
            count=amount(settings.resource_count_name),
            memory=amount(settings.resource_memory_name, factor=settings.memory_factor),
            percent=percentage(settings.resource_memory_percentage_name),
            cores=amount(settings.resource_core_name, fraction="ignore"),
            default_memory=settings.default_memory,
            default_cores=settings.default_cores,
        ),
        group=by_numa_if(NUMA_BIND),
        serves=(usual[0], not_cordoned, in_mode, *usual[1:]),
        charge=mig.charge,
        checks=(
            within_quota(
                memory=settings.resource_memory_name,
                cores=settings.resource_core_name,
                factor=settings.memory_factor,
            ),
            *CHARGED,
            mig.has_place,
        ),
        again=mig.cut,
        select=when(topology_aware, linked_choice),
        book=mig.book,
        restore=mig.restore,
    )


def admission(settings: NvidiaSettings) -> Admit:
    """Defaults of a container that asks for a card, or only for memory or cores of one."""
    parts = (settings.resource_core_name, settings.resource_memory_name, settings.resource_memory_percentage_name)

    valid = amount(settings.resource_memory_percentage_name, most=100, fraction="round up")

    def admit(container: ContainerView, _pod: PodView) -> Admitted | Denied:
        percent = valid(container)
        if isinstance(percent, Invalid):
            return Denied(why=f"container {container.name!r}: {percent}")
        limits: dict[str, str] = {}
        env: dict[str, str] = {}
        if settings.resource_priority_name in container.limits:
            env["CUDA_TASK_PRIORITY"] = container.limits[settings.resource_priority_name]
        if settings.gpu_core_policy != "default":
            env["GPU_CORE_UTILIZATION_POLICY"] = settings.gpu_core_policy
        implied = any(part in container.limits for part in parts) and settings.default_gpu_num > 0
        found = settings.resource_count_name in container.limits or implied
        if implied and settings.resource_count_name not in container.limits:
            limits[settings.resource_count_name] = str(settings.default_gpu_num)
        if _whole_cards(container, settings, percent, counted=found):
            limits[settings.resource_core_name] = "100"
            found = True
        if not found and settings.overwrite_env:
            # NVIDIA's runtime adds the driver's files for none, and nothing at all for void.
            env[VISIBLE] = VOID if settings.delivery.cdi else "none"
        return Admitted(found=found, limits=limits, env=env, runtime_class=settings.runtime_class_name if found else "")

    return admit


def _whole_cards(container: ContainerView, settings: NvidiaSettings, percent: int | None, *, counted: bool) -> bool:
    """Cards are asked for, cores are not mentioned, and all of the memory is meant."""
    if not counted and written(container, settings.resource_count_name) is None:
        return False
    if written(container, settings.resource_core_name) is not None:
        return False
    if percent is not None:
        return percent == 100
    return written(container, settings.resource_memory_name) is None
