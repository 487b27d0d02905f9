"""Structures, constants and functions: the binding and the library against the simulation's C headers."""

from __future__ import annotations

import ctypes

from vendors.nvidia.gpu_check.bench import Bench
from vendors.nvidia.gpu_check.binding import constant, exported

CLASSES = {
    "nvmlBAR1Memory_t": "c_nvmlBAR1Memory_t",
    "nvmlComputeInstanceInfo_t": "c_nvmlComputeInstanceInfo_t",
    "nvmlComputeInstanceProfileInfo_t": "c_nvmlComputeInstanceProfileInfo_t",
    "nvmlComputeInstanceProfileInfo_v2_t": "c_nvmlComputeInstanceProfileInfo_v2_t",
    "nvmlDeviceAddressingMode_t": "c_nvmlDeviceAddressingMode_t",
    "nvmlDeviceAttributes_t": "c_nvmlDeviceAttributes",
    "nvmlEventData_t": "c_nvmlEventData_t",
    "nvmlFieldValue_t": "c_nvmlFieldValue_t",
    "nvmlGpuFabricInfo_v2_t": "c_nvmlGpuFabricInfo_v2_t",
    "nvmlGpuFabricInfo_v3_t": "c_nvmlGpuFabricInfo_v3_t",
    "nvmlGpuInstanceInfo_t": "c_nvmlGpuInstanceInfo_t",
    "nvmlGpuInstanceProfileInfo_t": "c_nvmlGpuInstanceProfileInfo_t",
    "nvmlGpuInstanceProfileInfo_v2_t": "c_nvmlGpuInstanceProfileInfo_v2_t",
    "nvmlMemory_t": "c_nvmlMemory_t",
    "nvmlMemory_v2_t": "c_nvmlMemory_v2_t",
    "nvmlPciInfo_t": "nvmlPciInfo_t",
    "nvmlPlacement_t": "c_nvmlGpuInstancePlacement_t",
    "nvmlProcessInfo_t": "c_nvmlProcessInfo_v2_t",
    "nvmlProcessUtilizationInfo_v1_t": "c_nvmlProcessUtilizationInfo_v1_t",
    "nvmlProcessUtilizationSample_t": "c_nvmlProcessUtilizationSample_t",
    "nvmlProcessesUtilizationInfo_v1_t": "c_nvmlProcessesUtilizationInfo_v1_t",
    "nvmlUtilization_t": "c_nvmlUtilization_t",
}
"""The binding's class for each structure of the simulation. Process information is the same since its version 2."""

WORDS = {
    "nvmlMemory_v2_t": "nvmlMemory_v2",
    "nvmlGpuInstanceProfileInfo_v2_t": "nvmlGpuInstanceProfileInfo_v2",
    "nvmlComputeInstanceProfileInfo_v2_t": "nvmlComputeInstanceProfileInfo_v2",
    "nvmlGpuFabricInfo_v2_t": "nvmlGpuFabricInfo_v2",
    "nvmlGpuFabricInfo_v3_t": "nvmlGpuFabricInfo_v3",
}
"""The binding's constant for each structure that begins with a version word."""


def check_binding(bench: Bench) -> None:
    """Needs no driver: sizes and offsets, version words, and the numbers of refusals."""
    with bench.findings.about("layout"):
        for struct in bench.claims.structs:
            _struct(bench, struct)
        for name, number in bench.claims.codes.items():
            known = "NVML_SUCCESS" if name == "SUCCESS" else f"NVML_ERROR_{name}"
            bench.findings.equal(known, number, constant(known))


def _struct(bench: Bench, name: str) -> None:
    claim = bench.claims.structs[name]
    known = constant(CLASSES[name]) if name in CLASSES else None
    if known is None:
        bench.findings.not_applicable(name, "the binding has no such structure")
        return
    bench.findings.equal(f"size of {name}", claim["size"], ctypes.sizeof(known))
    fields = [field for field, *_ in known._fields_ if field in claim["offsets"]]
    if fields:
        expected = {field: claim["offsets"][field] for field in fields}
        bench.findings.equal(f"offsets in {name}", expected, {field: getattr(known, field).offset for field in fields})
    if name in WORDS:
        bench.findings.equal(f"version word of {name}", claim["word"], constant(WORDS[name]))


def check_library(bench: Bench) -> None:
    """Whether the library that is open has every function that the simulated one has. Nothing is called."""
    with bench.findings.about("layout"):
        missing = [symbol for symbol in bench.claims.symbols if not exported(symbol)]
        bench.findings.equal("functions that the library lacks", [], missing)
