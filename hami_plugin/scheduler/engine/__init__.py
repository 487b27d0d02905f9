"""The scheduler's decisions as pure functions of values: does a pod fit, on which devices, on which node."""
