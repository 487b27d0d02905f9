"""The Python type of every answer that the driver code builds on, and of some that a daemon may come to use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vendors.nvidia.gpu_check.binding import ask, constant, kind
from vendors.nvidia.gpu_check.card import Bench, Card
from vendors.nvidia.gpu_check.verdicts import Findings, Refused

HANDLE = "LP_struct_c_nvmlDevice_t"
_RECOVERY_FIELD = 230


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One call and the type of its answer; ``rest`` are the arguments behind the handle."""

    function: str
    answer: str
    rest: Callable[[Card], tuple[Any, ...]] = lambda _card: ()


SYSTEM = (
    Question(function="nvmlSystemGetDriverVersion", answer="str"),
    Question(function="nvmlSystemGetNVMLVersion", answer="str"),
    Question(function="nvmlSystemGetCudaDriverVersion_v2", answer="int"),
    Question(function="nvmlDeviceGetCount", answer="int"),
)

OF_A_CARD = (
    Question(function="nvmlDeviceGetUUID", answer="str"),
    Question(function="nvmlDeviceGetName", answer="str"),
    Question(function="nvmlDeviceGetIndex", answer="int"),
    Question(function="nvmlDeviceGetMinorNumber", answer="int"),
    Question(function="nvmlDeviceGetPciInfo", answer="nvmlPciInfo_t"),
    Question(function="nvmlDeviceGetMemoryInfo", answer="c_nvmlMemory_t"),
    Question(
        function="nvmlDeviceGetMemoryInfo", answer="c_nvmlMemory_v2_t", rest=lambda _: (constant("nvmlMemory_v2"),)
    ),
    Question(function="nvmlDeviceGetComputeMode", answer="int"),
    Question(function="nvmlDeviceGetPersistenceMode", answer="int"),
    Question(function="nvmlDeviceGetCudaComputeCapability", answer="tuple[int, int]"),
    Question(function="nvmlDeviceGetArchitecture", answer="int"),
    Question(function="nvmlDeviceGetNumGpuCores", answer="int"),
    Question(function="nvmlDeviceGetMigMode", answer="list[int, int]"),
    Question(function="nvmlDeviceIsMigDeviceHandle", answer="c_uint"),
    Question(function="nvmlDeviceGetMaxMigDeviceCount", answer="int"),
    Question(function="nvmlDeviceGetEccMode", answer="list[int, int]"),
    Question(function="nvmlDeviceGetTotalEccErrors", answer="int", rest=lambda _: (1, 0)),
    Question(function="nvmlDeviceGetRemappedRows", answer="tuple[int, int, int, int]"),
    Question(function="nvmlDeviceGetRetiredPagesPendingStatus", answer="int"),
    Question(
        function="nvmlDeviceGetFieldValues",
        answer="array of c_nvmlFieldValue_t",
        rest=lambda _: ([_RECOVERY_FIELD],),
    ),
    Question(function="nvmlDeviceGetTopologyCommonAncestor", answer="int", rest=lambda card: (card.handle,)),
    Question(function="nvmlDeviceGetNvLinkState", answer="int", rest=lambda _: (0,)),
    Question(function="nvmlDeviceGetNvLinkVersion", answer="int", rest=lambda _: (0,)),
    Question(function="nvmlDeviceGetNvLinkRemotePciInfo", answer="nvmlPciInfo_t", rest=lambda _: (0,)),
    Question(function="nvmlDeviceGetNvLinkRemoteDeviceType", answer="int", rest=lambda _: (0,)),
    Question(function="nvmlDeviceGetSupportedEventTypes", answer="int"),
    Question(function="nvmlDeviceGetCpuAffinity", answer="array of c_ulong", rest=lambda _: (16,)),
    Question(function="nvmlDeviceGetUtilizationRates", answer="c_nvmlUtilization_t"),
    Question(function="nvmlDeviceGetTemperature", answer="int", rest=lambda _: (0,)),
    Question(function="nvmlDeviceGetPowerUsage", answer="int"),
    Question(function="nvmlDeviceGetComputeRunningProcesses", answer="list"),
    Question(function="nvmlDeviceGetGraphicsRunningProcesses", answer="list"),
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
