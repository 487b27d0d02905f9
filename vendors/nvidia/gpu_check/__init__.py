"""A look at a machine with a real NVIDIA GPU: is the hardware what the simulation claims?

What belongs here: checks that only read, and what they need to run where little is installed. They compare with
``claims.json``, which ``vendors.nvidia.simulation.claims`` writes.
"""
