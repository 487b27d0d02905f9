"""A simulated ``libnvidia-ml.so.1`` that the real binding loads, driven by a file that other processes may change.

What belongs here: the C library, the description of its state, and the faults. Nothing here imports ``pynvml``.
"""

from hami_plugin.simulation.c_compiler import BuildError
from vendors.nvidia.simulation.native_build import build
from vendors.nvidia.simulation.simulator import NvmlSimulator, simulate
from vendors.nvidia.simulation.state import StateError

__all__ = ["BuildError", "NvmlSimulator", "StateError", "build", "simulate"]
