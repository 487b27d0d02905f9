"""A look at a machine with a real NVIDIA GPU: is the hardware what the simulation claims?

What belongs here: checks that only read. They compare the card with ``claims.json``, which
``python -m tools.gpu_check.claims`` writes from the simulation.
"""
