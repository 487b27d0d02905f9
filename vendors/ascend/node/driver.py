"""Ascend's driver, as the daemon sees it: look at NPUs, measure links, ask for their health, over DCMI."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device, Discovery, Fault, Sighting
from hami_plugin.model.links import Link, Links, symmetric
from hami_plugin.sdk import HealthEvent
from hami_plugin.sdk.polling import Busy
from vendors.ascend.chips import AscendSettings
from vendors.ascend.node.codes import NO_DEVICE, DcmiError, NoLibraryError
from vendors.ascend.node.dcmi import BARE_NAME, PLACES, Dcmi, Unit
from vendors.ascend.node.health import SILENT, examine, silent
from vendors.ascend.node.host import HostTrees
from vendors.ascend.node.topology import link

_NO_DIE = "-".join(["00000000"] * 5)


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
        self._host = HostTrees.of(settings, paths)
        own = (BARE_NAME, *(str(settings.seen(f"{folder}/{BARE_NAME}")) for folder in PLACES))
        self._dcmi = Dcmi((str(settings.dcmi_library),) if settings.dcmi_library else own, **loading)
        self._sleep = sleep
        self._known: dict[Unit, Device] = {}
        self._told: dict[str, Fault | None] = {}
        self._busy = Busy()

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
        self._told = {uuid: sighting.fault for uuid, sighting in sightings.items()}
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
        before = self._told
        faults = {device.uuid: self._health(unit, device.uuid) for unit, device in self._known.items()}
        if faults and all(fault and fault.reason == SILENT for fault in faults.values()):
            self._dcmi.close()
            self.discover()  # tells why, when the driver as a whole is gone
            faults = dict(self._told)
        news = {uuid: fault for uuid, fault in faults.items() if fault and fault != before.get(uuid)}
        self._told |= faults
        return [HealthEvent(uuid=uuid, fault=fault, confirmed=True) for uuid, fault in news.items()]

    def close(self) -> None:
        self._dcmi.close()

    def _units(self) -> list[Unit]:
        try:
            if not self._dcmi.is_open:
                self._dcmi.open()
            units = list(self._dcmi.units())
        except NoLibraryError as error:
            raise self._host.unavailable(str(error)) from error
        except DcmiError as error:
            self._dcmi.close()
            words = f"{error}; this driver has DCMI 2 only" if self._dcmi.speaks_only_v2 else str(error)
            raise self._host.unavailable(words, error) from error
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
