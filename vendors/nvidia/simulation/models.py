"""Plausible numbers of GPU models for what a profile does not tell: cores, clocks, power, bus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from hami_plugin.model.machine import MachineDevice

UNKNOWN_ARCHITECTURE: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One GPU generation. ``code`` is NVML's; with ``rows`` bad memory is remapped by rows, not retired by pages."""

    code: int
    cores_per_sm: int
    sm_mhz: int
    memory_mhz: int
    pcie: int
    rows: bool


_UNKNOWN = Generation(code=UNKNOWN_ARCHITECTURE, cores_per_sm=64, sm_mhz=1500, memory_mhz=1200, pcie=3, rows=False)
_GENERATIONS: Mapping[str, Generation] = MappingProxyType(
    {
        "volta": Generation(code=5, cores_per_sm=64, sm_mhz=1530, memory_mhz=877, pcie=3, rows=False),
        "turing": Generation(code=6, cores_per_sm=64, sm_mhz=1590, memory_mhz=5001, pcie=3, rows=False),
        "ampere": Generation(code=7, cores_per_sm=64, sm_mhz=1410, memory_mhz=1215, pcie=4, rows=True),
        "ada": Generation(code=8, cores_per_sm=128, sm_mhz=2520, memory_mhz=9001, pcie=4, rows=True),
        "hopper": Generation(code=9, cores_per_sm=128, sm_mhz=1980, memory_mhz=2619, pcie=5, rows=True),
        "blackwell": Generation(code=10, cores_per_sm=128, sm_mhz=1965, memory_mhz=3996, pcie=5, rows=True),
    }
)
_WATTS = (
    *(("GB200", 1200), ("B200", 1000), ("H200", 700), ("H100", 700), ("A100-SXM", 400), ("A100", 300), ("A30", 165)),
    *(("V100", 300), ("L40S", 350), ("T4", 70), ("4090", 450), ("2080 Ti", 250)),
)
_BRANDS = (("GeForce", 5), ("Tesla", 2), ("Quadro", 1))
BRAND_NVIDIA: Final = 14
BRAND_GEFORCE: Final = 5


def generation(device: MachineDevice) -> Generation:
    return _GENERATIONS.get(str(device.extra.get("arch", "")), _UNKNOWN)


def watts(model: str) -> int:
    """The power limit."""
    return next((number for name, number in _WATTS if name in model), 300)


def brand(model: str) -> int:
    """NVML's brand code."""
    return next((code for name, code in _BRANDS if name in model), BRAND_NVIDIA)
