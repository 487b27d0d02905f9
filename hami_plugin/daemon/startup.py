"""From command-line options to a checked configuration and opened vendors."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cdi.errors import CdiError
from hami_plugin.config.load import HAMI_DEVICE_CONFIG, Configuration, load
from hami_plugin.config.settings import Settings
from hami_plugin.config.vendors import AUTO, ServedSettings, VendorSettings
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostPaths
from hami_plugin.host.runtimes import USUAL_FILES, read_runtime
from hami_plugin.inventory.cdi_specs import remove_stale_specs
from hami_plugin.model.delivery import Way
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.process.concurrency import start_on_thread, wait_result
from hami_plugin.process.log import logger
from hami_plugin.sdk import Driver, Family, Vendor, load_vendor, vendor_names
from hami_plugin.simulation.hardware import SimulatedHardware, simulate_all
from hami_plugin.telemetry.logs import Format, Level, configure
from hami_plugin.vendor_boundary.guard import CheckedDriver

OWN_OPTIONS = {
    "node_name": "nodeName",
    "kubelet_dir": "kubeletDir",
    "pod_resources_socket": "podResourcesSocket",
    "hook_path": "hookPath",
    "state_dir": "stateDir",
    "log_level": "logLevel",
    "log_format": "logFormat",
}
HAMI_NODE_CONFIG = Path("/config/config.json")

PRESENCE_S = 20.0
"""How long vendors may take to find out whether the host has their hardware. All look at the same time."""

Options = Mapping[str, Any]

log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """By which ways containers receive a vendor's devices, and why so.

    ``ignored`` is why the runtime would pass over the CDI names of these ways, and what to do; empty where nothing is
    known against them.
    """

    ways: tuple[Way, ...]
    why: str
    ignored: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVendor:
    """A vendor as this process serves it."""

    vendor: Vendor
    settings: VendorSettings
    driver: Driver
    handover: Handover | None = None

    @property
    def isolated(self) -> bool:
        """Whether the vendor's library is asked in a process of its own."""
        return _isolates(self.vendor, self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlan:
    """A configuration, and the simulated machines that it leads to, if any."""

    configuration: Configuration
    simulated: tuple[SimulatedHardware, ...] = ()


def plan(options: Options, environment: Mapping[str, str]) -> StartPlan:
    """Read the configuration. Simulated machines enable their own vendors."""
    simulated = simulate_all(options["simulate"] or "", options["simulation_dir"])
    return StartPlan(configuration=load_configuration(options, environment, simulated), simulated=simulated)


def load_configuration(
    options: Options, environment: Mapping[str, str], simulated: Sequence[SimulatedHardware]
) -> Configuration:
    """The configuration as the files are now."""
    names = vendor_names()
    vendors: dict[str, dict[str, Any]] = {name: {} for name in names}
    for machine in simulated:
        vendors[machine.vendor.name] |= {"enabled": True, **machine.settings}
    if options["nvml_library"]:
        used = [machine.vendor.name for machine in simulated] or names
        takers = [name for name in used if "nvml_library" in load_vendor(name).settings.model_fields]
        if not takers:
            raise HamiError("--nvml-library: none of the vendors in use takes one", hint="leave it out")
        for name in takers:
            vendors[name]["nvmlLibrary"] = str(options["nvml_library"])
    config, device_config, node_config = files(options)
    return load(
        config=config,
        device_config=device_config if options["device_config"] else _if_there(device_config),
        node_config=node_config if options["node_config"] else _if_there(node_config),
        overrides={
            **{key: options.get(option) for option, key in OWN_OPTIONS.items()},
            **_listening(options.get("http")),
            "vendors": vendors,
        },
        environment=environment,
        vendor_settings=lambda name: load_vendor(name).settings,
        vendor_names=names,
    )


def files(options: Options) -> tuple[Path | None, Path, Path]:
    """Our own file, if one is named, and HAMi's two, which may not be there."""
    return (
        options["config"],
        options["device_config"] or HAMI_DEVICE_CONFIG,
        options["node_config"] or HAMI_NODE_CONFIG,
    )


def open_drivers(ready: StartPlan, host: HostPaths) -> tuple[ServedVendor, ...]:
    """The drivers of all vendors that are enabled, or under ``auto`` have hardware here.

    Opening one asks nothing of the hardware yet. Where machines are simulated, this host's own hardware is of no
    interest, unless somebody has written ``enabled: true``.
    """
    served: list[ServedVendor] = []
    own, vendors = ready.configuration.settings, ready.configuration.vendors
    asked = {} if ready.simulated else _ask_presence(vendors, host)
    deadline = time.monotonic() + PRESENCE_S
    for name, settings in vendors.items():
        vendor = load_vendor(name)
        automatic = settings.enabled == AUTO
        if vendor.open is None and not automatic:
            raise HamiError(
                f"vendors.{name}.enabled: true, but {vendor.title} are only scheduled here, not served on the node",
                hint="leave it out, and run the vendor's own device plugin",
            )
        if automatic and not (name in asked and _present(name, asked[name], deadline)):
            continue
        chosen, handover = decide_handover(settings, own)
        driver = _driver(vendor, chosen, replace(host, node=own.node_name), own)
        served.append(ServedVendor(vendor=vendor, settings=chosen, driver=driver, handover=handover))
    return tuple(served)


def _ask_presence(vendors: Mapping[str, VendorSettings], host: HostPaths) -> dict[str, Future[bool]]:
    """Ask all vendors that nobody has enabled or disabled whether the host has their hardware."""
    automatic = {name: settings for name, settings in vendors.items() if settings.enabled == AUTO}
    return {
        name: start_on_thread(f"presence of {name}", partial(vendor.present, settings, host))
        for name, settings in automatic.items()
        if (vendor := load_vendor(name)).open is not None
    }


def _present(name: str, asked: Future[bool], deadline: float) -> bool:
    """Whether the host has the vendor's hardware. Where the vendor fails to say, its driver reports why."""
    try:
        return bool(wait_result(asked, timeout=max(0.0, deadline - time.monotonic())))
    except Exception:
        log.exception("vendor raised an unexpected error", vendor=name, step="present")
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a driver is opened in a process of its own. It logs there as the daemon does."""

    vendor: str
    settings: VendorSettings
    host: HostPaths
    log_level: Level
    log_format: Format

    def __call__(self) -> Driver:
        configure(self.log_level, self.log_format, sys.stderr)
        open_driver = load_vendor(self.vendor).open
        assert open_driver
        return open_driver(self.settings, self.host)


def _driver(vendor: Vendor, settings: VendorSettings, host: HostPaths, own: Settings) -> Driver:
    """The vendor's driver, in this process or in one of its own. It is opened when it is first asked."""
    assert vendor.open
    if not _isolates(vendor, settings):
        return CheckedDriver(partial(vendor.open, settings, host))
    opening = Opening(
        vendor=vendor.name, settings=settings, host=host, log_level=own.log_level, log_format=own.log_format
    )
    return CheckedDriver(partial(_isolated, opening))


def _isolates(vendor: Vendor, settings: VendorSettings) -> bool:
    wish = settings.isolated if isinstance(settings, ServedSettings) else None
    return vendor.isolated if wish is None else wish


def _isolated(opening: Opening) -> Driver:
    from hami_plugin.vendor_boundary.isolated_driver import (  # noqa: PLC0415  # with multiprocessing; few vendors need it
        IsolatedDriver,
    )

    return IsolatedDriver(opening)


def decide_handover(settings: VendorSettings, own: Settings) -> tuple[VendorSettings, Handover | None]:
    """A vendor's settings with ``auto`` decided, and how that came about. None where nothing is handed over."""
    if not isinstance(settings, ServedSettings):
        return settings, None
    runtime = read_runtime([own.runtime_config] if own.runtime_config else USUAL_FILES)
    ours = own.cdi_dirs[-1]
    if settings.front_end == "dra" and Way.CDI_CRI in settings.served_ways:
        handover = Handover(ways=(Way.CDI_CRI,), why="claims are passed by CDI names", ignored=runtime.objection(ours))
        return settings.model_copy(update={"device_list_strategy": handover.ways}), handover
    if not settings.automatic:
        delivery = settings.delivery
        ignored = runtime.objection(ours) if delivery.cdi else ""
        return settings, Handover(ways=delivery.ways, why="as configured", ignored=ignored)
    if runtime.reads(ours):
        ways, why = (Way.CDI_ANNOTATIONS,), runtime.why
    else:
        ways, why = (settings.plain,), f"{runtime.why}, but not from {ours}" if runtime.cdi else runtime.why
    return settings.model_copy(update={"device_list_strategy": ways}), Handover(ways=ways, why=why)


def _listening(address: str | None) -> dict[str, str]:
    """``HOST:PORT`` as the two keys of the file; their own checks find what is wrong with it."""
    if address is None:
        return {}
    host, _, port = address.rpartition(":")
    return {"httpHost": host.strip("[]"), "httpPort": port}


def _if_there(path: Path) -> Path | None:
    return path if path.exists() else None


def report_handover(vendors: Iterable[ServedVendor], events: EventRecorder) -> None:
    """Log how containers receive devices, and warn where the runtime would ignore what was configured."""
    for served in vendors:
        handover, name = served.handover, served.vendor.name
        if handover is None:
            continue
        log.info("devices are handed over", vendor=name, by=", ".join(handover.ways), why=handover.why)
        if handover.ignored:
            log.warning("the runtime ignores cdi names", vendor=name, why=handover.ignored)
            events.node("CDISwitchedOff", handover.ignored)


def report_unlimited(families: Iterable[Family]) -> None:
    """Log the limits that nothing enforces for containers with a part of a device."""
    for family in families:
        if family.node.unlimited:
            log.warning("parts are not limited", resource=family.resources.count, what=family.node.unlimited)


def tidy_specs(directory: Path, kinds: Sequence[str]) -> None:
    """Remove our specs of other kinds. Without ``kinds`` they stay: containers that restart need their names."""
    if not kinds:
        return
    try:
        removed = remove_stale_specs(directory, kinds).removed
    except CdiError as error:
        log.warning("cdi directory not tidied", directory=str(directory), why=str(error))
    else:
        if removed:
            log.info("cdi specs removed", directory=str(directory), files=removed)
