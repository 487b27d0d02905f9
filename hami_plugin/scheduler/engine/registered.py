"""Which devices of a family a node has, as its annotations or its capacity say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hami_plugin.errors import WireError
from hami_plugin.model.device import MAX_DEVICES
from hami_plugin.model.views import NodeView, whole
from hami_plugin.protocol.nodes import DeviceInfo

Decode = Callable[[str], tuple[DeviceInfo, ...]]
NodeDevices = Callable[[NodeView], tuple[DeviceInfo, ...]]
"""WireError when what the node says cannot be read, or cannot be; empty when the node has none of the family."""


def from_annotation(key: str, decode: Decode) -> NodeDevices:
    """The devices in the annotation ``key``."""
    return lambda node: decode(node.annotations[key]) if node.annotations.get(key) else ()


def in_percent(decode: Decode) -> Decode:
    """As ``decode`` reads them, but with 100 % of cores each, whatever the agent wrote."""
    return lambda text: tuple(replace(info, devcore=100) for info in decode(text))


def from_capacity(resource: str, device: Callable[[NodeView, int, int], DeviceInfo]) -> NodeDevices:
    """As many as the node's capacity says; ``device`` describes one, by its number and how many there are.

    WireError when that is more than any machine has.
    """

    def devices(node: NodeView) -> tuple[DeviceInfo, ...]:
        count = _plausible(node, resource, capacity(node, resource))
        return tuple(device(node, number, count) for number in range(count))

    return devices


def from_summed_capacity(cores: str, memory: str, *, each: int, unit: int, name: str, device_type: str) -> NodeDevices:
    """The node's capacity has the cores and the memory of all cards: ``each`` cores a card, memory in ``unit`` MiB.

    WireError when those are more cards than any machine has.
    """

    def devices(node: NodeView) -> tuple[DeviceInfo, ...]:
        total, units = capacity(node, cores), capacity(node, memory)
        cards = _plausible(node, cores, -(-total // each))
        return tuple(
            DeviceInfo(
                id=f"{node.name}-{name}-{number}",
                index=number,
                count=100,
                devmem=units * unit * each // total,
                devcore=each,
                type=device_type,
                health=True,
            )
            for number in range(cards)
        )

    return devices


def _plausible(node: NodeView, resource: str, count: int) -> int:
    if count > MAX_DEVICES:
        raise WireError(
            f"node {node.name} tells of {node.capacity[resource]} {resource}, which is {count} devices; "
            f"no node has more than {MAX_DEVICES}"
        )
    return count


def capacity(node: NodeView, resource: str) -> int:
    """The node's capacity of a resource; 0 when it has none, or an unreadable one."""
    if resource not in node.capacity:  # nearly always: a scheduler asks each node for what each vendor has
        return 0
    try:
        return max(0, whole(node.capacity[resource]))
    except ValueError:
        return 0


def no_devices(_node: NodeView) -> tuple[DeviceInfo, ...]:
    return ()
