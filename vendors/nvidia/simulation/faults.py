"""Faults by name: what each changes in the state file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from vendors.nvidia.simulation import layout, records
from vendors.nvidia.simulation.layout import FAILURES, NONE, Device, Event, Failure, Process
from vendors.nvidia.simulation.state import State
from vendors.nvidia.simulation.symbols import ALIASES, GROUPS, SYMBOLS

Value = int | str

NOTHING: Final = (0, "", "0")
"""Ways to give no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One injection: the devices it is meant for, which are all of them when none was named (``everywhere``)."""

    state: State
    targets: tuple[int, ...]
    everywhere: bool
    value: Value

    @property
    def devices(self) -> list[Device]:
        return [self.state.devices[index] for index in self.targets]


def number_of(value: Value, what: str, low: int = 0, high: int = 2**63 - 1) -> int:
    """The value as a number within bounds; ValueError says ``what`` it should have been."""
    try:
        number = int(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is not a number: {what}") from error
    if not low <= number <= high:
        raise ValueError(f"{number} is not between {low} and {high}: {what}")
    return number


def sets(field: str, number: int) -> Callable[[Case], None]:
    """A fault that is one word of the device's record."""

    def change(case: Case) -> None:
        for device in case.devices:
            setattr(device, field, number)

    return change


def takes(field: str, what: str, low: int = 0, high: int = 2**32 - 1, scale: int = 1) -> Callable[[Case], None]:
    """A fault whose value is written to the device's record."""

    def change(case: Case) -> None:
        number = number_of(case.value, what, low, high) * scale
        for device in case.devices:
            setattr(device, field, number)

    return change


NOT_SUPPORTED: Final = 3


def not_supported(case: Case) -> None:
    name = str(case.value)
    symbols = list(GROUPS.get(name, ())) or [_symbol(name, f"one of the groups {', '.join(GROUPS)}, or a symbol")]
    _fail(case, symbols, NOT_SUPPORTED)


def fail_call(case: Case) -> None:
    name, _, code = str(case.value).partition(":")
    symbol = _symbol(name, "symbol:code, such as nvmlDeviceGetMemoryInfo:15")
    _fail(case, [symbol], number_of(code, "a return code, such as 15 for a lost GPU", high=999))


def _symbol(name: str, form: str) -> str:
    symbol = ALIASES.get(name, name)
    if symbol not in SYMBOLS:
        raise ValueError(f"{name!r} is not a symbol of the simulated library; give {form}")
    return symbol


def forget(state: State, devices: Collection[int]) -> None:
    """Take back what these devices were told."""
    _store(state, [failure for failure in _failures(state) if failure.device not in devices])


def _fail(case: Case, symbols: list[str], code: int) -> None:
    """Make ``symbols`` answer ``code``; 0 takes the failures back."""
    places = {NONE} if case.everywhere else set(case.targets)
    kept = [
        failure
        for failure in _failures(case.state)
        if not (failure.device in places and failure.symbol.decode() in symbols)
    ]
    if code:
        kept += [Failure(symbol=s.encode(), device=place, code=code) for s in symbols for place in sorted(places)]
    _store(case.state, kept)


def _failures(state: State) -> list[Failure]:
    """Copies: the originals are overwritten while the list is stored."""
    return [Failure.from_buffer_copy(failure) for failure in state.header.failures[: state.header.failure_count]]


def _store(state: State, failures: list[Failure]) -> None:
    if len(failures) > FAILURES:
        raise ValueError(f"{len(failures)} failing calls are more than the {FAILURES} that fit; clear some first")
    for position, failure in enumerate(failures):
        state.header.failures[position] = failure
    state.header.failure_count = len(failures)


EVENT_DOUBLE_BIT: Final = 2
EVENT_XID: Final = 8
QUIET: Final = "quiet"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFault:
    """One fault: what it does, in words and in code."""

    help: str
    apply: Callable[[Case], None]


def apply_fault(state: State, fault: str, device: int | None, value: Value) -> None:
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
    state.header.events[sequence % layout.EVENTS] = Event(
        sequence=sequence,
        type=kind,
        data=data,
        device=index,
        gpu_instance=layout.NONE,
        compute_instance=layout.NONE,
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
        if mode == layout.DRIVER_GONE:
            case.state.header.epoch += 1

    return change


def _driver_back(case: Case) -> None:
    header = case.state.header
    header.driver = layout.DRIVER_LOADED
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
    pid, mib, gi, ci = (*parts, layout.NONE, layout.NONE)[:4]
    for device in case.devices:
        kept = [Process.from_buffer_copy(p) for p in device.processes[: device.process_count] if p.pid != pid]
        if mib:
            busy = device.gpu_percent
            kept.append(Process(pid=pid, used=mib << 20, gpu_instance=gi, compute_instance=ci, sm_percent=busy))
        if len(kept) > layout.PROCESSES:
            raise ValueError(f"more than {layout.PROCESSES} processes do not fit on one device")
        for position, process in enumerate(kept):
            device.processes[position] = process
        device.process_count = len(kept)
        device.used = sum(process.used for process in kept)


FAULTS: Final[Mapping[str, SimulatedFault]] = MappingProxyType(
    {
        "lost": SimulatedFault(help="falls off the bus; value 'quiet': the event wait says nothing", apply=_lost),
        "back": SimulatedFault(
            help="clears every fault of the device; without a device, of everything but the driver", apply=_back
        ),
        "xid": SimulatedFault(help="value: the XID; queues one critical event", apply=_xid),
        "ecc": SimulatedFault(help="value: how many double-bit errors are added", apply=_ecc),
        "not-supported": SimulatedFault(help=f"value: a symbol, or one of {', '.join(GROUPS)}", apply=not_supported),
        "slow": SimulatedFault(help="value: milliseconds for each call; without a device, for all calls", apply=_slow),
        "hang": SimulatedFault(help="calls block until 'back'", apply=sets("hang", 1)),
        "asymmetric": SimulatedFault(help="reports one NVLink fewer to each peer", apply=sets("asymmetric", 1)),
        "driver-gone": SimulatedFault(help="every call and init: DriverNotLoaded", apply=_driver(layout.DRIVER_GONE)),
        "mismatch": SimulatedFault(help="init: LibRmVersionMismatch", apply=_driver(layout.DRIVER_MISMATCH)),
        "driver-back": SimulatedFault(help="value, if any: the new driver version", apply=_driver_back),
        "no-devices": SimulatedFault(help="count 0, until 'back' or 'plug' without a device", apply=_no_devices),
        "unplug": SimulatedFault(help="count n-1, later indices shift", apply=sets("unplugged", 1)),
        "plug": SimulatedFault(help="undoes unplug", apply=_plug),
        "fail-call": SimulatedFault(help="value: symbol:code; code 0 undoes it", apply=fail_call),
        "recovery-action": SimulatedFault(
            help="value: 0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset",
            apply=takes("recovery_action", "0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset", high=4),
        ),
        "compute-mode": SimulatedFault(
            help="value: 0 default, 2 prohibited, 3 exclusive process",
            apply=takes("compute_mode", "0 default, 2 prohibited, 3 exclusive process", high=3),
        ),
        "used-memory": SimulatedFault(
            help="value: MiB in use", apply=takes("used", "MiB in use", high=2**31 - 1, scale=1 << 20)
        ),
        "process": SimulatedFault(help="value: pid:MiB or pid:MiB:gi:ci; 0 MiB ends it", apply=_process),
        "utilization": SimulatedFault(help="value: percent, or percent:memory percent", apply=_utilization),
        "temperature": SimulatedFault(
            help="value: degrees Celsius", apply=takes("temperature", "degrees Celsius", high=150)
        ),
    }
)
