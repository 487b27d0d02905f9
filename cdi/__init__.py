"""Container Device Interface: the data model of what a device adds to a container.

Only values and pure functions live here, on the standard library alone. Nothing in this package knows
Kubernetes, a vendor or the daemon.
"""
