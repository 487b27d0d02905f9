from __future__ import annotations

from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hami_plugin.model.device import Device, Health, Snapshot
from hami_plugin.model.ports import EndpointState, Observer
from hami_plugin.telemetry.metrics import Metrics


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Scrape:
    """Metrics on a registry of their own, read as Prometheus reads them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.clock = Clock()
        self.dropped = 0
        self.metrics = Metrics(self.registry, version="1.2.3", clock=self.clock, log_lines_dropped=lambda: self.dropped)

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """Values by the values of their labels, in the order of the labels' names."""
        return {
            tuple(value for _, value in sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(generate_latest(self.registry).decode())
            for sample in family.samples
            if sample.name == f"hami_plugin_{name}"
        }

    def names(self) -> set[str]:
        return {
            sample.name
            for family in text_string_to_metric_families(generate_latest(self.registry).decode())
            for sample in family.samples
        }


@pytest.fixture
def scrape() -> Scrape:
    return Scrape()


def device(index: int, **changes: object) -> Device:
    fields: Mapping[str, object] = {
        "uuid": f"GPU-{index}",
        "family": "acme",
        "index": index,
        "model": "A100",
        "memory": 81920,
        "pci": f"0000:0{index}:00.0",
        "numa": 0,
    }
    return Device(**{**fields, **changes})  # type: ignore[arg-type]  # a builder


def snapshot(*devices: Device) -> Snapshot:
    return Snapshot(devices=devices, ready=True, reason="")


def test_metrics_are_an_observer(scrape: Scrape) -> None:
    observer: Observer = scrape.metrics

    assert observer is scrape.metrics


def test_allocations_are_counted_by_outcome_and_timed(scrape: Scrape) -> None:
    scrape.metrics.allocation("acme.example/card", "ok", 0.0004)
    scrape.metrics.allocation("acme.example/card", "ok", 3.0)
    scrape.metrics.allocation("acme.example/card", "NoPendingPod", 0.002)

    assert scrape.series("allocations_total") == {
        ("ok", "acme.example/card"): 2,
        ("NoPendingPod", "acme.example/card"): 1,
    }
    buckets = scrape.series("allocate_seconds_bucket")
    assert buckets["0.0005", "acme.example/card"] == 1
    assert buckets["0.0025", "acme.example/card"] == 2
    assert buckets["10.0", "acme.example/card"] == 3
    assert scrape.series("allocate_seconds_sum") == {("acme.example/card",): pytest.approx(3.0024)}


def test_what_was_handed_out_beyond_what_was_known_to_be_left_is_counted(scrape: Scrape) -> None:
    scrape.metrics.allocation("acme.example/card", "ok", 0.01)
    before = scrape.series("allocations_unchecked_total")
    scrape.metrics.unchecked("acme.example/card")

    assert before == {("acme.example/card",): 0}
    assert scrape.series("allocations_unchecked_total") == {("acme.example/card",): 1}


def test_container_starts_and_api_calls_are_counted(scrape: Scrape) -> None:
    scrape.metrics.container_start("acme.example/card", "WrongHolder")
    scrape.metrics.api_call("patch", "pod", "200", 0.01)
    scrape.metrics.api_call("patch", "pod", "unreachable", 5.0)

    assert scrape.series("container_starts_total") == {("WrongHolder", "acme.example/card"): 1}
    assert scrape.series("api_calls_total") == {("pod", "200", "patch"): 1, ("pod", "unreachable", "patch"): 1}
    assert scrape.series("api_call_seconds_count") == {("pod", "patch"): 2}


def test_devices_are_counted_by_health(scrape: Scrape) -> None:
    lost = device(1, health=Health.UNHEALTHY, reason="FellOffTheBus")
    scrape.metrics.snapshot("acme", snapshot(device(0), lost, device(2, health=Health.SUSPECT, reason="XID48")))

    assert scrape.series("devices") == {
        ("healthy", "", "acme"): 1,
        ("unhealthy", "FellOffTheBus", "acme"): 1,
        ("suspect", "XID48", "acme"): 1,
    }


def test_a_device_that_is_gone_is_not_counted(scrape: Scrape) -> None:
    scrape.metrics.snapshot("acme", snapshot(device(0), device(1, health=Health.UNHEALTHY, reason="XID79")))
    scrape.metrics.snapshot("zeta", snapshot(device(0)))

    scrape.metrics.snapshot("acme", snapshot(device(0)))

    assert scrape.series("devices") == {("healthy", "", "acme"): 1, ("healthy", "", "zeta"): 1}


def test_a_driver_that_does_not_answer_says_why(scrape: Scrape) -> None:
    scrape.metrics.snapshot("acme", Snapshot(reason="NoLibrary", message="not there"))
    assert scrape.series("driver_ready") == {("NoLibrary", "acme"): 0}

    scrape.metrics.snapshot("acme", snapshot())
    assert scrape.series("driver_ready") == {("", "acme"): 1}


def test_two_devices_with_one_uuid_are_one(scrape: Scrape) -> None:
    scrape.metrics.snapshot("acme", snapshot(device(0), device(0, model="other")))

    assert scrape.series("devices") == {("healthy", "", "acme"): 1}


def test_an_endpoint_tells_how_far_it_came_and_how_long_ago(scrape: Scrape) -> None:
    state = EndpointState(resource="acme.example/card", serving=True, problem="the kubelet is away")
    scrape.metrics.endpoint(state)
    assert scrape.series("registered") == {("acme.example/card",): 0}
    assert scrape.series("registration_age_seconds") == {}

    scrape.clock.now = 200.0
    done = EndpointState(resource="acme.example/card", registered=True, registrations=1)
    scrape.metrics.endpoint(done)
    scrape.clock.now = 230.0
    scrape.metrics.endpoint(
        EndpointState(resource="acme.example/card", registered=True, registrations=1, streams=1, list_sent=True)
    )

    assert scrape.series("registered") == {("acme.example/card",): 1}
    assert scrape.series("endpoint_ready") == {("acme.example/card",): 1}
    assert scrape.series("streams") == {("acme.example/card",): 1}
    assert scrape.series("registrations_total") == {("acme.example/card",): 1}
    assert scrape.series("registration_age_seconds") == {("acme.example/card",): 30}


def test_the_age_starts_again_with_each_registration(scrape: Scrape) -> None:
    for registrations, now in ((1, 100.0), (2, 150.0)):
        scrape.clock.now = now
        scrape.metrics.endpoint(EndpointState(resource="r", registered=True, registrations=registrations))
    scrape.clock.now = 160.0

    assert scrape.series("registration_age_seconds") == {("r",): 10}


def test_version_lost_log_lines_and_the_process_are_shown(scrape: Scrape) -> None:
    scrape.dropped = 7

    assert scrape.series("build_info") == {("1.2.3",): 1}
    assert scrape.series("log_lines_dropped_total") == {(): 7}
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"} <= scrape.names()
