"""Words that all of Cambricon's modules share."""

from __future__ import annotations

from typing import Final

from hami_plugin.sdk.hardware import Hardware

DEVICE_TYPE: Final = "MLU"
UNIT: Final = 256
"""MiB that one unit of memory stands for."""
SLOTS: Final = 100
"""Shares of one MLU, each of 1 % of its cores at least."""
PROFILE: Final = "CAMBRICON_DSMLU_PROFILE"
MLUS: Final = Hardware(title="Cambricon device", vendors=("cabc",), module="cambricon-drv")
AGENT: Final = "cambricon-mlu"


def name(node: str, number: int) -> str:
    """What HAMi's scheduler calls an MLU: it counts them, and the node's agent has no say in it."""
    return f"{node}-{AGENT}-{number}"


def profile(index: int, cores: int, memory: int) -> str:
    """A share as Cambricon's agent writes it; ``memory`` in MiB."""
    return f"{index}_{cores}_{memory // UNIT}"
