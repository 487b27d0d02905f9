"""What one card says of itself, where the answer needs judging."""

from __future__ import annotations

from hami_plugin.model.device import Fault
from vendors.nvidia.binding import NvmlError
from vendors.nvidia.library import Handle, Nvml

MIB = 1024 * 1024
# No card comes near it; what reports more reports nonsense.
MAX_MEMORY = 4 * 1024 * 1024


def minor_of(nvml: Nvml, handle: Handle) -> int | None:
    """The number of the card's device node; None where there are no device nodes, as on WSL."""
    try:
        return nvml.minor(handle)
    except NvmlError as error:
        if error.unsupported:
            return None
        raise


def memory_of(nvml: Nvml, handle: Handle, *, otherwise: int) -> int | Fault:
    """Memory in MiB, or why it cannot be told. ``otherwise`` stands in for a card that cannot tell, unless it is 0."""
    try:
        memory = nvml.memory(handle) // MIB
    except NvmlError as error:
        if not error.unsupported:
            raise
        return otherwise or Fault(
            reason="MemoryUnknown",
            message="the driver cannot tell this card's memory (a unified-memory part?), so it is not offered;"
            " set preConfiguredDeviceMemory to its MiB",
        )
    if not 0 < memory <= MAX_MEMORY:
        return Fault(reason="MemoryImplausible", message=f"the driver reports {memory} MiB of memory")
    return memory
