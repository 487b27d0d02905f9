"""Faults by name: what each changes in the state file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from vendors.nvidia.simulation import limits, records
from vendors.nvidia.simulation.cases import NOTHING, Case, Value, number_of, sets, takes
from vendors.nvidia.simulation.failing import fail_call, forget, not_supported
from vendors.nvidia.simulation.layout import Device
from vendors.nvidia.simulation.parts import Event, Process
from vendors.nvidia.simulation.state import State
from vendors.nvidia.simulation.symbols import GROUPS

EVENT_DOUBLE_BIT: Final = 2
EVENT_XID: Final = 8
QUIET: Final = "quiet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: what it does, in words and in code."""

    help: str
    apply: Callable[[Case], None]


def apply(state: State, fault: str, device: int | None, value: Value) -> None:
    """Cause ``fault``. ValueError names the faults, the devices or the values there are."""
    known = FAULTS.get(fault)
    if known is None:
        raise ValueError(f"no fault is named {fault!r}; choose from: {', '.join(FAULTS)}")
    count = len(state.devices)
    if device is not None and not 0 <= device < count:
        raise ValueError(f"no device has index {device}; this machine has 0 to {count - 1}")
    targets = tuple(range(count)) if device is None else (device,)
    known.apply(Case(state=state, targets=targets, everywhere=device is None, value=value))


def _lost(case: Case) -> None:
    if case.value not in (*NOTHING, QUIET):
        raise ValueError(
            f"{case.value!r} is neither empty nor {QUIET!r} (the event wait then says nothing of the loss)"
        )
    for device in case.devices:
        device.quiet = case.value == QUIET
        device.lost = 1


def _event(state: State, index: int, kind: int, data: int) -> None:
    sequence = state.header.event_sequence + 1
    state.header.events[sequence % limits.EVENTS] = Event(
        sequence=sequence,
        type=kind,
        data=data,
        device=index,
        gpu_instance=limits.NONE,
        compute_instance=limits.NONE,
    )
    state.header.event_sequence = sequence


def _xid(case: Case) -> None:
    number = number_of(case.value, "the XID, such as 79", low=1)
    for index in case.targets:
        _event(case.state, index, EVENT_XID, number)


def _ecc(case: Case) -> None:
    number = number_of(case.value, "how many double-bit errors", low=1, high=2**31)
    for index, device in zip(case.targets, case.devices, strict=True):
        device.ecc_uncorrected += number
        device.rows_uncorrected += number
        device.rows_pending = 1
        _event(case.state, index, EVENT_DOUBLE_BIT, number)


def _slow(case: Case) -> None:
    number = number_of(case.value, "milliseconds for each call", high=600_000)
    if case.everywhere:
        case.state.header.slow_ms = number
        return
    for device in case.devices:
        device.slow_ms = number


def _back(case: Case) -> None:
    for device in case.devices:
        _restore(device)
    header = case.state.header
    if case.everywhere:
        header.slow_ms = header.no_devices = header.failure_count = 0
    else:
        forget(case.state, case.targets)


def _restore(device: Device) -> None:
    """As after a reset: healthy, plugged in, and a pending MIG mode takes effect."""
    device.lost = device.quiet = device.unplugged = device.asymmetric = device.slow_ms = device.hang = 0
    device.recovery_action = device.rows_corrected = device.rows_uncorrected = device.rows_pending = 0
    device.ecc_corrected = device.ecc_uncorrected = 0
    device.mig_current = device.mig_pending


def _driver(mode: int) -> Callable[[Case], None]:
    def change(case: Case) -> None:
        case.state.header.driver = mode
        if mode == limits.DRIVER_GONE:
            case.state.header.epoch += 1

    return change


def _driver_back(case: Case) -> None:
    header = case.state.header
    header.driver = limits.DRIVER_LOADED
    if case.value not in NOTHING:
        header.driver_version = str(case.value).encode()
        header.nvml_version = records.nvml_version(str(case.value)).encode()
    for device in case.state.devices:
        device.mig_current = device.mig_pending


def _no_devices(case: Case) -> None:
    case.state.header.no_devices = 1


def _plug(case: Case) -> None:
    for device in case.devices:
        device.unplugged = 0
    if case.everywhere:
        case.state.header.no_devices = 0


def _utilization(case: Case) -> None:
    busy, _, memory = str(case.value).partition(":")
    for device in case.devices:
        device.gpu_percent = number_of(busy, "percent busy", high=100)
        device.memory_percent = number_of(memory or busy, "percent of memory bandwidth", high=100)


def _process(case: Case) -> None:
    """``pid:MiB[:gi:ci]``; MiB 0 ends the process."""
    parts = [number_of(part, "pid:MiB or pid:MiB:gi:ci", high=2**31) for part in str(case.value).split(":")]
    if len(parts) not in (2, 4):
        raise ValueError(f"{case.value!r} does not read pid:MiB or pid:MiB:gi:ci")
    pid, mib, gi, ci = (*parts, limits.NONE, limits.NONE)[:4]
    for device in case.devices:
        kept = [Process.from_buffer_copy(p) for p in device.processes[: device.process_count] if p.pid != pid]
        if mib:
            busy = device.gpu_percent
            kept.append(Process(pid=pid, used=mib << 20, gpu_instance=gi, compute_instance=ci, sm_percent=busy))
        if len(kept) > limits.PROCESSES:
            raise ValueError(f"more than {limits.PROCESSES} processes do not fit on one device")
        for position, process in enumerate(kept):
            device.processes[position] = process
        device.process_count = len(kept)
        device.used = sum(process.used for process in kept)


FAULTS: Final[Mapping[str, Fault]] = MappingProxyType(
    {
        "lost": Fault(help="falls off the bus; value 'quiet': the event wait says nothing", apply=_lost),
        "back": Fault(
            help="clears every fault of the device; without a device, of everything but the driver", apply=_back
        ),
        "xid": Fault(help="value: the XID; queues one critical event", apply=_xid),
        "ecc": Fault(help="value: how many double-bit errors are added", apply=_ecc),
        "not-supported": Fault(help=f"value: a symbol, or one of {', '.join(GROUPS)}", apply=not_supported),
        "slow": Fault(help="value: milliseconds for each call; without a device, for all calls", apply=_slow),
        "hang": Fault(help="calls block until 'back'", apply=sets("hang", 1)),
        "asymmetric": Fault(help="reports one NVLink fewer to each peer", apply=sets("asymmetric", 1)),
        "driver-gone": Fault(help="every call and init: DriverNotLoaded", apply=_driver(limits.DRIVER_GONE)),
        "mismatch": Fault(help="init: LibRmVersionMismatch", apply=_driver(limits.DRIVER_MISMATCH)),
        "driver-back": Fault(help="value, if any: the new driver version", apply=_driver_back),
        "no-devices": Fault(help="count 0, until 'back' or 'plug' without a device", apply=_no_devices),
        "unplug": Fault(help="count n-1, later indices shift", apply=sets("unplugged", 1)),
        "plug": Fault(help="undoes unplug", apply=_plug),
        "fail-call": Fault(help="value: symbol:code; code 0 undoes it", apply=fail_call),
        "recovery-action": Fault(
            help="value: 0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset",
            apply=takes("recovery_action", "0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset", high=4),
        ),
        "compute-mode": Fault(
            help="value: 0 default, 2 prohibited, 3 exclusive process",
            apply=takes("compute_mode", "0 default, 2 prohibited, 3 exclusive process", high=3),
        ),
        "used-memory": Fault(
            help="value: MiB in use", apply=takes("used", "MiB in use", high=2**31 - 1, scale=1 << 20)
        ),
        "process": Fault(help="value: pid:MiB or pid:MiB:gi:ci; 0 MiB ends it", apply=_process),
        "utilization": Fault(help="value: percent, or percent:memory percent", apply=_utilization),
        "temperature": Fault(help="value: degrees Celsius", apply=takes("temperature", "degrees Celsius", high=150)),
    }
)
