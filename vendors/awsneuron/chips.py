"""What is known of Neuron chips by their names, and what one device shows beside its common facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from hami_plugin.model.device import Device
from hami_plugin.sdk.hardware import Hardware

DEVICE_TYPE: Final = "AWSNeuron"
INFERENTIA: Final = ("7064", "7065", "7066", "7067", "7264")
"""Device ids of the chips that the driver numbers in the order of the bus."""
NEURONS: Final = Hardware(
    title="Neuron device", vendors=("1d0f",), devices=(*INFERENTIA, "7164", "7364"), module="neuron"
)

MEMORY_MIB: Final[Mapping[str, int]] = MappingProxyType(
    {"Inferentia": 8192, "Inferentia2": 32768, "Trainium1": 32768, "Trainium2": 98304}
)
"""Of one device. The driver does not tell it."""
MAX_CORES: Final = 30
"""Of one device: what a grant's bits have room for."""
LOGICAL_CORE_SIZE: Final[Mapping[str, int]] = MappingProxyType({"NCv3": 2})
"""Physical cores that make a logical one unless the runtime is told otherwise, by architecture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A device's ``traits``: its logical cores, and the devices that it has a link to, as often as it has links."""

    cores: int
    neighbours: tuple[int, ...] = ()
    architecture: str = ""
    instance_type: str = ""
    serial: str = ""


def chip(device: Device) -> Chip:
    """The traits of a Neuron device; of one that never answered, no cores."""
    return device.traits if isinstance(device.traits, Chip) else Chip(cores=0)


def name(node: str, number: int) -> str:
    """What HAMi's scheduler calls a device: it counts them, and the node's agent has no say in it."""
    return f"{node}-{DEVICE_TYPE}-{number}"
