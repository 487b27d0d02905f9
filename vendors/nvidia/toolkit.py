"""NVIDIA's own tool as the writer of the CDI spec: ``nvidia-ctk cdi generate``, checked before anybody relies on it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cdi.documents import read
from cdi.edits import ContainerEdits
from cdi.errors import CdiError
from cdi.names import Kind
from cdi.spec import Device as SpecDevice
from cdi.spec import Spec
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles
from hami_plugin.model.device import Device
from vendors.nvidia.instances import instances

if TYPE_CHECKING:  # the driver also runs where pydantic is not installed
    from vendors.nvidia.settings import NvidiaSettings

PROGRAM = "nvidia-ctk"
DEADLINE_S = 30.0
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
        done = subprocess.run(  # noqa: S603  # our own arguments, no shell
            [program, *command[1:]], capture_output=True, text=True, errors="replace", timeout=deadline_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise HamiError(f"{command[0]} has not answered within {deadline_s:g} s", hint=_HINT) from error
    except OSError as error:
        raise HamiError(f"{program} cannot be run: {error.strerror}", hint=_HINT) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise HamiError(f"{command[0]} failed with status {done.returncode}: {last[:300]}", hint=_HINT)
    return done.stdout


def _named(spec: Spec, devices: Sequence[Device]) -> Spec:
    """Each card and instance under its UUID and its index, whatever else the tool knows left out but ``all``."""
    known = {device.name: device.edits for device in spec.devices}
    wanted = _names(devices)
    missing = sorted({uuid for uuid in wanted.values() if uuid not in known})
    if missing:
        raise HamiError(f"{PROGRAM} does not describe {', '.join(missing)}", hint=_HINT)
    edits = {name: known[uuid] for name, uuid in wanted.items()}
    cards = (known[device.uuid] for device in devices if device.uuid in wanted.values())
    edits[ALL] = ContainerEdits().merged(*cards)
    return replace(spec, devices=tuple(SpecDevice(name=name, edits=each) for name, each in edits.items()))


def _names(devices: Sequence[Device]) -> Mapping[str, str]:
    """Our names, and what the tool calls each. It leaves out cards in MIG mode, which are not used whole."""
    names: dict[str, str] = {}
    for device in devices:
        if device.traits is None:
            names |= {device.uuid: device.uuid, str(device.index): device.uuid}
        for one in instances(device):
            names |= {one.uuid: one.uuid, f"{device.index}:{one.index}": one.uuid}
    return names
