"""Ascend's driver over DCMI: discovery, health, links."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device, Discovery, Fault, Link, Links, Sighting, symmetric
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.sdk import HealthEvent
from hami_plugin.sdk.pci import look
from hami_plugin.sdk.polling import QueriedDevice
from vendors.ascend.dcmi import BARE_NAME, NO_DEVICE, NOT_PERMITTED, PLACES, Dcmi, DcmiError, NoDcmiError, Unit
from vendors.ascend.settings import NPUS, AscendSettings, NodeSettings

SILENT: Final = "NpuSilent"
_ALARMS = {1: "NpuMinorAlarm", 2: "NpuMajorAlarm", 3: "NpuCriticalAlarm"}


def examine(dcmi: Dcmi, unit: Unit, *, shared: bool) -> Fault | None:
    """What is wrong at present; the driver itself says when an alarm is over.

    ``shared``: containers of hami-core mode are to open the NPU together.
    """
    try:
        grade = dcmi.health(unit)
    except DcmiError as error:
        return silent(error)
    if not grade:
        return _alone(dcmi, unit) if shared else None
    message = f"the driver's health grade is {grade}; its error codes: {_codes(dcmi, unit)}"
    return Fault(reason=_ALARMS.get(grade, "NpuNotStarted"), message=message)


def silent(error: DcmiError) -> Fault:
    return Fault(reason=SILENT, message=str(error))


def _codes(dcmi: Dcmi, unit: Unit) -> str:
    try:
        return ", ".join(f"{code:#010x}" for code in dcmi.errors(unit)) or "none"
    except DcmiError as error:
        return f"unknown ({error})"


def _alone(dcmi: Dcmi, unit: Unit) -> Fault | None:
    """The driver may forbid that several containers open an NPU. Old drivers do not tell."""
    with suppress(DcmiError):
        if not dcmi.shareable(unit):
            remedy = f"npu-smi set -t device-share -i {unit.card} -c {unit.chip} -d 1"
            return Fault(reason="NpuNotShareable", message=f"only one container may open it; run {remedy}")
    return None


LEVEL_SCORES = {"INT": 60, "PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}
LANE_SCORE = 100
FABRIC = {3: "HCCS", 6: "SIO", 7: "HCCS_SW"}
"""Chip to chip, inside one card, and through a switch."""
LEVELS = {1: "SYS", 2: "PHB", 4: "PXB", 5: "PIX"}


def link(kind: int, *, same_numa: bool) -> Link:
    """A pair's connection. Where the fabric hides the PCIe level, the NUMA nodes tell as much as is known of it.

    ValueError for a number that DCMI has not had so far.
    """
    if kind in FABRIC:
        level = "INT" if FABRIC[kind] == "SIO" else "NODE" if same_numa else "SYS"
        return Link(score=LEVEL_SCORES[level] + LANE_SCORE, label=FABRIC[kind], level=level, lanes=1)
    if kind not in LEVELS:
        raise ValueError(f"DCMI names an unknown connection, {kind}")
    level = LEVELS[kind]
    return Link(score=LEVEL_SCORES[level], label=level, level=level)


CONTROL_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendHost:
    """``/sys`` and ``/dev`` of the node, wherever this process sees them."""

    sysfs: Path
    dev: Path

    @classmethod
    def of(cls, settings: NodeSettings, paths: HostPaths) -> AscendHost:
        return cls(sysfs=settings.sysfs_root or paths.sysfs, dev=settings.dev_root or paths.dev)

    def numa_node(self, address: str) -> int | None:
        """The NUMA node of a PCI address; None when the kernel does not know one."""
        return look(self.sysfs / "bus/pci/devices" / address).numa

    def plugged_in(self) -> int:
        """How many NPUs are on the bus, whatever drives them."""
        return len(NPUS.plugged(HostPaths(sysfs=self.sysfs)))

    def unavailable(self, problem: str, error: DcmiError | None = None) -> DriverUnavailableError:
        """The reason that explains most: no NPU, else no kernel module, else what the library said.

        Without ``error`` there is no library to ask.
        """
        count, manager = self.plugged_in(), self.dev / CONTROL_NODES[0]
        if not count:
            return DriverUnavailableError(
                DriverReason.NO_DEVICES, f"no NPU is on the PCI bus ({problem})", hint="npu-smi info lists them"
            )
        if not manager.exists():
            return DriverUnavailableError(
                DriverReason.NO_DRIVER,
                f"{count} NPUs are on the PCI bus, and {manager} is missing ({problem})",
                hint="install Ascend's driver, or look in dmesg why its module was not loaded",
            )
        if error is None:
            return DriverUnavailableError(
                DriverReason.NO_LIBRARY,
                f"the driver's library cannot be loaded: {problem}",
                hint="mount the driver into this container, and set containerDriverRoot or dcmiLibrary",
            )
        if error.code == NOT_PERMITTED:
            return DriverUnavailableError(
                DriverReason.NO_PERMISSION, problem, hint="run the daemon as root, with the host's /dev"
            )
        return DriverUnavailableError(DriverReason.FAILED, problem, hint="npu-smi info shows whether the driver works")


_NO_DIE = "-".join(["00000000"] * 5)


def library_places(settings: AscendSettings) -> tuple[str, ...]:
    """Where the driver's library may be."""
    if settings.dcmi_library:
        return (str(settings.dcmi_library),)
    return (BARE_NAME, *(str(settings.seen(f"{folder}/{BARE_NAME}")) for folder in PLACES))


class AscendDriver:
    """A ``Driver`` over DCMI. The library is loaded at the first look."""

    def __init__(
        self,
        settings: AscendSettings,
        paths: HostPaths,
        *,
        sleep: Callable[[float], None] = time.sleep,
        **loading: Callable[[str], Any],
    ) -> None:
        self._soft = settings.soft
        self._chips = {chip.driver_name: chip for chip in settings.chips if chip.driver_name}
        self._host = AscendHost.of(settings, paths)
        self._dcmi = Dcmi(library_places(settings), **loading)
        self._sleep = sleep
        self._known: dict[Unit, Device] = {}
        self._reported: dict[str, Fault | None] = {}
        self._busy = QueriedDevice()

    @property
    def busy_with(self) -> str | None:
        return self._busy.uuid

    def discover(self) -> Discovery:
        units = self._units()
        problems: list[str] = []
        sightings: dict[str, Sighting] = {}
        for unit in units:
            seen = self._look(unit)
            if isinstance(seen, str):
                problems.append(seen)
            elif first := sightings.get(seen.device.uuid):
                fault = Fault(reason="DuplicateUuid", message=f"{unit} has the same die number as another NPU")
                sightings[seen.device.uuid] = Sighting(device=first.device, fault=fault)
            else:
                sightings[seen.device.uuid] = seen
        if not sightings:
            self._dcmi.close()
            raise DriverUnavailableError(
                DriverReason.NO_DEVICES, "no NPU can be served: " + "; ".join(problems), hint="see vnpus.configs"
            )
        self._known = {unit: device for unit, device in self._known.items() if unit in units}
        self._reported = {uuid: sighting.fault for uuid, sighting in sightings.items()}
        return Discovery(
            sightings=tuple(sorted(sightings.values(), key=lambda seen: seen.device.index)),
            problems=tuple(problems),
            facts=self._facts(),
        )

    def links(self) -> Links:
        directed: dict[tuple[str, str], Link] = {}
        problems: list[str] = []
        for one, device in self._known.items():
            for other, peer in self._known.items():
                if one == other:
                    continue
                try:
                    with self._busy.asking(device.uuid):
                        kind = self._dcmi.topology(one, other)
                    same_numa = device.numa is not None and device.numa == peer.numa
                    directed[device.uuid, peer.uuid] = link(kind, same_numa=same_numa)
                except (DcmiError, ValueError) as error:
                    problems.append(f"{one} to {other}: {error}")
        return symmetric(directed, problems)

    def poll(self, timeout: float) -> Sequence[HealthEvent]:
        """DCMI's own waiting would hold the thread; asking for all NPUs' health takes a few milliseconds."""
        self._sleep(timeout)
        before = self._reported
        faults = {device.uuid: self._health(unit, device.uuid) for unit, device in self._known.items()}
        if faults and all(fault and fault.reason == SILENT for fault in faults.values()):
            self._dcmi.close()
            self.discover()  # tells why, when the driver as a whole is gone
            faults = dict(self._reported)
        news = {uuid: fault for uuid, fault in faults.items() if fault and fault != before.get(uuid)}
        self._reported |= faults
        return [HealthEvent(uuid=uuid, fault=fault, confirmed=True) for uuid, fault in news.items()]

    def load(self) -> Mapping[str, DeviceLoad]:
        """What DCMI tells of each chip as a whole."""
        return {device.uuid: self._load(unit, device.uuid) for unit, device in self._known.items()}

    def _load(self, unit: Unit, uuid: str) -> DeviceLoad:
        used = busy = None
        with self._busy.asking(uuid):
            with suppress(DcmiError):
                used = self._dcmi.memory_used(unit) << 20
            with suppress(DcmiError):
                busy = self._dcmi.busy(unit)
        return DeviceLoad(memory_used=used, utilization=busy)

    def close(self) -> None:
        self._dcmi.close()

    def _units(self) -> list[Unit]:
        try:
            if not self._dcmi.is_open:
                self._dcmi.open()
            units = list(self._dcmi.units())
        except NoDcmiError as error:
            raise self._host.unavailable(str(error)) from error
        except DcmiError as error:
            self._dcmi.close()
            why = f"{error}; this driver has DCMI 2 only" if self._dcmi.speaks_only_v2 else str(error)
            raise self._host.unavailable(why, error) from error
        if not units:
            self._dcmi.close()
            nothing = DcmiError("dcmi_get_card_list", NO_DEVICE)
            raise self._host.unavailable("the driver lists no NPU", nothing)
        return units

    def _look(self, unit: Unit) -> Sighting | str:
        """One NPU; in words, what keeps one from being served that cannot be named."""
        known = self._known.get(unit)
        try:
            with self._busy.asking(known.uuid if known else None):
                device = self._described(unit)
        except DcmiError as error:
            return Sighting(device=known, fault=silent(error)) if known else f"{unit}: {error}"
        if isinstance(device, str):
            return device
        self._known[unit] = device
        return Sighting(device=device, fault=self._health(unit, device.uuid))

    def _described(self, unit: Unit) -> Device | str:
        name, uuid = self._dcmi.chip_name(unit), self._dcmi.die(unit)
        chip = self._chips.get(name)
        if chip is None:
            return f"{unit} is a {name!r}, which no entry of vnpus.configs names as its chipName"
        if uuid == _NO_DIE:
            return f"{unit} answers a die number of zeros"
        number, address = self._dcmi.physical_id(unit), self._dcmi.address(unit)
        return Device(
            uuid=uuid,
            family=chip.device_type,
            index=number,
            model=name,
            memory=chip.memory_allocatable,
            minor=number,
            pci=address,
            numa=self._host.numa_node(address),
            mode="hami-core" if self._soft else "template",
        )

    def _health(self, unit: Unit, uuid: str) -> Fault | None:
        with self._busy.asking(uuid):
            return examine(self._dcmi, unit, shared=self._soft)

    def _facts(self) -> dict[str, str]:
        with suppress(DcmiError):
            return {"driver": self._dcmi.version()}
        return {}
