"""Every card against what the simulation claims of its model: identity, memory, place on the host, health, processes,
events.

The session is here too: versions, and what NVML answers to questions that make no sense.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.gpu_check.findings import Bench, Findings
from tools.gpu_check.library import Refused, address, ask, constant, kind, refused
from vendors.nvidia.host import pci_address


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card that answers to its index. ``facts`` is empty when the simulation does not know the model."""

    bench: Bench
    index: int
    handle: Any
    model: str
    facts: Mapping[str, Sequence[Any]]

    @property
    def findings(self) -> Findings:
        return self.bench.findings

    @contextmanager
    def about(self, area: str) -> Iterator[Findings]:
        with self.findings.about(area, self.index):
            yield self.findings

    @property
    def mig_on(self) -> bool:
        mode = ask("nvmlDeviceGetMigMode", self.handle)
        return isinstance(mode, list) and mode[0] == 1

    def code(self, name: str) -> int:
        return self.bench.claims.code(name)

    def among(self, name: str, fact: str, observed: object) -> None:
        """Compare with what the simulation claims of the model."""
        if self.facts:
            self.findings.among(name, self.facts[fact], observed)
        else:
            self.findings.not_applicable(name, f"the simulation knows no model named {self.model!r}", observed)

    def supported(self, name: str, fact: str, observed: object) -> None:
        """Whether the card answers at all, where the model decides that: it answers, or says NotSupported."""
        answers = not isinstance(observed, Refused)
        if not self.facts:
            self.among(name, fact, observed)
            return
        expected = {"one of": ["an answer" if claim else "NotSupported" for claim in self.facts[fact]]}
        as_claimed = any(
            answers if claim else isinstance(observed, Refused) and observed.code == self.code("NOT_SUPPORTED")
            for claim in self.facts[fact]
        )
        self.findings.judge(name, expected, "an answer" if answers else observed, same=as_claimed)


def cards(bench: Bench) -> list[Card]:
    """Every card that can be reached. One that cannot is a difference."""
    found = []
    count = ask("nvmlDeviceGetCount")
    for index in range(count if isinstance(count, int) else 0):
        handle = ask("nvmlDeviceGetHandleByIndex", index)
        with bench.findings.about("session", index):
            answers = not isinstance(handle, Refused)
            if not bench.findings.judge("handle", "a handle", "a handle" if answers else handle, same=answers):
                continue
            model = ask("nvmlDeviceGetName", handle)
            if not bench.findings.judge("name", "text", model, same=isinstance(model, str)):
                continue
        found.append(
            Card(bench=bench, index=index, handle=handle, model=model, facts=bench.claims.models.get(model, {}))
        )
    return found


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


MIB = 1024 * 1024
_TRIES = 3
"""Somebody else may use the card between two questions."""


def check_memory(card: Card) -> None:
    with card.about("memory") as findings:
        first = ask("nvmlDeviceGetMemoryInfo", card.handle)
        second = ask("nvmlDeviceGetMemoryInfo", card.handle, constant("nvmlMemory_v2"))
        plain_two = ask("nvmlDeviceGetMemoryInfo", card.handle, 2)
        findings.equal("version 2 without its size", refused(card.code("ARGUMENT_VERSION_MISMATCH")), plain_two)
        card.among("total, MiB", "memory_mib", first if isinstance(first, Refused) else first.total // MIB)
        if isinstance(first, Refused) or isinstance(second, Refused):
            unanswered = first if isinstance(first, Refused) else second
            findings.judge("both structures", "two answers", unanswered, same=False)
            return
        findings.equal("total in both structures", first.total, second.total)
        findings.equal("first structure adds up", first.total, first.used + first.free)
        findings.equal("second structure adds up", second.total, second.used + second.free + second.reserved)
        findings.judge("reserved, MiB", "more than 0", second.reserved // MIB, same=second.reserved > 0)
        differences = [_difference(card) for _ in range(_TRIES)]
        text = "the first counts what is reserved as used"
        findings.judge("used in both structures", text, differences, same=0 in differences)


def _difference(card: Card) -> int | None:
    """Bytes by which the two structures disagree about what is used, after what is reserved."""
    first = ask("nvmlDeviceGetMemoryInfo", card.handle)
    second = ask("nvmlDeviceGetMemoryInfo", card.handle, constant("nvmlMemory_v2"))
    if isinstance(first, Refused) or isinstance(second, Refused):
        return None
    return int(first.used - second.used - second.reserved)


_WORDS = 16
"""64-bit words of a CPU mask: room for 1024 CPUs, whatever the machine has."""


def check_place(card: Card) -> None:
    info = ask("nvmlDeviceGetPciInfo", card.handle)
    pci = pci_address(str(getattr(info, "busId", "")))
    folder = card.bench.trees.sysfs / "bus/pci/devices" / pci
    with card.about("place") as findings:
        _minor(card, pci)
        if not pci or not folder.is_dir():
            findings.not_done("sysfs", f"{pci or 'the card'} is not in sysfs as this process sees it")
            return
        findings.equal("vendor in sysfs", "0x10de", _read(folder / "vendor"))
        _numa(card, _read(folder / "numa_node"))
        near = _cpus(_read(folder / "local_cpulist"))
        affinity = ask("nvmlDeviceGetCpuAffinity", card.handle, _WORDS)
        findings.equal(
            "CPU affinity against sysfs", near, affinity if isinstance(affinity, Refused) else _bits(affinity)
        )


def _minor(card: Card, pci: str) -> None:
    findings, trees = card.findings, card.bench.trees
    minor = ask("nvmlDeviceGetMinorNumber", card.handle)
    node = f"nvidia{minor}"
    findings.judge("device node", "there", node, same=isinstance(minor, int) and (trees.dev / node).exists())
    information = _read(trees.proc / "driver/nvidia/gpus" / pci / "information")
    if not information:
        findings.not_done("minor in /proc", "the kernel module's files are not where this process looks for them")
        return
    listed = [line.partition(":")[2].strip() for line in information.splitlines() if line.startswith("Device Minor")]
    findings.equal("minor in /proc", listed, [str(minor)])


def _numa(card: Card, node: str) -> None:
    """Near a node, NVML's mask is that node; where the kernel knows none (-1), it is every node there is."""
    findings = card.findings
    mask = ask("nvmlDeviceGetMemoryAffinity", card.handle, 1, constant("NVML_AFFINITY_SCOPE_NODE") or 0)
    nodes = mask if isinstance(mask, Refused) else _bits(mask)
    if node.isdecimal():
        findings.equal("NUMA node against sysfs", [int(node)], nodes)
    else:
        findings.judge(
            "NUMA node against sysfs", "all nodes, for sysfs says -1", nodes, same=bool(nodes) and nodes is not mask
        )
    own = ask("nvmlDeviceGetNumaNodeId", card.handle)
    if True in card.facts.get("own_memory_node", ()):
        card.supported("NUMA node of its own memory", "own_memory_node", own)
    else:
        findings.equal("NUMA node of its own memory", refused(card.code("NOT_SUPPORTED")), own)


def _bits(words: ctypes.Array[ctypes.c_ulong]) -> list[int]:
    return [64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def _cpus(text: str) -> list[int]:
    """A Linux list: ``0-3,8``."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first:
            found += range(int(first), int(last or first) + 1)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


RECOVERY_FIELD = 230
UNKNOWN_FIELD = 9999
_MODES = (0, 1, 2, 3)
_ACTIONS = range(8)


def check_health(card: Card) -> None:
    with card.about("health") as findings:
        mode = ask("nvmlDeviceGetComputeMode", card.handle)
        findings.judge("compute mode", f"one of {_MODES}", mode, same=mode in _MODES)
        card.supported("ECC mode", "ecc", ask("nvmlDeviceGetEccMode", card.handle))
        card.supported("ECC errors", "ecc", ask("nvmlDeviceGetTotalEccErrors", card.handle, 1, 0))
        card.supported("remapped rows", "row_remapping", ask("nvmlDeviceGetRemappedRows", card.handle))
        _retired_pages(card)
        _recovery_action(card)
        field = _field(card, UNKNOWN_FIELD)
        findings.equal("a field that no card has", refused(card.code("NOT_SUPPORTED")), field)
        card.supported("fabric", "fabric", _fabric(card))


def _retired_pages(card: Card) -> None:
    """Cards with ECC either remap rows or retire pages."""
    answer = ask("nvmlDeviceGetRetiredPagesPendingStatus", card.handle)
    if card.facts.get("ecc") == [True] and card.facts.get("row_remapping") == [False]:
        card.findings.judge("retired pages", "an answer", answer, same=not isinstance(answer, Refused))
    elif card.facts:
        card.findings.equal("retired pages", refused(card.code("NOT_SUPPORTED")), answer)
    else:
        card.findings.not_applicable("retired pages", "the simulation knows no such model", answer)


def _recovery_action(card: Card) -> None:
    """What the driver wants done. A driver that is older than the field may not know it."""
    answer = _field(card, RECOVERY_FIELD)
    known = isinstance(answer, int) and answer in _ACTIONS
    card.findings.judge("recovery action, field 230", "a number from 0 to 7", answer, same=known)


def _field(card: Card, number: int) -> int | Refused:
    values = ask("nvmlDeviceGetFieldValues", card.handle, [number])
    if isinstance(values, Refused):
        return values
    code = int(values[0].nvmlReturn)
    return refused(code) if code else int(values[0].value.uiVal)


def _fabric(card: Card) -> int | Refused:
    """The state of the rack's fabric."""
    made = constant("c_nvmlGpuFabricInfoV_t")
    if made is None:
        return refused(13)
    info = made()
    answer = ask("nvmlDeviceGetGpuFabricInfoV", card.handle, ctypes.byref(info))
    return answer if isinstance(answer, Refused) else int(info.state)


def check_processes(card: Card) -> None:
    """Lists of processes; without any, their use is NotFound."""
    with card.about("processes") as findings:
        running = 0
        for kind in ("Compute", "Graphics", "MPSCompute"):
            answer = ask(f"nvmlDeviceGet{kind}RunningProcesses", card.handle)
            found = len(answer) if isinstance(answer, list) else answer
            findings.judge(f"{kind} processes", "a list", found, same=isinstance(found, int))
            running += found if isinstance(found, int) else 0
        if card.mig_on:
            _busy_by_parts(card)
        else:
            _busy(card, running)


def _busy_by_parts(card: Card) -> None:
    """A card in MIG mode has no utilization as a whole."""
    unsupported = refused(card.code("NOT_SUPPORTED"))
    card.findings.equal("utilization in MIG mode", unsupported, ask("nvmlDeviceGetUtilizationRates", card.handle))
    samples = ask("nvmlDeviceGetProcessUtilization", card.handle, 0)
    card.findings.equal("use by processes in MIG mode", unsupported, samples)


def _busy(card: Card, running: int) -> None:
    findings = card.findings
    rates = ask("nvmlDeviceGetUtilizationRates", card.handle)
    busy = rates if isinstance(rates, Refused) else [int(rates.gpu), int(rates.memory)]
    plausible = isinstance(busy, list) and all(0 <= percent <= 100 for percent in busy)
    findings.judge("utilization of cores and memory", "two percentages", busy, same=plausible)
    if running:
        findings.not_applicable("use by no process", f"{running} processes are running")
        return
    samples = ask("nvmlDeviceGetProcessUtilization", card.handle, 0)
    observed = samples if isinstance(samples, Refused) else len(samples)
    findings.equal("use by no process", refused(card.code("NOT_FOUND")), observed)


XID = 0x8
_ECC = 0x1 | 0x2
_ALWAYS = XID | 0x4 | 0x10
_KNOWN = _ECC | _ALWAYS
UNKNOWN_EVENT = 1 << 40
WAITS_MS = (500, 1000)
IDLE_WAIT_MS = 200
_ROUNDING = 0.98
"""Clocks and timers round differently."""


def check_events(bench: Bench, cards: Sequence[Card]) -> None:
    """One event set for all cards, as the daemon has it."""
    for card in cards:
        _supported(card)
    with bench.findings.about("events"):
        findings, code = bench.findings, bench.claims.code
        events = ask("nvmlEventSetCreate")
        if not findings.equal("type of an event set", "LP_struct_c_nvmlEventSet_t", kind(events)):
            return
        timeout = refused(code("TIMEOUT"))
        _wait(findings, "wait with no card registered", events, IDLE_WAIT_MS, timeout)
        if cards:
            unknown = ask("nvmlDeviceRegisterEvents", cards[0].handle, UNKNOWN_EVENT, events)
            findings.equal("an event type that no card has", refused(code("NOT_SUPPORTED")), unknown)
        for card in cards:
            with card.about("events"):
                findings.equal("registration", None, ask("nvmlDeviceRegisterEvents", card.handle, XID, events))
        for milliseconds in WAITS_MS if cards else ():
            _wait(findings, f"wait of {milliseconds} ms", events, milliseconds, timeout)
        findings.equal("release of the set", None, ask("nvmlEventSetFree", events))


def _supported(card: Card) -> None:
    """The event types that the simulation knows. Newer drivers have more, which is no difference."""
    types = ask("nvmlDeviceGetSupportedEventTypes", card.handle)
    with card.about("events") as findings:
        if not card.facts:
            findings.not_applicable("event types", f"the simulation knows no model named {card.model!r}", types)
            return
        expected = [_ALWAYS | (_ECC if ecc else 0) for ecc in card.facts["ecc"]]
        findings.among("event types", expected, types if isinstance(types, Refused) else types & _KNOWN)


def _wait(findings: Findings, name: str, events: Any, milliseconds: int, timeout: Refused) -> None:
    start = time.monotonic()
    answer = ask("nvmlEventSetWait_v2", events, milliseconds)
    waited = round((time.monotonic() - start) * 1000)
    if not isinstance(answer, Refused):
        findings.not_done(name, f"an event of type {answer.eventType:#x} came meanwhile")
        return
    expected = {"answer": timeout, "waited_ms": f"at least {milliseconds}"}
    observed = {"answer": answer, "waited_ms": waited}
    findings.judge(name, expected, observed, same=answer == timeout and waited >= milliseconds * _ROUNDING)
