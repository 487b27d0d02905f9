"""How much the simulated library holds, and the values in its state file that mean something by themselves."""

from __future__ import annotations

from typing import Final

DEVICES, LINKS, PROFILES, STARTS = 64, 36, 18, 8
INSTANCES, PROCESSES, EVENTS, FAILURES = 16, 64, 64, 256

MAGIC: Final = b"HAMINVML"
NONE: Final = 0xFFFFFFFF
"""No device, no instance: the value NVML itself uses for "the whole GPU"."""

DRIVER_LOADED, DRIVER_GONE, DRIVER_MISMATCH = range(3)
