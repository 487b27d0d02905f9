"""Faults by name: what each changes in the state file, and what the library exports, which some faults take by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from vendors.nvidia.simulation import layout, records
from vendors.nvidia.simulation.layout import FAILURES, NONE, SimDevice, SimEvent, SimFailure, SimProcess
from vendors.nvidia.simulation.state import MachineState, make_instance


def _device(text: str) -> tuple[str, ...]:
    return tuple(f"nvmlDeviceGet{name}" for name in text.split())


GROUPS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "system": (
            "nvmlErrorString",
            "nvmlInitWithFlags",
            "nvmlShutdown",
            "nvmlSystemGetCudaDriverVersion",
            "nvmlSystemGetCudaDriverVersion_v2",
            "nvmlSystemGetDriverVersion",
            "nvmlSystemGetNVMLVersion",
        ),
        "handles": _device("Count_v2 HandleByIndex_v2 HandleByPciBusId_v2 HandleBySerial HandleByUUID"),
        "identity": (
            *_device(
                "AddressingMode Architecture Brand ComputeMode CudaComputeCapability Index MinorNumber Name "
                "NumGpuCores PciInfo_v3 PersistenceMode Serial UUID"
            ),
            "nvmlDeviceSetComputeMode",
        ),
        "affinity": _device("CpuAffinity MemoryAffinity NumaNodeId"),
        "memory": _device("BAR1MemoryInfo MemoryInfo MemoryInfo_v2"),
        "mig": (
            *_device(
                "Attributes_v2 ComputeInstanceId DeviceHandleFromMigDeviceHandle GpuInstanceById GpuInstanceId "
                "GpuInstancePossiblePlacements_v2 GpuInstanceProfileInfo GpuInstanceProfileInfoV "
                "GpuInstanceRemainingCapacity GpuInstances MaxMigDeviceCount MigDeviceHandleByIndex MigMode"
            ),
            "nvmlComputeInstanceDestroy",
            "nvmlComputeInstanceGetInfo_v2",
            "nvmlDeviceCreateGpuInstance",
            "nvmlDeviceCreateGpuInstanceWithPlacement",
            "nvmlDeviceIsMigDeviceHandle",
            "nvmlDeviceSetMigMode",
            "nvmlGpuInstanceCreateComputeInstance",
            "nvmlGpuInstanceDestroy",
            "nvmlGpuInstanceGetComputeInstanceById",
            "nvmlGpuInstanceGetComputeInstanceProfileInfo",
            "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
            "nvmlGpuInstanceGetComputeInstanceRemainingCapacity",
            "nvmlGpuInstanceGetComputeInstances",
            "nvmlGpuInstanceGetInfo",
        ),
        "topology": (
            *_device("P2PStatus TopologyCommonAncestor TopologyNearestGpus"),
            "nvmlDeviceOnSameBoard",
        ),
        "nvlink": _device("NvLinkCapability NvLinkRemoteDeviceType NvLinkRemotePciInfo_v2 NvLinkState NvLinkVersion"),
        "fabric": _device("GpuFabricInfoV"),
        "events": (
            "nvmlDeviceGetSupportedEventTypes",
            "nvmlDeviceRegisterEvents",
            "nvmlEventSetCreate",
            "nvmlEventSetFree",
            "nvmlEventSetWait_v2",
        ),
        "health": _device(
            "EccMode FieldValues MemoryErrorCounter RemappedRows RetiredPages RetiredPagesPendingStatus TotalEccErrors"
        ),
        "processes": _device(
            "ComputeRunningProcesses_v3 GraphicsRunningProcesses_v3 MPSComputeRunningProcesses_v3 ProcessUtilization "
            "ProcessesUtilizationInfo"
        ),
        "usage": _device(
            "ClockInfo CurrPcieLinkGeneration CurrPcieLinkWidth EnforcedPowerLimit PerformanceState PowerUsage "
            "Temperature TotalEnergyConsumption UtilizationRates"
        ),
    }
)

ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "nvmlInit": "nvmlInitWithFlags",
        "nvmlInit_v2": "nvmlInitWithFlags",
        "nvmlDeviceGetCount": "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetHandleByIndex": "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetHandleByPciBusId": "nvmlDeviceGetHandleByPciBusId_v2",
        "nvmlDeviceGetPciInfo": "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetPciInfo_v2": "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetNvLinkRemotePciInfo": "nvmlDeviceGetNvLinkRemotePciInfo_v2",
        "nvmlEventSetWait": "nvmlEventSetWait_v2",
        **{
            f"nvmlDeviceGet{kind}RunningProcesses{version}": f"nvmlDeviceGet{kind}RunningProcesses_v3"
            for kind in ("Compute", "Graphics", "MPSCompute")
            for version in ("", "_v2")
        },
    }
)
"""Names that old clients use, and the symbol whose injected failures they share."""

SYMBOLS: Final = frozenset(symbol for group in GROUPS.values() for symbol in group)
EXPORTED: Final = SYMBOLS | ALIASES.keys()


Value = int | str

NOTHING: Final = (0, "", "0")
"""Ways to give no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One injection: the devices it is meant for, which are all of them when none was named (``everywhere``)."""

    state: MachineState
    targets: tuple[int, ...]
    everywhere: bool
    value: Value

    @property
    def devices(self) -> list[SimDevice]:
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


def latency(case: Case) -> None:
    name, _, delay = str(case.value).partition(":")
    symbol = _symbol(name, "symbol:milliseconds, such as nvmlGpuInstanceDestroy:500")
    _fail(case, [symbol], delay_ms=number_of(delay, "milliseconds", high=600_000))


def fail_later(case: Case) -> None:
    """``calls:code[:times]``: so many calls still work; the next one, or so many, do not. ``times`` 0 is for good."""
    parts = str(case.value).split(":")
    if len(parts) not in (2, 3):
        raise ValueError(f"{case.value!r} does not read calls:code or calls:code:times")
    calls, code, times = (number_of(part, "calls:code:times", high=2**31) for part in (*parts, "1")[:3])
    header = case.state.header
    header.calls_left, header.fail_code, header.failing = calls, code, (times or NONE) if code else 0


def die(case: Case) -> None:
    name = "" if case.value in NOTHING else _symbol(str(case.value), "a symbol, such as nvmlGpuInstanceDestroy")
    case.state.header.fatal = name.encode()


def _symbol(name: str, form: str) -> str:
    symbol = ALIASES.get(name, name)
    if symbol not in SYMBOLS:
        raise ValueError(f"{name!r} is not a symbol of the simulated library; give {form}")
    return symbol


def forget(state: MachineState, devices: Collection[int]) -> None:
    """Take back what these devices were told."""
    _store(state, [failure for failure in _failures(state) if failure.device not in devices])


def _fail(case: Case, symbols: list[str], code: int | None = None, *, delay_ms: int | None = None) -> None:
    """Make ``symbols`` answer ``code``, or take so long; 0 takes that back, and None leaves it as it is."""
    places = {NONE} if case.everywhere else set(case.targets)
    found = {(failure.symbol.decode(), failure.device): failure for failure in _failures(case.state)}
    for key in ((symbol, place) for symbol in symbols for place in sorted(places)):
        failure = found.setdefault(key, SimFailure(symbol=key[0].encode(), device=key[1]))
        failure.code = failure.code if code is None else code
        failure.delay_ms = failure.delay_ms if delay_ms is None else delay_ms
    _store(case.state, [failure for failure in found.values() if failure.code or failure.delay_ms])


def _failures(state: MachineState) -> list[SimFailure]:
    """Copies: the originals are overwritten while the list is stored."""
    return [SimFailure.from_buffer_copy(failure) for failure in state.header.failures[: state.header.failure_count]]


def _store(state: MachineState, failures: list[SimFailure]) -> None:
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


def apply_fault(state: MachineState, fault: str, device: int | None, value: Value) -> None:
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


def _event(state: MachineState, index: int, kind: int, data: int, instances: Sequence[int] = ()) -> None:
    gi, ci = (*instances, NONE, NONE)[:2]
    sequence = state.header.event_sequence + 1
    state.header.events[sequence % layout.EVENTS] = SimEvent(
        sequence=sequence,
        type=kind,
        data=data,
        device=index,
        gpu_instance=gi,
        compute_instance=ci,
    )
    state.header.event_sequence = sequence


def _xid(case: Case) -> None:
    """``xid[:gi[:ci]]``; without numbers of instances, the event is about the whole card."""
    xid, *instances = (number_of(part, "the XID, such as 79") for part in str(case.value).split(":"))
    number_of(xid, "the XID, such as 79", low=1)
    if len(instances) > 2:
        raise ValueError(f"{case.value!r} does not read xid, xid:gi or xid:gi:ci")
    for index in case.targets:
        _event(case.state, index, EVENT_XID, xid, instances)


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
        header.withheld = header.nodes_withheld = header.parent_in_info = header.calls_left = header.failing = 0
        header.fatal = b""
    else:
        forget(case.state, case.targets)


def _restore(device: SimDevice) -> None:
    """As after a reset: healthy, plugged in, and a pending MIG mode takes effect."""
    device.lost = device.quiet = device.unplugged = device.asymmetric = device.slow_ms = device.hang = 0
    device.recovery_action = device.rows_corrected = device.rows_uncorrected = device.rows_pending = 0
    device.ecc_corrected = device.ecc_uncorrected = 0
    device.mig_current = device.mig_pending
    for instance in (*device.gpu_instances, *device.compute_instances):
        instance.held = 0


_HOPPER: Final = 9
"""NVML's number of the first architecture whose MIG mode does not outlive the driver."""


def _clear(device: SimDevice, *, reloaded: bool) -> None:
    """What a reset leaves of MIG, or a driver that was loaded again: no instance, no process, and the mode perhaps."""
    for instance in (*device.gpu_instances, *device.compute_instances):
        instance.serial = 0
    device.process_count = device.used = 0
    if reloaded and device.architecture >= _HOPPER:
        device.mig_pending = 0
    device.mig_current = device.mig_pending


def _reset(case: Case) -> None:
    for device in case.devices:
        _restore(device)
        _clear(device, reloaded=False)


def _reboot(case: Case) -> None:
    """The driver is loaded anew, so sessions from before are dead."""
    case.state.header.epoch += 1
    for device in case.state.devices:
        _restore(device)
        _clear(device, reloaded=True)


def _held(case: Case) -> None:
    """``gi:count`` or ``gi:ci:count``: handles that are open on an instance, of which no list of processes tells."""
    parts = [number_of(part, "gi:count or gi:ci:count", high=2**31) for part in str(case.value).split(":")]
    if len(parts) not in (2, 3):
        raise ValueError(f"{case.value!r} does not read gi:count or gi:ci:count")
    for device in case.devices:
        owners = [one for one in device.gpu_instances if one.serial and one.id == parts[0]]
        serials = [one.serial for one in owners]
        inner = [one for one in device.compute_instances if one.serial and one.owner in serials]
        chosen = owners if len(parts) == 2 else [one for one in inner if one.id == parts[1]]
        if not chosen:
            raise ValueError(f"{device.uuid.decode()} has no instance {case.value!r}")
        for one in chosen:
            one.held = parts[-1]


def _mig(case: Case) -> None:
    for device in case.devices:
        device.mig_current = device.mig_pending = number_of(case.value, "0 or 1", high=1)


def _instance(case: Case) -> None:
    """``profile:start``: another tool makes an instance, whatever is in its way."""
    profile, _, start = str(case.value).partition(":")
    place = number_of(start, "profile:start, such as 1g.10gb:3")
    for device in case.devices:
        both = zip(device.gpu_instances, device.compute_instances, strict=True)
        slot = next((at for at, (gi, ci) in enumerate(both) if not gi.serial and not ci.serial), None)
        if slot is None:
            raise ValueError(f"{device.uuid.decode()} has no room for another instance")
        make_instance(case.state, device, slot, profile, place, name=f"tool-{case.state.header.serial}")


_RIGHTS: Final = {"all": 0, "monitor": layout.RIGHT_CONFIG, "none": layout.RIGHT_CONFIG | layout.RIGHT_MONITOR}


def _rights(case: Case) -> None:
    if case.value not in _RIGHTS:
        raise ValueError(f"{case.value!r} is none of {', '.join(_RIGHTS)}")
    case.state.header.withheld = _RIGHTS[str(case.value)]


def _switch(field: str) -> Callable[[Case], None]:
    """A fault of the whole machine that is on or off."""

    def change(case: Case) -> None:
        setattr(case.state.header, field, number_of(case.value, "0 or 1", high=1))

    return change


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
        _clear(device, reloaded=True)


def _no_devices(case: Case) -> None:
    case.state.header.no_devices = 1


def _plug(case: Case) -> None:
    for device in case.devices:
        device.unplugged = 0
    if case.everywhere:
        case.state.header.no_devices = 0


def _utilization(case: Case) -> None:
    busy, _, memory = str(case.value).partition(":")
    now = time.monotonic_ns() // 10**6
    for device in case.devices:
        span = (device.power_limit_mw - device.power_idle_mw) // 100
        drawing = device.power_idle_mw + span * device.gpu_percent
        device.energy_uj, device.energy_at_ms = device.energy_uj + drawing * (now - device.energy_at_ms), now
        device.gpu_percent = number_of(busy, "percent busy", high=100)
        device.memory_percent = number_of(memory or busy, "percent of memory bandwidth", high=100)


def _energy(case: Case) -> None:
    for device in case.devices:
        device.energy_uj += number_of(case.value, "joules", high=10**9) * 10**6


def _process(case: Case) -> None:
    """``pid:MiB[:gi:ci]``; MiB 0 ends the process."""
    parts = [number_of(part, "pid:MiB or pid:MiB:gi:ci", high=2**31) for part in str(case.value).split(":")]
    if len(parts) not in (2, 4):
        raise ValueError(f"{case.value!r} does not read pid:MiB or pid:MiB:gi:ci")
    pid, mib, gi, ci = (*parts, layout.NONE, layout.NONE)[:4]
    for device in case.devices:
        kept = [SimProcess.from_buffer_copy(p) for p in device.processes[: device.process_count] if p.pid != pid]
        if mib:
            busy = device.gpu_percent
            kept.append(SimProcess(pid=pid, used=mib << 20, gpu_instance=gi, compute_instance=ci, sm_percent=busy))
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
        "xid": SimulatedFault(help="value: xid, xid:gi or xid:gi:ci; queues one critical event", apply=_xid),
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
        "fail-later": SimulatedFault(
            help="value: calls:code[:times]; after so many calls, one or more fail; 0 times: all", apply=fail_later
        ),
        "latency": SimulatedFault(help="value: symbol:milliseconds; 0 undoes it", apply=latency),
        "die": SimulatedFault(help="value: symbol; the next process that has called it is killed", apply=die),
        "reset": SimulatedFault(help="the card is reset: no instance is left, a pending MIG mode is on", apply=_reset),
        "reboot": SimulatedFault(help="of the machine: as reset, and Hopper and newer leave MIG mode", apply=_reboot),
        "mig": SimulatedFault(help="value: 1 as after nvidia-smi -mig 1; 0", apply=_mig),
        "instance": SimulatedFault(help="value: profile:start; another tool makes a MIG instance", apply=_instance),
        "passed-through": SimulatedFault(
            help="value: 1 if only a hypervisor may reset the card, so that a MIG mode stays pending; 0",
            apply=takes("passed_through", "0 or 1", high=1),
        ),
        "held": SimulatedFault(
            help="value: gi:count or gi:ci:count; open handles of an instance that no process list shows", apply=_held
        ),
        "rights": SimulatedFault(
            help="value: all, monitor (instances cannot be listed nor changed) or none", apply=_rights
        ),
        "no-nodes": SimulatedFault(
            help="value: 1 while nobody makes the nodes of new instances; 0", apply=_switch("nodes_withheld")
        ),
        "parent-in-info": SimulatedFault(
            help="value: 1 if the description of a compute instance names the whole card as its device; 0",
            apply=_switch("parent_in_info"),
        ),
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
        "energy": SimulatedFault(help="value: joules that are drawn at once", apply=_energy),
        "temperature": SimulatedFault(
            help="value: degrees Celsius", apply=takes("temperature", "degrees Celsius", high=150)
        ),
    }
)
