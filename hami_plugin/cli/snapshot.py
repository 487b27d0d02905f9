"""One discovery of a machine's devices, and facts about vendors, for commands that print them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from hami_plugin.daemon.startup import Options, ServedVendor, open_drivers, plan
from hami_plugin.errors import DriverUnavailableError, HamiError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device, Health, Sighting, Snapshot
from hami_plugin.process.log import logger
from hami_plugin.sdk import Driver, Vendor, load_vendor, vendor_names

log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """A vendor and its devices."""

    vendor: Vendor
    snapshot: Snapshot


def discover_all(options: Options, environment: Mapping[str, str]) -> Iterator[Discovered]:
    """Discover the devices of each vendor that is served here."""
    named = {"NODE_NAME": "this-node", **environment}
    return discover_each(open_drivers(plan(options, named), HostPaths()))


def discover_each(vendors: Iterable[ServedVendor]) -> Iterator[Discovered]:
    """Discover each vendor's devices and links. Vendors without devices are skipped if another has some.

    ``HamiError`` if none has any. An unexpected error of one vendor is logged, and does not affect the others.
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
        yield Discovered(vendor=served.vendor, snapshot=snapshot)
    if not found:
        why = "; ".join(problems) or "this host has no hardware of any vendor"
        raise HamiError(f"no devices found: {why}", hint="try --simulate dgx-h100")


def _close(served: ServedVendor) -> None:
    try:
        served.driver.close()
    except Exception:
        log.exception("vendor raised an unexpected error", vendor=served.vendor.name, step="close")


def vendor_facts() -> list[dict[str, Any]]:
    """The output of `hami-plugin vendors`: every vendor's device types with their default names."""
    facts = []
    for vendor in (load_vendor(name) for name in vendor_names()):
        families = vendor.families(vendor.settings.model_validate({}))
        facts.append(
            {
                "vendor": vendor.name,
                "title": vendor.title,
                "families": {
                    f.resources.device_type: {**f.resources.names, **asdict(f.rules.annotations)} for f in families
                },
            }
        )
    return facts


def snapshot_of(driver: Driver) -> Snapshot:
    """The devices and links of a driver. ``DriverUnavailableError`` if it does not answer."""
    discovery = driver.discover()
    devices = [_described(sighting) for sighting in discovery.sightings]
    return Snapshot(
        devices=tuple(sorted(devices, key=lambda device: device.order)),
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
