"""From a container's limits and requests to a demand: rules that a family puts together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from hami_plugin.model.views import ContainerView, PodView, exact, whole
from hami_plugin.protocol.nodes import DeviceInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """``count`` devices of the family ``device_type``; ``memory`` in MiB and ``cores`` are of each device.

    ``memory`` outranks ``percent`` where both were given; without either no memory is billed. ``cores`` are in the
    family's unit, 0 for none. ``detail`` is the family's own.
    """

    device_type: str
    count: int
    memory: int | None = None
    percent: int | None = None
    cores: int = 0
    detail: object | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalid:
    """A container asks for an amount that no device can be asked for."""

    resource: str
    text: str
    why: str

    def __str__(self) -> str:
        return f"{self.resource}={self.text} {self.why}"


Asked = Demand | Invalid | None
"""A demand; an invalid one; or None when the container does not ask for the family."""


INT32_MAX = 2**31 - 1

Request = Callable[[ContainerView], Asked]
Amount = Callable[[ContainerView], int | Invalid | None]
"""How much of one resource a container asks for; None when it does not say."""

Fraction = Literal["refuse", "ignore", "round up"]


def limit_or_request(container: ContainerView, resource: str, *, limits_only: bool = False) -> str | None:
    """What stands in the limits, else in the requests."""
    if not resource:
        return None
    found = container.limits.get(resource)
    return found if found is not None or limits_only else container.requests.get(resource)


def amount(
    resource: str,
    *,
    least: int = 0,
    most: int = INT32_MAX,
    factor: int = 1,
    fraction: Fraction = "refuse",
    limits_only: bool = False,
) -> Amount:
    """A number of units, bounds included. ``factor`` is what a unit stands for; the product too has 32 bits.

    ``most`` bounds the number as written. ``fraction`` says what becomes of a number that is not whole.
    """

    def read(container: ContainerView) -> int | Invalid | None:
        text = limit_or_request(container, resource, limits_only=limits_only)
        if text is None:
            return None
        highest = min(most, INT32_MAX // max(1, factor))
        try:
            units = whole(text) if fraction == "round up" else exact(text)
        except ValueError:
            return Invalid(resource=resource, text=text, why="is not a quantity")
        if units is None:
            return None if fraction == "ignore" else Invalid(resource=resource, text=text, why="is not a whole number")
        if not least <= units <= highest:
            return Invalid(resource=resource, text=text, why=f"is not within {least} to {highest}")
        return units * max(1, factor)

    return read


def no_request(_container: ContainerView) -> None:
    """A resource that the family does not have."""


def percentage(resource: str) -> Amount:
    """A percentage. More than 100 counts as 100; 0, less, and what is no whole number say nothing."""

    def read(container: ContainerView) -> int | Invalid | None:
        text = limit_or_request(container, resource)
        try:
            value = None if text is None else exact(text)
        except ValueError:
            return Invalid(resource=resource, text=text or "", why="is not a quantity")
        return None if value is None or value <= 0 else min(value, 100)

    return read


def count_request(
    device_type: str,
    *,
    count: Amount,
    memory: Amount = no_request,
    percent: Amount = no_request,
    cores: Amount = no_request,
    default_memory: int = 0,
    default_cores: int = 0,
) -> Request:
    """So many devices, each with so much memory and cores. Without an amount of memory it is all of each device's.

    An amount of 0 counts as none. The first invalid amount makes the whole request invalid.
    """

    def request(container: ContainerView) -> Asked:
        number = count(container)
        if not number or isinstance(number, Invalid):
            return number or None
        amounts: Mapping[str, int | Invalid | None] = {
            "memory": memory(container),
            "percent": percent(container),
            "cores": cores(container),
        }
        read: dict[str, int | None] = {}
        for name, value in amounts.items():
            if isinstance(value, Invalid):
                return value
            read[name] = value
        mib, share = read["memory"] or None, read["percent"] or None
        if mib is None and share is None:
            mib, share = (default_memory, None) if default_memory else (None, 100)
        wanted = read["cores"] if read["cores"] is not None else default_cores
        return Demand(device_type=device_type, count=number, memory=mib, percent=share, cores=wanted)

    return request


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """``found``: the container uses the family. The rest is what to add or to overwrite."""

    found: bool
    limits: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    runtime_class: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """The pod is refused, and why."""

    why: str


Admit = Callable[[ContainerView, PodView], Admitted | Denied]


def if_limited(*resources: str) -> Admit:
    """Nothing changes; the container uses the family if its limits name one of these resources."""
    return lambda container, _pod: Admitted(found=any(name in container.limits for name in resources if name))


def admit_unchanged(_container: ContainerView, _pod: PodView) -> Admitted:
    return Admitted(found=False)


def is_part(info: DeviceInfo, memory: int, cores: int) -> bool:
    """Whether a grant of so much is less than the registered device. A grant of 0 is one without limit."""
    return 0 < memory < info.devmem or 0 < cores < info.devcore
