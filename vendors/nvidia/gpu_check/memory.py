"""How much memory a card has, in both structures, and what a wrong version word is answered."""

from __future__ import annotations

from vendors.nvidia.gpu_check.binding import ask, constant, refused
from vendors.nvidia.gpu_check.card import Card
from vendors.nvidia.gpu_check.refused import Refused

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
