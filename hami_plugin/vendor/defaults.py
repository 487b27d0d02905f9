"""What a family says where it has nothing of its own to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from cdi.edits import ContainerEdits
from hami_plugin.errors import HamiError
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Grant


def nothing_more(*_asked: object) -> Mapping[str, str | None]:
    return {}


def one(_device: Device) -> int:
    return 1


def anywhere(grant: Grant, _device: Device, _others: Sequence[Grant]) -> Grant:
    return grant


def percent(_device: Device) -> int:
    return 100


def nothing(*_asked: object) -> ContainerEdits:
    return ContainerEdits()


def whole(*_asked: object) -> Mapping[str, ContainerEdits]:
    return {}


def nothing_missing(_host: object) -> str:
    return ""


def no_node_side(*_asked: object) -> NoReturn:
    raise HamiError(
        "this vendor's devices can be scheduled, and are served by the vendor's own device plugin",
        hint="leave the vendor out of this daemon's configuration",
    )
