"""Use-cases: discover, publish, allocate. Async, and they talk to the protocols in ``ports`` only."""
