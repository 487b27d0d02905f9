"""Ascend NPUs on their node: discovery over DCMI, and what a container with an NPU receives.

What belongs here: everything that a scheduler does not need. The chips themselves are described one package above.
"""
