"""Moore Threads GPUs: 16 cores each, shared in slices of memory, and all of a pod's shares on one card."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.decisions import encode_devices
from hami_plugin.protocol.keys import ASSIGNED_NODE
from hami_plugin.scheduler.engine.devices import Candidate, Context, Given
from hami_plugin.scheduler.engine.policy import CHARGED, Policy, on_the_pods_device, standard
from hami_plugin.scheduler.engine.reasons import Reason
from hami_plugin.scheduler.engine.registered import summed
from hami_plugin.scheduler.engine.requests import (
    Admit,
    Admitted,
    Asked,
    Demand,
    Denied,
    Request,
    amount,
    counted,
    written,
)
from hami_plugin.sdk import AnnotationKeys, Family, Patch, Resources, SchedulingRules, Units
from vendors.mthreads.settings import MthreadsSettings

DEVICE_TYPE = "Mthreads"
UNIT = 512
"""MiB that one unit of memory stands for."""

CARD_CORES, CARD_MEMORY = 16, 96
"""What admission writes for a whole card."""

SLICES = (2, 4, 8, 16, 32, 64, CARD_MEMORY)
"""Units of memory that one share may have."""

INDICES = "mthreads.com/gpu-index"
"""Where the agent finds which cards are the pod's."""

KEYS = AnnotationKeys(allocated="hami.io/mthreads-vgpu-devices-allocated")


def families(settings: MthreadsSettings, clock: Callable[[], int] = time.time_ns) -> tuple[Family, ...]:
    """The one family of this vendor. ``clock`` says when a decision is written, in nanoseconds since 1970."""
    policy = Policy(
        request=for_all_cards(
            counted(
                DEVICE_TYPE,
                count=amount(settings.count),
                memory=amount(settings.memory, factor=UNIT),
                cores=amount(settings.cores, fraction="ignore"),
            )
        ),
        serves=standard(DEVICE_TYPE, uuids=("mthreads.ai/use-gpuuuid", "mthreads.ai/nouse-gpuuuid")),
        checks=(*CHARGED, shares_on_one_card),
    )
    return (
        Family(
            device_type=DEVICE_TYPE,
            annotations=KEYS,
            resources=resources(settings),
            rules=SchedulingRules(
                policy=policy,
                admit=admission(settings),
                node_devices=summed(
                    settings.cores,
                    settings.memory,
                    each=CARD_CORES,
                    unit=UNIT,
                    name="mthreads",
                    device_type=DEVICE_TYPE,
                ),
                patch=patch(clock),
                lock=None,
            ),
        ),
    )


def resources(settings: MthreadsSettings) -> Resources:
    """GPUs, and beside them their cores and units of memory."""
    return Resources(
        count=settings.count,
        memory=settings.memory,
        cores=settings.cores,
        memory_factor=UNIT,
        cores_are_counted=True,
        units=(
            Units(
                resource=settings.cores,
                of_device=lambda _device: CARD_CORES,
                of_grant=lambda grant: grant.cores,
            ),
            Units(
                resource=settings.memory,
                of_device=lambda device: device.memory // UNIT,
                of_grant=lambda grant: grant.memory // UNIT,
            ),
        ),
    )


def for_all_cards(request: Request) -> Request:
    """Amounts are for all of the container's cards together."""

    def each(container: ContainerView) -> Asked:
        asked = request(container)
        if not isinstance(asked, Demand):
            return asked
        memory = None if asked.memory is None else asked.memory // asked.count
        return replace(asked, memory=memory, cores=asked.cores // asked.count)

    return each


def admission(settings: MthreadsSettings) -> Admit:
    """Several cards are whole ones, and so is one of which no memory is limited; else memory comes in slices."""

    def admit(container: ContainerView, _pod: PodView) -> Admitted | Denied:
        if written(container, settings.count) is None:
            return Admitted(found=False)
        count = container.amount(settings.count)
        if count <= 0:
            return Denied(why=f"container {container.name!r}: {settings.count} must be greater than 0")
        memory = container.limits.get(settings.memory)
        if count == 1 and memory is not None:
            if amount(settings.memory)(container) in SLICES:
                return Admitted(found=True)
            valid = ", ".join(map(str, SLICES))
            return Denied(why=f"container {container.name!r}: {settings.memory}={memory} is none of {valid}")
        whole = {settings.cores: str(CARD_CORES * count), settings.memory: str(CARD_MEMORY * count)}
        annotations = {"mthreads.com/request-gpu-num": str(count)} if count > 1 else {}
        return Admitted(found=True, limits=whole, pod_annotations=annotations)

    return admit


def shares_on_one_card(candidate: Candidate, context: Context, eligible: Sequence[Candidate]) -> Reason | None:
    """The node's agent shares one card for each pod. Cards with all their cores are not shared, and do not matter."""
    if all_of(candidate.state.info.devcore, candidate.charge.cores):
        return None
    totals = {state.uuid: state.info.devcore for state in context.states}
    pieces = context.given.get(DEVICE_TYPE, ())
    shares = tuple(tuple(one for one in piece if not all_of(totals.get(one.uuid, 0), one.cores)) for piece in pieces)
    return on_the_pods_device(candidate, replace(context, given={DEVICE_TYPE: shares}), eligible)


def all_of(total: int, cores: int) -> bool:
    return 0 < total <= cores


def patch(clock: Callable[[], int]) -> Patch:
    """The agent finds the pod by its node and the oldest time, and its cards by index."""

    def written(family: Family, pod: PodView, given: Given) -> Mapping[str, str]:
        pieces = given[family.device_type]
        indices = dict.fromkeys(grant.index for piece in pieces for grant in piece)
        return {
            family.annotations.allocated: encode_devices(pieces),
            INDICES: ",".join(map(str, indices)),
            "mthreads.com/predicate-time": str(clock()),
            "mthreads.com/predicate-node": pod.annotations.get(ASSIGNED_NODE, pod.node),
        }

    return written
