"""NVIDIA's own tool as the writer of the CDI spec: ``nvidia-ctk cdi generate``, checked before anybody relies on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cdi.documents import read
from cdi.edits import ContainerEdits
from cdi.errors import CdiError
from cdi.names import Kind
from cdi.spec import Device as SpecDevice
from cdi.spec import Spec
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles
from hami_plugin.model.device import Device
from hami_plugin.sdk import ToolError
from hami_plugin.sdk.tools import output
from vendors.nvidia.host import instances
from vendors.nvidia.settings import NvidiaSettings

PROGRAM = "nvidia-ctk"
DEADLINE_S = 4.0
"""The driver is open while the daemon runs, so the tool has no card to wake. Whoever waits for a spec has 5 s."""
_HINT = "the daemon's own description is used; set cdi.generator to builtin, or mend nvidia-ctk"
ALL = "all"


def specification(
    settings: NvidiaSettings, devices: Sequence[Device], _host: HostFiles, *, deadline_s: float = DEADLINE_S
) -> Spec:
    """What nvidia-ctk says of ``devices``, under our names. HamiError says why it cannot be used."""
    kind = Kind.parse(settings.delivery.kind)
    text = _output(_command(settings, kind), deadline_s)
    try:
        spec = read(text, f"{PROGRAM}.json")
    except CdiError as error:
        raise HamiError(f"{PROGRAM} writes a spec that no runtime would read: {error}", hint=_HINT) from error
    if spec.kind != kind:
        raise HamiError(f"{PROGRAM} describes {spec.kind}, and was asked for {kind}", hint=_HINT)
    return _named(spec, devices)


def generator(settings: NvidiaSettings) -> Callable[[Sequence[Device], HostFiles], Spec] | None:
    """The tool, if the settings choose it."""
    if settings.cdi_generator != PROGRAM:
        return None
    return lambda devices, host: specification(settings, devices, host)


def _command(settings: NvidiaSettings, kind: Kind) -> list[str]:
    """Without ``--output`` the tool writes to its standard output."""
    options = {
        "--format": "json",
        "--vendor": kind.vendor,
        "--class": kind.cls,
        "--device-name-strategy": "uuid",
        "--driver-root": str(settings.nvidia_driver_root),
        "--dev-root": str(settings.nvidia_dev_root or ""),
        "--nvidia-cdi-hook-path": str(settings.nvidia_cdi_hook_path or ""),
    }
    return [PROGRAM, "cdi", "generate", *(part for key, value in options.items() if value for part in (key, value))]


def _output(command: Sequence[str], deadline_s: float) -> str:
    program = shutil.which(command[0])
    if program is None:
        raise HamiError(f"{command[0]} is not installed here", hint=_HINT)
    try:
        return output(Path(program), *command[1:], deadline=deadline_s)
    except ToolError as error:
        raise HamiError(error.message, hint=_HINT) from error


def _named(spec: Spec, devices: Sequence[Device]) -> Spec:
    """Each card and instance under its UUID and its index, whatever else the tool knows left out but ``all``."""
    known = {device.name: device.edits for device in spec.devices}
    wanted = _names(devices)
    missing = sorted({part for parts in wanted.values() for part in parts if part not in known})
    if missing:
        raise HamiError(f"{PROGRAM} does not describe {', '.join(missing)}", hint=_HINT)
    edits = {name: ContainerEdits().merged(*(known[part] for part in parts)) for name, parts in wanted.items()}
    edits[ALL] = ContainerEdits().merged(*edits.values())
    return replace(spec, devices=tuple(SpecDevice(name=name, edits=each) for name, each in edits.items()))


def _names(devices: Sequence[Device]) -> Mapping[str, Sequence[str]]:
    """Our names, and what each is to the tool. It does not know a card that is cut: that is all of its instances."""
    names: dict[str, Sequence[str]] = {}
    for device in devices:
        cut = instances(device)
        parts = [one.uuid for one in cut] if device.traits is not None else [device.uuid]
        if parts:
            names |= {device.uuid: parts, str(device.index): parts}
        for one in cut:
            names |= {one.uuid: (one.uuid,), f"{device.index}:{one.index}": (one.uuid,)}
    return names
