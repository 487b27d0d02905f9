"""Versions, handles, and what NVML answers to questions that make no sense."""

from __future__ import annotations

import re

from vendors.nvidia.gpu_check.bench import Bench
from vendors.nvidia.gpu_check.binding import address, ask, constant, refused
from vendors.nvidia.gpu_check.card import Card

ABSENT_UUID = "GPU-00000000-0000-0000-0000-000000000000"
ABSENT_BUS = "0000FFFF:FF:1F.0"
_DRIVER = r"\d{3,}\.\d+(\.\d+)?"
_BUS = re.compile(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0")
_LEGACY_BUS = re.compile(r"[0-9A-F]{4}:[0-9A-F]{2}:[0-9A-F]{2}\.0")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def check_versions(bench: Bench) -> None:
    """How the three versions are written."""
    with bench.findings.about("session"):
        driver, nvml = ask("nvmlSystemGetDriverVersion"), ask("nvmlSystemGetNVMLVersion")
        cuda = ask("nvmlSystemGetCudaDriverVersion_v2")
        bench.findings.judge("driver version", _DRIVER, driver, same=bool(re.fullmatch(_DRIVER, str(driver))))
        major = cuda // 1000 if isinstance(cuda, int) else "?"
        bench.findings.equal("NVML version", f"{major}.{driver}", nvml)
        bench.findings.judge("CUDA version", "12040 for 12.4", cuda, same=isinstance(cuda, int) and cuda % 10 == 0)


def check_refusals(bench: Bench) -> None:
    """The codes of questions about cards that are not there."""
    count = ask("nvmlDeviceGetCount")
    code = bench.claims.code
    questions = (
        ("an index past the last", "INVALID_ARGUMENT", "nvmlDeviceGetHandleByIndex", count),
        ("a UUID that no card has", "NOT_FOUND", "nvmlDeviceGetHandleByUUID", ABSENT_UUID),
        ("a bus id that no card has", "NOT_FOUND", "nvmlDeviceGetHandleByPciBusId", ABSENT_BUS),
        ("a bus id that is none", "INVALID_ARGUMENT", "nvmlDeviceGetHandleByPciBusId", "nonsense"),
    )
    with bench.findings.about("refusals"):
        for name, expected, function, argument in questions:
            bench.findings.equal(name, refused(code(expected)), ask(function, argument))


def check_after_shutdown(bench: Bench) -> None:
    """What a closed session answers. It leaves NVML closed."""
    closed = refused(bench.claims.code("UNINITIALIZED"))
    with bench.findings.about("refusals"):
        bench.findings.equal("shutdown", None, ask("nvmlShutdown"))
        bench.findings.equal("a question without a session", closed, ask("nvmlDeviceGetCount"))
        bench.findings.equal("NVML's version without a session", closed, ask("nvmlSystemGetNVMLVersion"))
        bench.findings.equal("a second shutdown", closed, ask("nvmlShutdown"))


def check_identity(card: Card) -> None:
    """UUID, bus id, and that every way to the card leads to it."""
    uuid, info = ask("nvmlDeviceGetUUID", card.handle), ask("nvmlDeviceGetPciInfo", card.handle)
    with card.about("identity") as findings:
        findings.judge("UUID", _UUID.pattern, uuid, same=bool(_UUID.fullmatch(str(uuid))))
        findings.equal("index", card.index, ask("nvmlDeviceGetIndex", card.handle))
        bus, legacy = (str(getattr(info, name, info)) for name in ("busId", "busIdLegacy"))
        findings.judge("bus id", _BUS.pattern, bus, same=bool(_BUS.fullmatch(bus)))
        findings.judge("legacy bus id", _LEGACY_BUS.pattern, legacy, same=bool(_LEGACY_BUS.fullmatch(legacy)))
        if _BUS.fullmatch(bus):
            numbers = [int(part, 16) for part in re.split("[:.]", bus)[:3]]
            findings.equal("bus id as numbers", numbers, [info.domain, info.bus, info.device])
        for name, function, key in (
            ("handle by UUID", "nvmlDeviceGetHandleByUUID", uuid),
            ("handle by bus id", "nvmlDeviceGetHandleByPciBusId", bus),
        ):
            found = ask(function, key)
            same = constant("c_nvmlDevice_t") and isinstance(found, constant("c_nvmlDevice_t"))
            same = bool(same) and address(found) == address(card.handle)
            findings.judge(name, "the same handle", "the same handle" if same else found, same=same)


def check_model(card: Card) -> None:
    """What the model decides."""
    with card.about("model") as findings:
        known = "a model that the simulation knows"
        if card.facts:
            findings.judge("name", known, card.model, same=True)
        else:
            findings.not_applicable("name", "the simulation has no profile with this model", card.model)
        for name, fact, function in (
            ("compute capability", "capability", "nvmlDeviceGetCudaComputeCapability"),
            ("architecture", "architecture", "nvmlDeviceGetArchitecture"),
            ("brand", "brand", "nvmlDeviceGetBrand"),
            ("CUDA cores", "cores", "nvmlDeviceGetNumGpuCores"),
            ("addressing mode", "addressing", "nvmlDeviceGetAddressingMode"),
        ):
            card.among(name, fact, ask(function, card.handle))
        card.supported("serial number", "serial", ask("nvmlDeviceGetSerial", card.handle))
