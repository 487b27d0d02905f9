"""The project's own driver on the real library: one look, the links, and the annotations that would be written."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device, Discovery, Health, Sighting, Snapshot
from hami_plugin.node_status.annotations import Style, wanted_annotations
from hami_plugin.sdk import Family
from vendors.nvidia.family import families
from vendors.nvidia.gpu_check.options import Options
from vendors.nvidia.gpu_check.readonly import Timings, loader
from vendors.nvidia.gpu_check.verdicts import Findings
from vendors.nvidia.nvml import NvmlDriver

CHOSEN_FAULTS = frozenset({"MigEnabled", "ExclusiveComputeMode", "ProhibitedComputeMode"})
"""What an administrator has set up so. It keeps a card from being shared, and is no difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the driver showed. Times in milliseconds: the first look opens the library."""

    snapshot: Snapshot
    discovery: Discovery
    family: Family
    annotations: Mapping[str, str | None]
    times_ms: Mapping[str, float]


def look(options: Options, paths: HostPaths, timings: Timings) -> Look:
    """``DriverUnavailableError`` when there is no driver or no card."""
    driver = NvmlDriver(options.settings(), paths, load=loader(timings))
    try:
        moments = [time.perf_counter()]
        driver.discover()
        moments.append(time.perf_counter())
        discovery = driver.discover()
        moments.append(time.perf_counter())
        links = driver.links()
        moments.append(time.perf_counter())
    finally:
        driver.close()
    devices = sorted(map(_described, discovery.sightings), key=lambda device: device.index)
    snapshot = Snapshot(devices=tuple(devices), links=links, ready=True, reason="", facts=discovery.facts)
    (family,) = families(options.settings())
    spans = zip(("first look", "second look", "links"), moments, moments[1:], strict=False)
    return Look(
        snapshot=snapshot,
        discovery=discovery,
        family=family,
        annotations=wanted_annotations(family, snapshot, Style()),
        times_ms={name: round((end - start) * 1000, 3) for name, start, end in spans},
    )


def check_discovery(findings: Findings, seen: Look, count: int) -> None:
    """Every card is seen, well and measured."""
    with findings.about("discovery"):
        findings.equal("cards", count, len(seen.snapshot.devices))
        findings.equal("cards that nobody could name", [], list(seen.discovery.problems))
        pairs = len(seen.snapshot.devices) * (len(seen.snapshot.devices) - 1) // 2
        findings.equal("pairs that were measured", pairs, len(seen.snapshot.links.pairs))
        findings.equal("links that could not be measured", [], list(seen.snapshot.links.problems))
        findings.equal("pairs whose directions differ", [], list(seen.snapshot.links.asymmetric))
    for sighting in seen.discovery.sightings:
        with findings.about("discovery", sighting.device.index):
            fault = sighting.fault
            if fault and fault.reason in CHOSEN_FAULTS:
                findings.not_applicable("fault", fault.message, fault.reason)
            else:
                findings.equal("fault", None, fault and f"{fault.reason}: {fault.message}")


def _described(sighting: Sighting) -> Device:
    fault = sighting.fault
    if fault is None:
        return sighting.device
    return replace(sighting.device, health=Health.UNHEALTHY, reason=fault.reason, message=fault.message)
