"""A spec: the devices of one kind on one machine, and what each of them adds to a container."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdi.edits import ContainerEdits
from cdi.names import Kind, QualifiedName


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecDevice:
    """One device by its name within the spec. It must add something: edits that are empty are refused."""

    name: str
    edits: ContainerEdits
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Devices of one kind. ``edits`` are added once to each container that has at least one of them."""

    kind: Kind
    devices: tuple[SpecDevice, ...]
    edits: ContainerEdits = field(default_factory=ContainerEdits)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[QualifiedName, ...]:
        return tuple(self.kind.device(device.name) for device in self.devices)
