"""One look at the devices of a machine, and at what vendors are called: for commands that only tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from hami_plugin.daemon.startup import Options, Served, opened, plan
from hami_plugin.errors import DriverUnavailableError, HamiError
from hami_plugin.host.paths import HostPaths
from hami_plugin.log import logger
from hami_plugin.model.device import Device, Health, Sighting, Snapshot
from hami_plugin.sdk import Driver, Vendor, load_vendor, vendor_names

log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A vendor and its devices."""

    vendor: Vendor
    snapshot: Snapshot


def look(options: Options, environment: Mapping[str, str]) -> Iterator[Seen]:
    """One look at the devices of each vendor that is served here."""
    named = {"NODE_NAME": "this-node", **environment}
    return seen(opened(plan(options, named), HostPaths()))


def seen(vendors: Iterable[Served]) -> Iterator[Seen]:
    """One look at each vendor's devices, links included. One without devices is passed over if another has some.

    ``HamiError`` where none has any. A mistake in one vendor's code is logged, and hides nobody else's devices.
    """
    problems: list[str] = []
    found = 0
    for served in vendors:
        try:
            snapshot = snapshot_of(served.driver)
        except DriverUnavailableError as error:
            problems.append(f"{served.vendor.title}: {error.reason}: {error}")
            continue
        except Exception as error:
            log.exception("vendor raised an unexpected error", vendor=served.vendor.name, step="discover")
            problems.append(f"{served.vendor.title}: {type(error).__name__}: {error}")
            continue
        finally:
            _close(served)
        found += 1
        yield Seen(vendor=served.vendor, snapshot=snapshot)
    if not found:
        why = "; ".join(problems) or "this host shows no hardware of any vendor"
        raise HamiError(f"no devices were found: {why}", hint="try it with --simulate dgx-h100")


def _close(served: Served) -> None:
    try:
        served.driver.close()
    except Exception:
        log.exception("vendor raised an unexpected error", vendor=served.vendor.name, step="close")


def vendor_facts() -> list[dict[str, Any]]:
    """What `hami-plugin vendors` prints: every vendor's families with their default names."""
    facts = []
    for vendor in (load_vendor(name) for name in vendor_names()):
        families = vendor.families(vendor.settings.model_validate({}))
        facts.append(
            {
                "vendor": vendor.name,
                "title": vendor.title,
                "families": {f.device_type: {**f.resources.names, **asdict(f.annotations)} for f in families},
            }
        )
    return facts


def snapshot_of(driver: Driver) -> Snapshot:
    """One look at a driver. ``DriverUnavailableError`` when it does not answer."""
    discovery = driver.discover()
    devices = [_described(sighting) for sighting in discovery.sightings]
    return Snapshot(
        devices=tuple(sorted(devices, key=lambda device: device.index)),
        links=driver.links(),
        ready=True,
        reason="",
        facts=discovery.facts,
    )


def _described(sighting: Sighting) -> Device:
    fault = sighting.fault
    if fault is None:
        return sighting.device
    return replace(sighting.device, health=Health.UNHEALTHY, reason=fault.reason, message=fault.message)
