"""Simulated machines and peers. They ship: ``--simulate``, ``hami-plugin demo`` and the tests all use them."""
