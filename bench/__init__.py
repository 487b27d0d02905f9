"""Benchmarks of the daemon as it ships, each figure with its limit: ``python -m bench``, or ``make bench``.

Everything around the daemon is simulated, in other processes. The daemon runs by its production entry point, and is
called over its Unix socket.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC reads it when it is imported; a kubelet that ends is no news
