"""Structures, constants, functions and types of answers: the binding and the library against the C headers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.gpu_check.cards import Card
from tools.gpu_check.findings import Bench, Findings
from tools.gpu_check.library import Refused, ask, constant, exported, kind

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


HANDLE = "LP_struct_c_nvmlDevice_t"
_RECOVERY_FIELD = 230

Rest = Callable[[Card], tuple[Any, ...]]
"""The arguments of a call behind the handle."""


def _nothing(_card: Card) -> tuple[Any, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One call and the type of its answer."""

    function: str
    answer: str
    rest: Rest = _nothing


def _answering(answer: str, prefix: str, names: str, rest: Rest = _nothing) -> tuple[Question, ...]:
    """The calls of these names, behind a prefix that they share, which all give answers of one type."""
    return tuple(Question(function=f"{prefix}{name}", answer=answer, rest=rest) for name in names.split())


SYSTEM = (
    *_answering("str", "nvmlSystemGet", "DriverVersion NVMLVersion"),
    *_answering("int", "nvml", "SystemGetCudaDriverVersion_v2 DeviceGetCount"),
)

_CARD = "nvmlDeviceGet"
OF_A_CARD = (
    *_answering("str", _CARD, "UUID Name"),
    *_answering("int", _CARD, "Index MinorNumber Architecture NumGpuCores"),
    *_answering("tuple[int, int]", _CARD, "CudaComputeCapability"),
    *_answering("nvmlPciInfo_t", _CARD, "PciInfo"),
    *_answering("c_nvmlMemory_t", _CARD, "MemoryInfo"),
    *_answering("c_nvmlMemory_v2_t", _CARD, "MemoryInfo", lambda _: (constant("nvmlMemory_v2"),)),
    # Modes, and what is pending.
    *_answering("int", _CARD, "ComputeMode PersistenceMode MaxMigDeviceCount"),
    *_answering("list[int, int]", _CARD, "MigMode EccMode"),
    *_answering("c_uint", "nvmlDevice", "IsMigDeviceHandle"),
    # Health.
    *_answering("int", _CARD, "TotalEccErrors", lambda _: (1, 0)),
    *_answering("tuple[int, int, int, int]", _CARD, "RemappedRows"),
    *_answering("int", _CARD, "RetiredPagesPendingStatus SupportedEventTypes"),
    *_answering("array of c_nvmlFieldValue_t", _CARD, "FieldValues", lambda _: ([_RECOVERY_FIELD],)),
    # Links, to the card itself and by its first port.
    *_answering("int", _CARD, "TopologyCommonAncestor", lambda card: (card.handle,)),
    *_answering("int", _CARD, "NvLinkState NvLinkVersion NvLinkRemoteDeviceType", lambda _: (0,)),
    *_answering("nvmlPciInfo_t", _CARD, "NvLinkRemotePciInfo", lambda _: (0,)),
    *_answering("array of c_ulong", _CARD, "CpuAffinity", lambda _: (16,)),
    # Load.
    *_answering("c_nvmlUtilization_t", _CARD, "UtilizationRates"),
    *_answering("int", _CARD, "Temperature", lambda _: (0,)),
    *_answering("int", _CARD, "PowerUsage TotalEnergyConsumption"),
    *_answering("list", _CARD, "ComputeRunningProcesses GraphicsRunningProcesses"),
)


def check_system_types(bench: Bench) -> None:
    with bench.findings.about("types"):
        for question in SYSTEM:
            _judge(bench.findings, question, ask(question.function), bench.claims.code("NOT_SUPPORTED"))


def check_types(card: Card) -> None:
    """An answer that this card does not give has no type to compare; whether it should is for others to check."""
    with card.about("types") as findings:
        for question in OF_A_CARD:
            answer = ask(question.function, card.handle, *question.rest(card))
            _judge(findings, question, answer, card.code("NOT_SUPPORTED"))
        info = ask("nvmlDeviceGetPciInfo", card.handle)
        if not isinstance(info, Refused):
            findings.equal("busId", "str", kind(info.busId))
        findings.equal("nvmlDeviceGetHandleByIndex", HANDLE, kind(ask("nvmlDeviceGetHandleByIndex", card.index)))


def _judge(findings: Findings, question: Question, answer: object, unsupported: int) -> None:
    if isinstance(answer, Refused):
        if answer.code == unsupported:
            findings.not_applicable(question.function, "this card does not support the call", answer)
        else:
            findings.judge(question.function, question.answer, answer, same=False)
        return
    found = kind(answer)
    # What is in a list of processes is not the question.
    shown = found.partition("[")[0] if question.answer == "list" else found
    findings.equal(question.function, question.answer, shown)
