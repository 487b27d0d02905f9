"""A family's devices as a CDI spec, and whether a runtime would find in the directories what the spec says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cdi.edits import ContainerEdits
from cdi.names import Kind
from cdi.registry import Registry
from cdi.spec import Device as SpecDevice
from cdi.spec import Spec
from hami_plugin.model.device import Action, Device, Fault

ALL = "all"
"""The name under which a container would receive every device."""
MISSING, CONFLICT = "CDISpecMissing", "CDIConflict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A device, what it adds to a container, and its parts that have names of their own."""

    device: Device
    edits: ContainerEdits
    slices: Mapping[str, ContainerEdits] = field(default_factory=dict)


def specification(kind: Kind, described: Sequence[Described], shared: ContainerEdits) -> Spec:
    """Each device by its UUID and by its index, the parts by theirs, and all devices under one name."""
    named: dict[str, ContainerEdits] = {}
    for one in described:
        named |= {one.device.uuid: one.edits, str(one.device.index): one.edits, **one.slices}
    if described:
        named[ALL] = ContainerEdits().merged(*(one.edits for one in described))
    return Spec(kind=kind, devices=tuple(SpecDevice(name=n, edits=e) for n, e in named.items()), edits=shared)


def unresolved(spec: Spec, file: str, devices: Sequence[Device], found: Registry) -> Mapping[str, Fault]:
    """Why a runtime would not give out ``devices`` as ``spec`` says, by UUID. ``file`` is where the spec should be.

    What another file defines too is a fault even where ours would win: which one wins is a matter of the runtime's
    configuration, and the other describes a device that is not its own.
    """
    ours = {device.name: device.edits for device in spec.devices}
    faults = ((device.uuid, _fault(spec, file, device.uuid, ours, found)) for device in devices)
    return {uuid: fault for uuid, fault in faults if fault}


def _fault(spec: Spec, file: str, uuid: str, ours: Mapping[str, ContainerEdits], found: Registry) -> Fault | None:
    name = spec.kind.device(uuid)
    definitions = found.definitions.get(name, ())
    others = sorted({one.source.file for one in definitions} - {file})
    if others:
        words = f"{name} is defined by {' and '.join((file, *others))}; remove one of them"
        return Fault(reason=CONFLICT, message=words, action=Action.DRAIN)
    if uuid not in ours:
        return Fault(reason=MISSING, message=f"{name} cannot be described", action=Action.DRAIN)
    if not definitions:
        words = "; ".join((f"{file} does not define {name}", *_about(file, found)))
        return Fault(reason=MISSING, message=words, action=Action.DRAIN)
    (definition,) = definitions
    if (definition.device.edits, definition.source.spec.edits) != (ours[uuid], spec.edits):
        return Fault(reason=MISSING, message=f"{file} describes {name} as it no longer is", action=Action.DRAIN)
    return None


def _about(file: str, found: Registry) -> Iterator[str]:
    return (problem.message for problem in found.problems if problem.file == file)
