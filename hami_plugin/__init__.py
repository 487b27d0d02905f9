"""The node daemon.

Rings, from the inside: model; policy, wire; host, config; vendor; node; kubelet, cluster, telemetry; app; cli.
"""

__version__ = "0.1.0"
