"""What a container asks of a chip, and what admission makes of it: NPUs by modules, memory by templates."""

from __future__ import annotations

from collections.abc import Sequence

from hami_plugin.model.quantity import whole
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.scheduler.engine.requests import INT32_MAX, Admit, Admitted, Denied, Request, amount, counted, written
from vendors.ascend.chips import MODULES, Chip

MODE = "huawei.com/vnpu-mode"
SOFT = "hami-core"
HIDDEN = {"ASCEND_VISIBLE_DEVICES": ""}


def soft(pod: PodView) -> bool:
    """Whether the pod's chips are shared by HAMi's core; otherwise they are cut by templates."""
    return pod.annotations.get(MODE) == SOFT


def request(chip: Chip) -> Request:
    """A number of NPUs, each with memory and cores; whole ones when nothing is said of memory."""
    return counted(
        chip.device_type,
        count=amount(chip.count, least=1),
        memory=amount(chip.memory, factor=chip.memory_factor, fraction="ignore"),
        cores=amount(chip.cores, fraction="round up"),
    )


def admission(chip: Chip, chips: Sequence[Chip]) -> Admit:
    """The container's NPUs and memory as it will get them. ``chips`` are all that there are."""

    def admit(container: ContainerView, pod: PodView) -> Admitted | Denied:
        if chip.count not in container.limits:
            hide = chip.overwrite_env and not any(other.count in container.limits for other in chips)
            return Admitted(found=False, env=HIDDEN if hide else {})
        try:
            return _admitted(chip, container, cut=not soft(pod))
        except ValueError as error:
            return Denied(why=f"container {container.name!r}: {error}")

    return admit


def _admitted(chip: Chip, container: ContainerView, *, cut: bool) -> Admitted | Denied:
    asked = whole(container.limits[chip.count])
    count = _whole_modules(chip, asked)
    if cut and whole(written(container, chip.cores) or "0") > 0:
        raise ValueError(f"{chip.cores} is for pods with the annotation {MODE}: {SOFT}; leave it out, or add that")
    factor = max(1, chip.memory_factor)
    mib = chip.memory_allocatable
    if chip.memory in container.limits:
        mib = _memory(chip, whole(container.limits[chip.memory]) * factor, cut=cut)
    if cut and asked > 1 and mib != chip.memory_allocatable:
        raise ValueError(f"{chip.count}={asked} with {mib} MiB each: several NPUs are granted whole; leave out memory")
    memory = {chip.memory: str(mib // factor)}
    changed = {} if count == asked else {chip.count: str(count)}
    return Admitted(
        found=True,
        limits={**changed, **memory},
        requests={**(changed if chip.count in container.requests else {}), **memory},
        runtime_class=chip.runtime_class,
    )


def _whole_modules(chip: Chip, asked: int) -> int:
    if chip.device_type != MODULES or not chip.super_pod or asked % 2 == 0:
        return asked
    if asked != 1:
        raise ValueError(f"{chip.count}={asked}: two NPUs are one module; ask for 1 or an even number")
    return 2


def _memory(chip: Chip, mib: int, *, cut: bool) -> int:
    found = chip.cut(mib) if cut else mib
    if found is None or found > INT32_MAX:
        raise ValueError(f"{chip.memory}: {mib} MiB is more than an NPU has; it has {chip.memory_capacity}")
    return found
