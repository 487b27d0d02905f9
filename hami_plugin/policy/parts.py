"""Parts of devices, where a node hands out whole ones only."""

from __future__ import annotations

from hami_plugin.protocol.register import DeviceInfo


def is_part(info: DeviceInfo, memory: int, cores: int) -> bool:
    """Whether a grant of so much is less than the registered device. A grant of 0 is one without limit."""
    return 0 < memory < info.devmem or 0 < cores < info.devcore
