"""The Python type of every answer that the driver code builds on, and of some that a daemon may come to use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vendors.nvidia.gpu_check.bench import Bench
from vendors.nvidia.gpu_check.binding import ask, constant, kind
from vendors.nvidia.gpu_check.card import Card
from vendors.nvidia.gpu_check.refused import Refused
from vendors.nvidia.gpu_check.verdicts import Findings

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
    *_answering("int", _CARD, "PowerUsage"),
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
