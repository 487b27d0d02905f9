"""Every vendor's devices in the same words: what they are, what they have, what is given of it, and to whom.

Rendered at each scrape from what is there: a device that is gone, or a pod that has ended, leaves no series behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from hami_plugin.allocation.identity import Held
from hami_plugin.node_status.occupancy import Occupied, Portion
from hami_plugin.telemetry.gauges import gauge

MIB = 1 << 20
NAMES = ("vendor", "family", "uuid", "index")
"""The labels that every series of a device has, so that any two can be divided without more words."""
HOLDER = ("namespace", "pod", "container")


class Devices(Collector):
    """``confirmed`` is what the kubelet says of a hand-out; None where it does not tell."""

    def __init__(
        self,
        occupied: Callable[[], Iterable[Occupied]],
        confirmed: Callable[[Held], bool | None],
        readable: Callable[[], bool],
    ) -> None:
        self._occupied = occupied
        self._confirmed = confirmed
        self._readable = readable

    def collect(self) -> Iterator[Metric]:
        devices = {(one.source.vendor, one.device.uuid): one for one in self._occupied()}.values()
        yield from _descriptions(devices)
        yield from _amounts(devices)
        yield from _portions([(one, portion) for one in devices for portion in one.portions])
        yield from self._account(portion.held for one in devices for portion in one.portions)

    def _account(self, handed: Iterable[Held]) -> Iterator[Metric]:
        said = {held.key: (held, self._confirmed(held)) for held in handed}.values()
        yield gauge(
            "container_confirmed",
            "1 if the kubelet's PodResources says that the container has what was handed out to it, else 0.",
            (*HOLDER, "resource"),
            [((*_holder(held), held.resource), yes) for held, yes in said if yes is not None],
        )
        yield gauge(
            "pod_resources_readable",
            "0 after the kubelet's PodResources left a question open, else 1.",
            (),
            [((), self._readable())],
        )


def _descriptions(devices: Iterable[Occupied]) -> Iterator[Metric]:
    yield gauge(
        "device_info",
        "Always 1: what the device is.",
        (*NAMES, "resource", "model", "mode", "pci", "numa"),
        [((*_names(one), *_description(one)), 1) for one in devices],
    )
    yield gauge(
        "device_healthy",
        "1 while the device is offered as healthy.",
        NAMES,
        [(_names(one), one.device.health.offered) for one in devices],
    )
    yield gauge(
        "device_health_info",
        "Always 1: the device's state, and the reason if it is not well.",
        (*NAMES, "health", "reason"),
        [((*_names(one), one.device.health.value, one.device.reason), 1) for one in devices],
    )


def _amounts(devices: Iterable[Occupied]) -> Iterator[Metric]:
    amounts: Sequence[tuple[str, str, Callable[[Occupied], float]]] = (
        (
            "memory_bytes",
            "Memory that the device has; 0 when the driver does not tell.",
            lambda one: one.device.memory * MIB,
        ),
        ("memory_advertised_bytes", "Memory that can be given to pods.", lambda one: one.memory * MIB),
        ("memory_allocated_bytes", "Memory that pods have.", lambda one: one.memory_taken * MIB),
        ("cores", "Cores as they are advertised: percent, or the family's own number.", lambda one: one.cores),
        (
            "cores_allocated_ratio",
            "Share of the device's cores that is reserved for pods.",
            lambda one: one.cores_taken,
        ),
        ("shares", "How many containers may have a part of the device.", lambda one: one.shares),
        ("shares_allocated", "How many of the shares are given to containers.", lambda one: one.handed),
    )
    for name, text, amount in amounts:
        yield gauge(f"device_{name}", text, NAMES, [(_names(one), amount(one)) for one in devices])


def _portions(given: Sequence[tuple[Occupied, Portion]]) -> Iterator[Metric]:
    labels = (*NAMES, *HOLDER)
    yield gauge(
        "container_memory_bytes",
        "Memory of the device that the container may use.",
        labels,
        [((*_names(one), *_holder(portion.held)), portion.memory * MIB) for one, portion in given],
    )
    yield gauge(
        "container_cores_ratio",
        "Share of the device's cores that is reserved for the container; 0 without a limit.",
        labels,
        [((*_names(one), *_holder(portion.held)), portion.cores) for one, portion in given],
    )


def _names(one: Occupied) -> tuple[str, ...]:
    return (one.source.vendor, one.source.family.word, one.device.uuid, str(one.device.index))


def _description(one: Occupied) -> tuple[str, ...]:
    device = one.device
    numa = "" if device.numa is None else str(device.numa)
    return (one.source.family.resources.count, device.model, device.mode, device.pci, numa)


def _holder(held: Held) -> tuple[str, ...]:
    return (held.namespace, held.pod, held.container)
