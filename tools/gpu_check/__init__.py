"""A look at a machine with a real NVIDIA GPU: is the hardware what the simulation claims?

What belongs here: checks that only read, and one that changes a card if it is asked for. They compare the card with
``claims.json``, which ``python -m tools.gpu_check.claims`` writes from the simulation.
"""
