"""How NVIDIA cards are chosen, without a node: requests, rules, MIG places, and what is written of a decision.

Nothing here asks a driver or a host; what the node's daemon does with cards is beside this package.
"""
