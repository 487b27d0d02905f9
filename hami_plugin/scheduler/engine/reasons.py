"""HAMi's reasons why a device, or a node, does not serve."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

_PART = re.compile(r"([0-9]+)/[0-9]+ (\S+)")
_DETAIL = re.compile(r"\([^()\s]*\)$")


class Reason(StrEnum):
    """The wire's names. A device counts for the first that applies. ``WHOLE_ONLY`` is ours, and not one of HAMi's.

    So are ``NO_PARTITION``, ``ONE_PARTITION`` and ``UNCOUNTED``.
    """

    UNHEALTHY = "CardNotHealth"
    SICK = "CardUnhealthy"
    CORDONED = "CardCordoned"
    TYPE_MISMATCH = "CardTypeMismatch"
    UUID_MISMATCH = "CardUuidMismatch"
    NO_SLOT = "CardTimeSlicingExhausted"
    NO_MEMORY = "CardInsufficientMemory"
    NO_CORES = "CardInsufficientCore"
    CORES_EXHAUSTED = "CardComputeUnitsExhausted"
    EXCLUSIVE = "ExclusiveDeviceAllocateConflict"
    CUSTOM_RULE = "CardNotFoundCustomFilterRule"
    NO_MIG_PLACE = "CardMigTopologyInfeasible"
    QOS_MISMATCH = "CardQosPolicyMismatch"
    APP_CLASS_MISMATCH = "CardAppClassMismatch"
    QUOTA = "ResourceQuotaNotFit"
    WHOLE_ONLY = "CardServedWholeOnly"
    NO_PARTITION = "CardWithoutFreePartition"
    ONE_PARTITION = "OnePartitionPerPod"
    UNCOUNTED = "ResourceNotCountedByNode"
    MODE = "ModeNotFit"
    NUMA = "NumaNotFit"
    TOO_FEW = "AllocatedCardsInsufficientRequest"
    TOO_FEW_ON_NODE = "NodeInsufficientDevice"


OURS: Mapping[Reason, str] = {
    Reason.NO_PARTITION: "no partition that is large enough is free, nor can one be cut",
    Reason.ONE_PARTITION: "a container, or a pod where partitions are lent, can have one partition of one card",
    Reason.UNCOUNTED: "the node's kubelet counts the number of slices and not what is asked for",
}
"""The explanation of each reason that is not HAMi's. None has a comma, which separates reasons."""


def summary(reasons: Mapping[Reason, int] | Mapping[str, int], total: int) -> str:
    """HAMi's text: ``3/8 CardInsufficientMemory, 5/8 CardUuidMismatch``, sorted as strings."""
    return ", ".join(sorted(f"{count}/{total} {reason}" for reason, count in reasons.items()))


def detailed(reason: str, detail: str) -> str:
    """A reason with the family's detail, as in ``summary``: ``CardQosPolicyMismatch(x)``."""
    return f"{reason}({detail})"


def plain(reason: str) -> str:
    """HAMi's reason without the detail."""
    return _DETAIL.sub("", reason)


def parse_summary(text: str) -> Mapping[str, int]:
    """How many devices each reason of a ``summary`` is about, HAMi's or not. Other text is skipped."""
    parts = (_PART.match(part) for part in text.split(", "))
    return {part.group(2): int(part.group(1)) for part in parts if part}
