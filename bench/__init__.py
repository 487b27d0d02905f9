"""Measures the daemon as it ships, each figure beside its limit: ``python -m bench``, or ``make bench``.

Everything around the daemon is simulated and runs in other processes. No figure here is a unit test's: the daemon is
the production entry point, and the calls come over its Unix socket.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC reads it when it is imported; a kubelet that ends is no news
