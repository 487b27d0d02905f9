"""The MIG instances that a card is cut into, as discovery notes them of a device."""

from __future__ import annotations

from dataclasses import dataclass

from hami_plugin.model.device import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One MIG device. ``index`` is its place on the card; ``gi`` and ``ci`` number its GPU and compute instance.

    Both numbers and the UUID are other ones when the same profile is made again.
    """

    uuid: str
    index: int
    gi: int
    ci: int
    profile: str = ""


def instances(device: Device) -> tuple[Instance, ...]:
    """What discovery has noted of a card."""
    return device.traits if isinstance(device.traits, tuple) else ()
