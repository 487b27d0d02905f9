"""The demonstration: the real daemon as a process, among a simulated machine, kubelet and API server."""
