"""The daemon's metrics for Prometheus.

Counters count events as they happen. Gauges are rendered from the current state at each scrape.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami_plugin.allocation.identity import HeldShare
from hami_plugin.errors import HamiError
from hami_plugin.model.device import Snapshot
from hami_plugin.model.ports import EndpointState
from hami_plugin.model.usage import ContainerUsage, DeviceLoad, DeviceUsage
from hami_plugin.node_status.cost import Amount, CostAccount
from hami_plugin.node_status.faults import FaultLog
from hami_plugin.node_status.occupancy import DeviceOccupancy, Portion
from hami_plugin.node_status.usage import FindPod, Loads, UsageReader, UsageReading, device_users
from hami_plugin.partitions.life import ABSENT, State
from hami_plugin.telemetry.process_metrics import BUCKETS, ApiCallMetrics, gauge

if TYPE_CHECKING:  # loaded where cards are cut
    from hami_plugin.partitions.manager import Partitions


class Metrics(ApiCallMetrics):
    """The daemon's ``Observer``. ``clock`` gives monotonic seconds."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        version: str,
        clock: Callable[[], float] = time.monotonic,
        log_lines_dropped: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(registry)
        self._snapshots: dict[str, Snapshot] = {}
        self._endpoints: dict[str, _Endpoint] = {}
        self._clock = clock
        self._allocations = Counter(
            "hami_plugin_allocations",
            "Allocate calls by outcome: ok, or the reason of the refusal.",
            ("resource", "outcome"),
            registry=registry,
        )
        self._allocate_seconds = Histogram(
            "hami_plugin_allocate_seconds",
            "Duration of Allocate calls in seconds.",
            ("resource",),
            buckets=BUCKETS,
            registry=registry,
        )
        self._unchecked = Counter(
            "hami_plugin_allocations_unchecked",
            "Allocate calls that were served although they seemed to exceed a device, while the API server was "
            "unreachable.",
            ("resource",),
            registry=registry,
        )
        self._starts = Counter(
            "hami_plugin_container_starts",
            "PreStartContainer calls by outcome: ok, or the reason of the refusal.",
            ("resource", "outcome"),
            registry=registry,
        )
        self._claims = Counter(
            "hami_plugin_claims",
            "ResourceClaims that were prepared or released, by outcome: ok, or the reason of the refusal.",
            ("driver", "operation", "outcome"),
            registry=registry,
        )
        self._claim_seconds = Histogram(
            "hami_plugin_claim_seconds",
            "Duration of preparing or releasing one ResourceClaim in seconds.",
            ("driver", "operation"),
            buckets=BUCKETS,
            registry=registry,
        )
        self._slice_writes = Counter(
            "hami_plugin_slice_writes",
            "ResourceSlices that were created, updated or deleted.",
            ("driver", "verb"),
            registry=registry,
        )
        self._mistakes = Counter(
            "hami_plugin_vendor_mistakes",
            "Unexpected errors in a vendor's code, by step.",
            ("vendor", "step"),
            registry=registry,
        )
        registry.register(_State(self._snapshots, self._endpoints, clock, version, log_lines_dropped))
        ProcessCollector(registry=registry)

    def allocation(self, resource: str, outcome: str, seconds: float) -> None:
        self._allocations.labels(resource, outcome).inc()
        self._allocate_seconds.labels(resource).observe(seconds)
        self._unchecked.labels(resource)  # starts at 0: a series that starts with its first count shows no increase

    def unchecked(self, resource: str) -> None:
        self._unchecked.labels(resource).inc()

    def container_start(self, resource: str, outcome: str) -> None:
        self._starts.labels(resource, outcome).inc()

    def claim(self, driver: str, operation: str, outcome: str, seconds: float) -> None:
        self._claims.labels(driver, operation, outcome).inc()
        self._claim_seconds.labels(driver, operation).observe(seconds)

    def slice_write(self, driver: str, verb: str) -> None:
        self._slice_writes.labels(driver, verb).inc()

    def mistake(self, vendor: str, step: str) -> None:
        self._mistakes.labels(vendor, step).inc()

    def snapshot(self, vendor: str, snapshot: Snapshot) -> None:
        self._snapshots[vendor] = snapshot
        self._mistakes.labels(vendor, "driver")  # starts at 0, so that a rate sees the first increment

    def endpoint(self, state: EndpointState) -> None:
        before = self._endpoints.get(state.resource)
        since = self._clock() if before is None or state.registrations > before.state.registrations else before.since
        self._endpoints[state.resource] = _Endpoint(state=state, since=since)

    def forget(self, vendors: Iterable[str], resources: Iterable[str]) -> None:
        """What a changed configuration serves no more."""
        for vendor in vendors:
            self._snapshots.pop(vendor, None)
        for resource in resources:
            self.withdrawn(resource)

    def withdrawn(self, resource: str) -> None:
        """The resource has no endpoint any more, as it should."""
        self._endpoints.pop(resource, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Endpoint:
    """An endpoint's last state, and the time of its last registration."""

    state: EndpointState
    since: float


class _State(Collector):
    """Renders the current state. A scrape runs on the event loop, as all changes do, so it sees consistent values."""

    def __init__(
        self,
        snapshots: dict[str, Snapshot],
        endpoints: dict[str, _Endpoint],
        clock: Callable[[], float],
        version: str,
        log_lines_dropped: Callable[[], int],
    ) -> None:
        self._snapshots = snapshots
        self._endpoints = endpoints
        self._clock = clock
        self._version = version
        self._log_lines_dropped = log_lines_dropped

    def collect(self) -> Iterator[Metric]:
        yield gauge("build_info", "Always 1.", ("version",), [((self._version,), 1)])
        yield CounterMetricFamily(
            "hami_plugin_log_lines_dropped",
            "Log lines dropped because nothing read the log in time.",
            value=self._log_lines_dropped(),
        )
        yield from self._drivers()
        yield from self._devices()
        yield from self._kubelet()

    def _drivers(self) -> Iterator[Metric]:
        yield gauge(
            "driver_ready",
            "1 while the vendor's driver answers, else 0 with the reason.",
            ("vendor", "reason"),
            [((name, "" if seen.ready else seen.reason), seen.ready) for name, seen in self._snapshots.items()],
        )

    def _devices(self) -> Iterator[Metric]:
        """A driver may list a device twice, and Prometheus rejects a scrape with a duplicate series."""
        seen = {(vendor, d.uuid): d for vendor, seen in self._snapshots.items() for d in seen.devices}
        tally = Tally((vendor, d.health.value, d.reason) for (vendor, _uuid), d in seen.items())
        yield gauge("devices", "Devices by health and reason.", ("vendor", "health", "reason"), tally.items())

    def _kubelet(self) -> Iterator[Metric]:
        states = [endpoint.state for endpoint in self._endpoints.values()]
        now = self._clock()
        label = ("resource",)
        yield gauge(
            "registered", "1 while registered with the kubelet.", label, [((s.resource,), s.registered) for s in states]
        )
        yield gauge(
            "endpoint_ready",
            "1 while the resource is registered, and the kubelet's stream is open and has a list.",
            label,
            [((s.resource,), s.ready) for s in states],
        )
        yield gauge("streams", "Open ListAndWatch streams.", label, [((s.resource,), s.streams) for s in states])
        yield gauge(
            "registration_age_seconds",
            "Seconds since the last registration with the kubelet.",
            label,
            [((name,), now - end.since) for name, end in self._endpoints.items() if end.state.registered],
        )
        registrations = CounterMetricFamily(
            "hami_plugin_registrations", "Registrations with the kubelet.", labels=label
        )
        for state in states:
            registrations.add_metric((state.resource,), state.registrations)
        yield registrations


class ReadinessMetrics(Collector):
    """``problems`` are those of the readiness probe, by component; ``locked`` is the node lock's age in seconds."""

    def __init__(self, problems: Callable[[], Mapping[str, str]], locked: Callable[[], float]) -> None:
        self._problems = problems
        self._locked = locked

    def collect(self) -> Iterator[Metric]:
        yield gauge(
            "component_ready",
            "1 while the component is ready; /readyz has the reason if it is not.",
            ("component",),
            [((component,), not problem) for component, problem in self._problems().items()],
        )
        yield gauge(
            "node_lock_age_seconds",
            "Seconds since a scheduler took the node lock; 0 while it is free.",
            (),
            [((), self._locked())],
        )


STATES = tuple(state for state in State if state not in ABSENT - {State.RESERVED, State.LOST})
"""Of partitions that are known at all."""
MIB = 1 << 20
NAMES = ("vendor", "family", "uuid", "index")
"""The labels of every device series, so that any two can be divided."""
HOLDER = ("namespace", "pod", "container")


class DeviceMetrics(Collector):
    """``confirmed`` is whether the kubelet lists an allocation; None while that is unknown."""

    def __init__(
        self,
        occupied: Callable[[], Iterable[DeviceOccupancy]],
        confirmed: Callable[[HeldShare], bool | None],
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

    def _account(self, handed: Iterable[HeldShare]) -> Iterator[Metric]:
        confirmations = {held.key: (held, self._confirmed(held)) for held in handed}.values()
        yield gauge(
            "container_confirmed",
            "1 if the kubelet's PodResources lists the container's allocated devices, else 0.",
            (*HOLDER, "resource"),
            [((*_holder(held), held.resource), yes) for held, yes in confirmations if yes is not None],
        )
        yield gauge(
            "pod_resources_readable",
            "0 after PodResources could not be read, else 1.",
            (),
            [((), self._readable())],
        )


class FaultMetrics(Collector):
    """How often each device failed, and who has had those that are not well since they failed."""

    def __init__(self, faults: FaultLog, occupied: Callable[[], Iterable[DeviceOccupancy]]) -> None:
        self._faults = faults
        self._occupied = occupied

    def collect(self) -> Iterator[Metric]:
        devices = {(one.source.vendor, one.device.uuid): one for one in self._occupied()}
        counted = CounterMetricFamily(
            "hami_plugin_device_faults", "Faults of the device, and of applications on it.", labels=(*NAMES, "reason")
        )
        for (vendor, uuid, reason), count in self._faults.counts.items():
            if one := devices.get((vendor, uuid)):
                counted.add_metric((*_names(one), reason), count)
        yield counted
        unwell = [
            (one, record)
            for key, one in devices.items()
            if not one.device.health.offered and (record := self._faults.last.get(key))
        ]
        hit = {
            (*_names(one), record.fault.reason, *_holder(held)): 1 for one, record in unwell for held in record.holders
        }
        yield gauge(
            "device_fault_container",
            "1 for each container that had the device when it failed, until the device is well again.",
            (*NAMES, "reason", *HOLDER),
            hit.items(),
        )


def _descriptions(devices: Iterable[DeviceOccupancy]) -> Iterator[Metric]:
    yield gauge(
        "device_info",
        "Always 1. The labels describe the device.",
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
        "Always 1. The labels have the device's health, and the reason if it is not healthy.",
        (*NAMES, "health", "reason"),
        [((*_names(one), one.device.health.value, one.device.reason), 1) for one in devices],
    )


def _amounts(devices: Iterable[DeviceOccupancy]) -> Iterator[Metric]:
    amounts: Sequence[tuple[str, str, Callable[[DeviceOccupancy], float]]] = (
        (
            "memory_bytes",
            "Total memory of the device; 0 if the driver does not report it.",
            lambda one: one.device.memory * MIB,
        ),
        ("memory_advertised_bytes", "Memory that can be allocated to pods.", lambda one: one.memory * MIB),
        ("memory_allocated_bytes", "Memory allocated to pods.", lambda one: one.memory_taken * MIB),
        ("cores", "Advertised cores: percent, or the device type's own unit.", lambda one: one.cores),
        (
            "cores_allocated_ratio",
            "Share of the device's cores that is reserved for pods.",
            lambda one: one.cores_taken,
        ),
        ("shares", "Containers that can share the device.", lambda one: one.shares),
        ("shares_allocated", "Shares allocated to containers.", lambda one: one.handed),
    )
    for name, text, amount in amounts:
        yield gauge(f"device_{name}", text, NAMES, [(_names(one), amount(one)) for one in devices])


def _portions(given: Sequence[tuple[DeviceOccupancy, Portion]]) -> Iterator[Metric]:
    labels = (*NAMES, *HOLDER)
    yield gauge(
        "container_memory_bytes",
        "Device memory that the container may use.",
        labels,
        [((*_names(one), *_holder(portion.held)), portion.memory * MIB) for one, portion in given],
    )
    yield gauge(
        "container_cores_ratio",
        "Share of the device's cores that is reserved for the container; 0 without a limit.",
        labels,
        [((*_names(one), *_holder(portion.held)), portion.cores) for one, portion in given],
    )


class PartitionMetrics(Collector):
    """What cards are cut into, and what can still be cut out of them."""

    def __init__(self, partitions: Sequence[Partitions]) -> None:
        self._partitions = partitions

    def collect(self) -> Iterator[Metric]:
        states = Tally((one.resource, each.state) for one in self._partitions for each in one.shown())
        yield gauge(
            "partitions",
            "Partitions by state.",
            ("resource", "state"),
            [((one.resource, state), states[one.resource, state]) for one in self._partitions for state in STATES],
        )
        yield gauge(
            "partition_placeable",
            "Places that each card has left for the profile.",
            ("resource", "uuid", "profile"),
            [
                ((one.resource, card, profile.name), left)
                for one in self._partitions
                for card, profile, left in one.placeable()
            ],
        )
        yield gauge(
            "partition_placeable_ratio",
            "Share of an empty card's places that are left, weighted by their size: 1 while the card is empty.",
            ("resource", "uuid"),
            [((one.resource, card), share) for one in self._partitions for card, share in one.openness()],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDriver:
    """A DRA driver as it is now. ``generation`` is its pool's, ``devices`` those that its slices have."""

    driver: str
    registered: bool
    slices: int
    generation: int
    devices: int
    prepared: int


class ClaimMetrics(Collector):
    """What DRA drivers publish, and how many claims they have prepared."""

    def __init__(self, drivers: Callable[[], Iterable[ClaimDriver]]) -> None:
        self._drivers = drivers

    def collect(self) -> Iterator[Metric]:
        found = list(self._drivers())
        amounts: Sequence[tuple[str, str, Callable[[ClaimDriver], float]]] = (
            ("driver_registered", "1 while the kubelet has the DRA driver.", lambda one: one.registered),
            ("slices", "ResourceSlices of this node that the API server has.", lambda one: one.slices),
            ("slices_generation", "Generation of the pool of this node's devices.", lambda one: one.generation),
            ("slices_devices", "Devices in the ResourceSlices of this node.", lambda one: one.devices),
            ("claims_prepared", "ResourceClaims that are prepared on this node.", lambda one: one.prepared),
        )
        for name, text, amount in amounts:
            yield gauge(f"dra_{name}", text, ("driver",), [((one.driver,), amount(one)) for one in found])


class ResizeMetrics(Collector):
    """How resizes of running containers ended."""

    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counted = CounterMetricFamily(
            "hami_plugin_resizes",
            "Resizes of running containers by outcome: done, refused, or undone after a step failed.",
            labels=("outcome",),
        )
        for outcome, count in self._counts().items():
            counted.add_metric((outcome,), count)
        yield counted


class RemediationMetrics(Collector):
    """What was done about devices that need a reset."""

    def __init__(self, counts: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counted = CounterMetricFamily(
            "hami_plugin_remediations",
            "Devices that were cordoned, or for which a reset was asked, by outcome: done, failed, or only said in a "
            "dry-run.",
            labels=("step", "outcome"),
        )
        for (step, outcome), count in self._counts().items():
            counted.add_metric((step, outcome), count)
        yield counted


class PriorityMetrics(Collector):
    """Which containers wait for others of a higher priority."""

    def __init__(self, held: Callable[[], Iterable[HeldShare]]) -> None:
        self._held = held

    def collect(self) -> Iterator[Metric]:
        yield gauge(
            "container_held_back",
            "1 for each container that may start no work, while one of a higher priority works on its device.",
            HOLDER,
            [(_holder(held), 1) for held in self._held()],
        )


class UsageMetrics(Collector):
    """What containers use of their devices, as it was read last."""

    def __init__(self, reader: UsageReader) -> None:
        self._reader = reader

    def collect(self) -> Iterator[Metric]:
        readings = self._reader.readings
        age = self._reader.age_s()
        yield gauge(
            "usage_age_seconds",
            "Seconds since the containers' usage was read.",
            (),
            [] if age is None else [((), age)],
        )
        yield gauge(
            "container_usage_info",
            "Always 1. The labels say whether the container's usage can be read, and in which layout it is written.",
            (*HOLDER, "resource", "state", "layout"),
            [((*_holder(r.held), r.held.resource, r.usage.state.value, r.usage.layout), 1) for r in readings],
        )
        yield gauge(
            "container_usage_rejected",
            "Parts of the container's own account that cannot be true and were left out.",
            (*HOLDER, "resource"),
            [((*_holder(r.held), r.held.resource), r.usage.corrupt_slots + r.usage.foreign_uuids) for r in readings],
        )
        yield from self._devices(readings)
        yield gauge(
            "container_last_kernel_timestamp_seconds",
            "When the container last started work on a device, in seconds since the epoch.",
            (*HOLDER, "resource"),
            [
                ((*_holder(r.held), r.held.resource), r.usage.last_kernel_s)
                for r in readings
                if r.usage.last_kernel_s is not None
            ],
        )

    def _devices(self, readings: Sequence[UsageReading]) -> Iterator[Metric]:
        amounts: Sequence[tuple[str, str, Callable[[ContainerUsage, DeviceUsage], float | None]]] = (
            ("memory_used_bytes", "Device memory that the container uses.", lambda _all, one: one.memory_used),
            (
                "utilization_ratio",
                "Share of the device's time that the container's processes used.",
                lambda _all, one: None if one.utilization is None else min(one.utilization, 100) / 100,
            ),
            (
                "limits_changed",
                "1 if the limits that are in force in the container are not those that it was given.",
                lambda usage, one: one.uuid in usage.changed_limits,
            ),
        )
        used = list(_used(readings))
        for name, text, amount in amounts:
            yield gauge(
                f"container_{name}",
                text,
                (*NAMES, *HOLDER),
                [(labels, value) for labels, usage, device in used if (value := amount(usage, device)) is not None],
            )


def _used(readings: Sequence[UsageReading]) -> Iterator[tuple[tuple[str, ...], ContainerUsage, DeviceUsage]]:
    """Each container's devices, with the labels of a device series and of the container."""
    for reading in readings:
        source = reading.source
        indices = {device.uuid: device.number for device in source.snapshot.value.devices}
        for device in reading.usage.devices:
            names = (source.vendor, source.family.resources.device_type, device.uuid, indices.get(device.uuid, ""))
            yield (*names, *_holder(reading.held)), reading.usage, device


class CostMetrics(Collector):
    """What pods, namespaces and labels came to. The sums of pods and of idle cards are those of the cards."""

    def __init__(self, account: Callable[[], CostAccount]) -> None:
        self._account = account

    def collect(self) -> Iterator[Metric]:
        now = self._account()
        cards = {(vendor, uuid): one for (vendor, uuid), one in now.cards.items()}
        metered = {name: one for name, one in cards.items() if one.metered}
        card, names = ("vendor", "uuid", "model"), [((*name, one.model), one) for name, one in cards.items()]
        yield _sums("card_seconds", "Seconds that the card was there.", card, [(n, c.whole.seconds) for n, c in names])
        yield _sums(
            "card_idle_seconds",
            "Seconds of the card that no pod had; of a part that no pod had, that part of them.",
            card,
            [(name, one.idle.seconds) for name, one in names],
        )
        drawing = [((*name, one.model), one) for name, one in metered.items()]
        yield _sums("card_energy_joules", "Energy that the card drew.", card, [(n, c.whole.joules) for n, c in drawing])
        yield _sums(
            "card_idle_energy_joules",
            "Energy of the card for parts that no pod had.",
            card,
            [(name, one.idle.joules) for name, one in drawing],
        )
        pods: defaultdict[tuple[str, ...], Amount] = defaultdict(Amount)
        for payer, amount in now.pods.items():
            pods[payer.vendor, payer.model, payer.namespace, payer.pod].add(amount.seconds, amount.joules)
        yield from _paid("pod", "pod", ("vendor", "model", "namespace", "pod"), pods)
        yield from _paid("namespace", "pods of the namespace", ("vendor", "model", "namespace"), now.namespaces)
        yield from _paid("label", "pods with the label", ("vendor", "model", "label", "value"), now.by_label)


def _paid(name: str, whose: str, labels: tuple[str, ...], sums: Mapping[tuple[str, ...], Amount]) -> Iterator[Metric]:
    seconds = [(names, one.seconds) for names, one in sums.items()]
    yield _sums(f"{name}_card_seconds", f"Seconds of whole cards that the {whose} had.", labels, seconds)
    joules = [(names, one.joules) for names, one in sums.items()]
    yield _sums(f"{name}_energy_joules", f"Energy of the cards for the {whose}, by shares.", labels, joules)


def _sums(
    name: str, text: str, labels: tuple[str, ...], samples: Iterable[tuple[tuple[str, ...], float]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"hami_plugin_{name}", text, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family


class DeviceLoadMetrics(Collector):
    """What the hardware itself says of each device. With ``hami_node``, the node's name, under HAMi's names too."""

    def __init__(self, occupied: Callable[[], Iterable[DeviceOccupancy]], loads: Loads, *, hami_node: str = "") -> None:
        self._occupied = occupied
        self._loads = loads
        self._node = hami_node

    def collect(self) -> Iterator[Metric]:
        found = [
            (one, load) for one in self._occupied() if (load := self._loads.of(one.source.vendor, one.device.uuid))
        ]
        amounts: Sequence[tuple[str, str, str, float, Callable[[DeviceLoad], int | None]]] = (
            (
                "memory_used_bytes",
                "memory_used_bytes",
                "Memory of the device that is in use, by whatever it is used.",
                1,
                lambda load: load.memory_used,
            ),
            (
                "utilization_ratio",
                "utilization_ratio",
                "Share of the time in which the device worked.",
                100,
                lambda load: load.utilization,
            ),
            (
                "memory_bandwidth_utilization_ratio",
                "memory_controller_utilization_ratio",
                "Share of the time in which the device's memory was read or written.",
                100,
                lambda load: load.memory_utilization,
            ),
        )
        for name, hamis, text, whole, amount in amounts:
            values = [(one, value) for one, load in found if (value := amount(load)) is not None]
            yield gauge(f"device_{name}", text, NAMES, [(_names(one), value / whole) for one, value in values])
            if self._node:
                labels = ("node", "device_index", "device_uuid", "device_type", "zone")
                family = GaugeMetricFamily(f"hami_host_gpu_{hamis}", f"{text} HAMi's ratios go to 100.", labels=labels)
                for one, value in values:
                    family.add_metric(self._hamis(one), float(value))
                yield family

    def _hamis(self, one: DeviceOccupancy) -> tuple[str, ...]:
        try:
            model = one.source.family.node.register(one.device, True).type
        except HamiError:  # logged and counted where it arose; one vendor's mistake leaves the page to all others
            model = one.source.family.resources.device_type
        return (self._node, str(one.device.index), one.device.uuid, model, "vGPU")


class DeviceUserMetrics(Collector):
    """Who uses devices by their driver's lists of processes, where these are asked for."""

    def __init__(self, occupied: Callable[[], Iterable[DeviceOccupancy]], loads: Loads, pod: FindPod) -> None:
        self._occupied = occupied
        self._loads = loads
        self._pod = pod

    def collect(self) -> Iterator[Metric]:
        found = [
            (one, users)
            for one in self._occupied()
            if (users := device_users(one, self._loads.of(one.source.vendor, one.device.uuid), self._pod))
        ]
        containers = [
            ((*_names(one), *_holder(portion.held)), users.containers[portion.held.key])
            for one, users in found
            for portion in one.portions
        ]
        outsiders = [
            ((*_names(one), str(who)), those) for one, users in found for who, those in users.outsiders.items()
        ]
        yield gauge(
            "container_processes",
            "Processes of the container on the device, by the driver's list.",
            (*NAMES, *HOLDER),
            [(labels, those.processes) for labels, those in containers],
        )
        yield gauge(
            "container_processes_memory_bytes",
            "Memory of the device that these processes have.",
            (*NAMES, *HOLDER),
            [(labels, those.memory) for labels, those in containers],
        )
        yield gauge(
            "device_outsiders",
            "Processes on the device that are of no container with a share of it: of no pod, another pod, or unknown.",
            (*NAMES, "who"),
            [(labels, those.processes) for labels, those in outsiders],
        )
        yield gauge(
            "device_outsiders_memory_bytes",
            "Memory of the device that these processes have.",
            (*NAMES, "who"),
            [(labels, those.memory) for labels, those in outsiders],
        )


class HamiUsageMetrics(Collector):
    """The same under the names and labels of HAMi's monitor, version 2.10. A ratio of it goes from 0 to 100."""

    def __init__(self, reader: UsageReader) -> None:
        self._reader = reader

    def collect(self) -> Iterator[Metric]:
        amounts: Sequence[tuple[str, str, Callable[[DeviceUsage], float | None]]] = (
            ("hami_vgpu_memory_used_bytes", "Device memory that the container uses.", lambda one: one.memory_used),
            ("hami_vgpu_memory_limit_bytes", "Device memory that the container may use.", lambda one: one.memory_limit),
            ("hami_container_device_memory_bytes", "As hami_vgpu_memory_used_bytes.", lambda one: one.memory_used),
            (
                "hami_container_device_utilization_ratio",
                "Utilization of the device by the container, in percent.",
                lambda one: one.utilization,
            ),
            ("hami_vgpu_memory_context_bytes", "Device memory of contexts.", lambda one: one.context),
            ("hami_vgpu_memory_module_bytes", "Device memory of modules.", lambda one: one.module),
            ("hami_vgpu_memory_buffer_bytes", "Device memory of buffers.", lambda one: one.buffer),
        )
        for name, text, amount in amounts:
            devices = ((labels, amount(device)) for labels, _usage, device in self._devices())
            yield _of_hami(name, text, [(labels, value) for labels, value in devices if value is not None])
        yield _of_hami(
            "hami_container_last_kernel_elapsed_seconds",
            "Seconds since the container last started work on a device.",
            [
                (labels, max(0.0, time.time() - usage.last_kernel_s))
                for labels, usage, _device in self._devices()
                if usage.last_kernel_s is not None
            ],
        )

    def _devices(self) -> Iterator[tuple[tuple[str, ...], ContainerUsage, DeviceUsage]]:
        """Each container's devices, with the labels that HAMi gives them."""
        for reading in self._reader.readings:
            for index, device in enumerate(reading.usage.devices):
                yield (*_holder(reading.held), str(index), device.uuid, "vGPU"), reading.usage, device


def _of_hami(name: str, text: str, samples: Iterable[tuple[tuple[str, ...], float]]) -> GaugeMetricFamily:
    labels = ("namespace", "pod", "container", "vdevice_index", "device_uuid", "zone")
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in samples:
        family.add_metric(values, float(number))
    return family


def _names(one: DeviceOccupancy) -> tuple[str, ...]:
    return (one.source.vendor, one.source.family.resources.device_type, one.device.uuid, one.device.number)


def _description(one: DeviceOccupancy) -> tuple[str, ...]:
    device = one.device
    numa = "" if device.numa is None else str(device.numa)
    return (one.source.family.resources.count, device.model, device.mode, device.pci, numa)


def _holder(held: HeldShare) -> tuple[str, ...]:
    return (held.namespace, held.pod, held.container)
