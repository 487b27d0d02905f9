"""Devices of every vendor as Prometheus reads them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hami_plugin.allocation.identity import HeldShare
from hami_plugin.errors import HamiError
from hami_plugin.model.device import Device, Health, Snapshot
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.node_status.occupancy import device_occupancy
from hami_plugin.node_status.registration import FamilySource
from hami_plugin.node_status.usage import Loads
from hami_plugin.process.concurrency import Watched
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.telemetry.metrics import DeviceLoadMetrics, DeviceMetrics
from tests.support.builders import CARD_MIB, COUNT, FAMILY, SPLIT, device, grant, held_by, ids, pod, uuid

MIB = 1 << 20
CARD = {"vendor": "acme", "family": "TOY", "uuid": uuid(0), "index": "0"}
MAIN = {"namespace": "default", "pod": "one", "container": "main"}


@dataclass
class Scrape:
    """A node with one vendor's devices, and what is given of them."""

    devices: tuple[Device, ...] = (device(0),)
    held: list[HeldShare] = field(default_factory=list)
    confirmed: bool | None = None
    vendor: str = "acme"

    def series(self, name: str) -> list[tuple[dict[str, str], float]]:
        registry = CollectorRegistry()
        source = FamilySource(
            vendor=self.vendor, family=FAMILY, snapshot=Watched(Snapshot(devices=self.devices, ready=True))
        )
        registry.register(
            DeviceMetrics(
                lambda: device_occupancy([source], self.held),
                lambda _held: self.confirmed,
                lambda: self.confirmed is None,
            )
        )
        return [
            (dict(sample.labels), sample.value)
            for family in text_string_to_metric_families(generate_latest(registry).decode())
            for sample in family.samples
            if sample.name == f"hami_plugin_{name}"
        ]


def test_a_device_is_described_once_and_named_alike_everywhere() -> None:
    scrape = Scrape(devices=(device(0, pci="0000:01:00.0", numa=None),))
    described = {"resource": COUNT, "model": "Toy", "mode": "hami-core", "pci": "0000:01:00.0", "numa": ""}

    assert scrape.series("device_info") == [({**CARD, **described}, 1)]
    for name in ("healthy", "memory_bytes", "cores", "shares", "memory_allocated_bytes", "shares_allocated"):
        assert [labels for labels, _ in scrape.series(f"device_{name}")] == [CARD]


def test_what_is_there_and_what_is_advertised_is_told_in_bytes_and_shares() -> None:
    scrape = Scrape()

    assert scrape.series("device_memory_bytes") == [(CARD, CARD_MIB * MIB)]
    assert scrape.series("device_memory_advertised_bytes") == [(CARD, CARD_MIB * MIB)]
    assert scrape.series("device_cores") == [(CARD, 100)]
    assert scrape.series("device_shares") == [(CARD, SPLIT)]


def test_what_pods_have_stands_at_the_device_and_at_each_container() -> None:
    held = [held_by(pod("one"), replicas=ids((0, 0)), grants=[grant(0, 3000, 30)])]
    held += [held_by(pod("two"), replicas=ids((0, 1)), grants=[grant(0, 1000, 20)])]
    scrape = Scrape(held=held)

    assert scrape.series("device_memory_allocated_bytes") == [(CARD, 4000 * MIB)]
    assert scrape.series("device_cores_allocated_ratio") == [(CARD, 0.5)]
    assert scrape.series("device_shares_allocated") == [(CARD, 2)]
    assert ({**CARD, **MAIN}, 3000 * MIB) in scrape.series("container_memory_bytes")
    assert ({**CARD, **MAIN, "pod": "two"}, 0.2) in scrape.series("container_cores_ratio")


def test_a_pod_that_has_ended_leaves_no_series_behind() -> None:
    scrape = Scrape(held=[held_by(pod("one"), replicas=ids((0, 0)), grants=[grant(0)])], confirmed=True)
    assert scrape.series("container_memory_bytes")

    scrape.held.clear()

    for name in ("container_memory_bytes", "container_cores_ratio", "container_confirmed"):
        assert scrape.series(name) == []


def test_the_kubelets_word_stands_beside_what_was_handed_out() -> None:
    scrape = Scrape(held=[held_by(pod("one"), replicas=ids((0, 0)), grants=[grant(0)])])
    assert scrape.series("container_confirmed") == []
    assert scrape.series("pod_resources_readable") == [({}, 1)]

    for said in (True, False):
        scrape.confirmed = said
        assert scrape.series("container_confirmed") == [({**MAIN, "resource": COUNT}, said)]


def test_the_health_of_a_device_has_its_reason() -> None:
    scrape = Scrape(devices=(device(0, health=Health.UNHEALTHY, reason="FellOffTheBus"),))

    assert scrape.series("device_healthy") == [(CARD, 0)]
    assert scrape.series("device_health_info") == [({**CARD, "health": "unhealthy", "reason": "FellOffTheBus"}, 1)]


def test_a_device_that_is_gone_leaves_no_series_behind() -> None:
    scrape = Scrape(devices=(device(0), device(1)))
    assert len(scrape.series("device_healthy")) == 2

    scrape.devices = (device(0),)

    assert len(scrape.series("device_healthy")) == len(scrape.series("device_info")) == 1


@settings(deadline=None)
@given(text=st.text(max_size=30))
def test_any_text_of_a_driver_makes_a_scrape_that_can_be_read(text: str) -> None:
    clean = text.encode("utf-8", "replace").decode()

    assert len(Scrape(devices=(device(0, model=clean, uuid=clean),)).series("device_info")) == 1


def test_a_vendor_that_fails_to_name_a_device_leaves_the_page_to_all_others() -> None:
    def fails(one: Device, legacy: bool) -> DeviceInfo:
        if legacy:
            raise HamiError("it does not know its card's former name")
        return FAMILY.node.register(one, legacy)

    node = replace(FAMILY.node, register=fails)
    shown = Watched(Snapshot(devices=(device(0),), ready=True))
    source = FamilySource(vendor="acme", family=replace(FAMILY, node=node), snapshot=shown)
    loads = Loads(kept=10.0, clock=lambda: 0.0)
    loads.note("acme", {uuid(0): DeviceLoad(memory_used=MIB, utilization=40)})
    registry = CollectorRegistry()
    registry.register(DeviceLoadMetrics(lambda: device_occupancy([source], []), loads, hami_node="n1"))

    text = generate_latest(registry).decode()

    assert f'hami_host_gpu_memory_used_bytes{{device_index="0",device_type="TOY",device_uuid="{uuid(0)}"' in text
