"""NVIDIA cards: discovery over NVML, XIDs, NVLink scores, and HAMi-core's injection.

Importing this package loads nothing. The vendor is put together when it is asked for.
"""

from __future__ import annotations

from hami_plugin.sdk import Vendor


def __getattr__(name: str) -> Vendor:
    if name != "VENDOR":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vendors.nvidia.vendor import VENDOR  # noqa: PLC0415  # as said above

    return VENDOR
