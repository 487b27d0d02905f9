"""What the simulated library exports, in groups that the ``not-supported`` fault takes by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


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
            "Temperature UtilizationRates"
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
