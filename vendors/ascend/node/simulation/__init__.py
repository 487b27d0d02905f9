"""A simulated Ascend machine: a ``libdcmi.so`` that the real driver loads, and the file trees that it looks at.

What belongs here: the C library, the text that drives it, and the faults. Nothing here imports the driver.
"""

from vendors.ascend.node.simulation.simulator import NpuSimulator, simulate

__all__ = ["NpuSimulator", "simulate"]
