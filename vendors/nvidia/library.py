"""NVML with types: each question that the driver asks, as one method."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, NewType

import pynvml

from vendors.nvidia.binding import Library, NvmlError

Handle = NewType("Handle", object)
EventSet = NewType("EventSet", object)

MAX_NVLINKS = int(pynvml.NVML_NVLINK_MAX_LINKS)
# Topology levels under the words that nvidia-smi prints.
_LEVELS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "INT",
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of one card. ``address`` identifies the card's handle."""

    handle: Handle
    address: int
    xid: int | None


class Nvml(Library):
    """Every method is one NVML call and raises ``NvmlError``."""

    def driver_version(self) -> str:
        return str(self.ask("nvmlSystemGetDriverVersion"))

    def nvml_version(self) -> str:
        """Such as ``12.535.104.05``: after the first dot, the driver that the library belongs to. Works unopened."""
        return str(self.ask("nvmlSystemGetNVMLVersion"))

    def cuda_version(self) -> str:
        version = int(self.ask("nvmlSystemGetCudaDriverVersion_v2"))
        return f"{version // 1000}.{version % 1000 // 10}"

    def count(self) -> int:
        return int(self.ask("nvmlDeviceGetCount"))

    def handle(self, index: int) -> Handle:
        return Handle(self.ask("nvmlDeviceGetHandleByIndex", index))

    def uuid(self, handle: Handle) -> str:
        return str(self.ask("nvmlDeviceGetUUID", handle))

    def name(self, handle: Handle) -> str:
        return str(self.ask("nvmlDeviceGetName", handle))

    def minor(self, handle: Handle) -> int:
        return int(self.ask("nvmlDeviceGetMinorNumber", handle))

    def bus_id(self, handle: Handle) -> str:
        return _text(self.ask("nvmlDeviceGetPciInfo", handle).busId)

    def memory(self, handle: Handle) -> int:
        """Total memory in bytes."""
        return int(self.ask("nvmlDeviceGetMemoryInfo", handle).total)

    def compute_mode(self, handle: Handle) -> int:
        """0 shared, 1 and 3 one process only, 2 nobody."""
        return int(self.ask("nvmlDeviceGetComputeMode", handle))

    def set_compute_mode(self, handle: Handle, mode: int) -> None:
        self.ask("nvmlDeviceSetComputeMode", handle, mode)

    def mig_enabled(self, handle: Handle) -> bool:
        current, _pending = self.ask("nvmlDeviceGetMigMode", handle)
        return bool(current)

    def mig_places(self, handle: Handle) -> int:
        """How many MIG devices a card can have at most."""
        return int(self.ask("nvmlDeviceGetMaxMigDeviceCount", handle))

    def mig_device(self, handle: Handle, index: int) -> Handle | None:
        """The MIG device at a place of a card; None when the place is free."""
        try:
            return Handle(self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index))
        except NvmlError as error:
            if error.code == pynvml.NVML_ERROR_NOT_FOUND:
                return None
            raise

    def gpu_instance(self, mig_device: Handle) -> int:
        return int(self.ask("nvmlDeviceGetGpuInstanceId", mig_device))

    def compute_instance(self, mig_device: Handle) -> int:
        return int(self.ask("nvmlDeviceGetComputeInstanceId", mig_device))

    def remapped_rows(self, handle: Handle) -> tuple[bool, bool]:
        """Whether row replacements wait for a reset, and whether one has failed."""
        _correctable, _uncorrectable, pending, failed = self.ask("nvmlDeviceGetRemappedRows", handle)
        return bool(pending), bool(failed)

    def retired_pages_pending(self, handle: Handle) -> bool:
        return bool(self.ask("nvmlDeviceGetRetiredPagesPendingStatus", handle))

    def recovery_action(self, handle: Handle) -> int:
        """What the driver itself asks for: 0 is nothing. ``NvmlError`` where it has no opinion."""
        field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        value = self.ask("nvmlDeviceGetFieldValues", handle, [field])[0]
        if value.nvmlReturn:
            error = NvmlError.of(f"field {field}", pynvml.NVMLError(value.nvmlReturn))
            if error.no_such_part:
                raise NvmlError(error.call, pynvml.NVML_ERROR_NOT_SUPPORTED, "NotSupported")
            raise error
        return int(value.value.uiVal)

    def level(self, a: Handle, b: Handle) -> str:
        """What the two cards' PCIe paths have in common; NVML's number when it has no word here."""
        number = int(self.ask("nvmlDeviceGetTopologyCommonAncestor", a, b))
        return _LEVELS.get(number, str(number))

    def nvlink_up(self, handle: Handle, link: int) -> bool:
        """Whether this link is there and up."""
        try:
            return bool(self.ask("nvmlDeviceGetNvLinkState", handle, link))
        except NvmlError as error:
            if error.no_such_part:
                return False
            raise

    def nvlink_peer(self, handle: Handle, link: int) -> str:
        return _text(self.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link).busId)

    def nvlink_to_switch(self, handle: Handle, link: int) -> bool:
        kind = self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        return bool(kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)

    def event_set(self) -> EventSet:
        return EventSet(self.ask("nvmlEventSetCreate"))

    def free(self, events: EventSet) -> None:
        self.ask("nvmlEventSetFree", events)

    def watch_xids(self, handle: Handle, events: EventSet) -> bool:
        """Register a card's XIDs; False when the card reports none."""
        wanted = int(self.ask("nvmlDeviceGetSupportedEventTypes", handle)) & pynvml.nvmlEventTypeXidCriticalError
        if not wanted:
            return False
        self.ask("nvmlDeviceRegisterEvents", handle, wanted, events)
        return True

    def wait(self, events: EventSet, milliseconds: int) -> Event:
        """Block for the next event; ``NvmlError`` with ``timeout`` when none came."""
        data = self.ask("nvmlEventSetWait_v2", events, milliseconds)
        is_xid = data.eventType == pynvml.nvmlEventTypeXidCriticalError
        return Event(
            handle=Handle(data.device), address=_address(data.device), xid=int(data.eventData) if is_xid else None
        )

    @staticmethod
    def address(handle: Handle) -> int:
        """What two handles of the same card have in common; the binding's own objects never compare equal."""
        return _address(handle)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
