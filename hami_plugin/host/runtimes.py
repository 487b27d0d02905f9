"""Whether this node's container runtime injects devices by CDI names, from its configuration file.

containerd before 2.0 ignores CDI names silently unless its configuration enables them, and a container would then run
without its devices. So an unknown runtime counts as one without CDI.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

USUAL_FILES = (
    Path("/etc/containerd/config.toml"),
    Path("/etc/crio/crio.conf"),
    Path("/var/lib/rancher/k3s/agent/etc/containerd/config.toml"),
    Path("/var/lib/rancher/rke2/agent/etc/containerd/config.toml"),
    Path("/etc/k0s/containerd.toml"),
    Path("/var/snap/microk8s/current/args/containerd.toml"),
)
"""The paths of distributions, in the order in which they are tried. Source: their documentation."""

USUAL_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))

_CONTAINERD_SECTIONS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")
_SECTION_OF = {1: "cri", 2: "io.containerd.grpc.v1.cri"}
_CONTAINERD_2 = 3  # the version of the configuration that came with it; there CDI is on unless switched off
_SAME = {Path("/run"): Path("/var/run")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A runtime's CDI support: whether it reads CDI names, from which directories, and how this is known.

    ``switch`` is how to enable it in the configuration; empty if that is unknown.
    """

    cdi: bool
    directories: tuple[Path, ...] = ()
    why: str
    switch: str = ""

    def reads(self, directory: Path) -> bool:
        """Whether it finds specs in ``directory``."""
        return self.cdi and _plain(directory) in map(_plain, self.directories)

    def objection(self, directory: Path) -> str:
        """Why it would ignore specs in ``directory``, and what to do; empty if no reason is known."""
        if self.reads(directory):
            return ""
        if self.cdi:
            read = ", ".join(map(str, self.directories))
            return f"{self.why}, but only from {read}; add {directory} to its cdi_spec_dirs, or set cdiDirs to match"
        return f"{self.why}; {self.switch}, and restart it" if self.switch else ""


def read_runtime(files: Iterable[Path] = USUAL_FILES) -> Runtime:
    """Read the first of ``files`` that exists. It never raises: an unreadable file counts as a runtime without CDI."""
    tried = list(files)
    for file in tried:
        try:
            if file.exists():
                return _runtime(file)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, AttributeError, TypeError) as error:
            return Runtime(cdi=False, why=f"{file} cannot be read: {error}")
    return Runtime(cdi=False, why=f"no container runtime's configuration was found at {', '.join(map(str, tried))}")


def _runtime(file: Path) -> Runtime:
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    is_crio = "crio" in content or file.name.startswith("crio")
    return _crio(file, content) if is_crio else _containerd(file, content)


def _crio(file: Path, content: Mapping[str, Any]) -> Runtime:
    """From 1.23 on it always reads CDI names. Drop-in files are read in the order of their names."""
    parts = [content, *map(_toml, sorted(file.parent.glob(f"{file.name}.d/*.conf")))]
    runtime = _last({}, *(part.get("crio", {}).get("runtime", {}) for part in parts))
    directories = _directories(runtime.get("cdi_spec_dirs"))
    if not directories:
        why = f"{file} gives CRI-O no directory of CDI specs"
        return Runtime(cdi=False, why=why, switch=f"remove cdi_spec_dirs = [] from [crio.runtime] in {file}")
    return Runtime(cdi=True, directories=directories, why=f"CRI-O reads CDI specs ({file})")


def _containerd(file: Path, content: Mapping[str, Any]) -> Runtime:
    parts = [content, *map(_toml, _imported(file, content))]
    sections = [part.get("plugins", {}).get(name, {}) for part in parts for name in reversed(_CONTAINERD_SECTIONS)]
    merged = _last({}, *sections)
    enabled, version = merged.get("enable_cdi"), content.get("version", 1)
    directories = _directories(merged.get("cdi_spec_dirs"))
    if enabled is not None:
        state = "on" if enabled else "off"
        why = f"containerd's enable_cdi is {state} in {file}"
        return Runtime(
            cdi=bool(enabled), directories=directories, why=why, switch="" if enabled else _switch(file, version)
        )
    if version >= _CONTAINERD_2:
        return Runtime(cdi=True, directories=directories, why=f"containerd 2 reads CDI specs ({file})")
    why = f"{file} does not say enable_cdi = true, and containerd before 2.0 then ignores CDI names"
    return Runtime(cdi=False, directories=directories, why=why, switch=_switch(file, version))


def _switch(file: Path, version: int) -> str:
    """The line that switches CDI on, with the name that the section has in this version of the configuration."""
    section = _SECTION_OF.get(version, _CONTAINERD_SECTIONS[0])
    return f'set enable_cdi = true under [plugins."{section}"] in {file}'


def _imported(file: Path, content: Mapping[str, Any]) -> Iterator[Path]:
    """The files that a containerd configuration imports, relative to it, in order."""
    for pattern in content.get("imports", ()):
        path = Path(pattern)
        base = Path(path.anchor) if path.is_absolute() else file.parent
        relative = path.relative_to(path.anchor)
        if relative.parts:  # an empty name imports nothing
            yield from sorted(base.glob(str(relative)))


def _toml(file: Path) -> Mapping[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _last(*sections: Mapping[str, Any]) -> Mapping[str, Any]:
    """The merged keys; a later section overrides an earlier one."""
    return {key: value for section in sections for key, value in section.items()}


def _directories(value: object) -> tuple[Path, ...]:
    if value is None:
        return USUAL_DIRECTORIES
    if not isinstance(value, list):
        raise TypeError(f"cdi_spec_dirs must be a list, and is {value!r}")
    return tuple(map(Path, value))


def _plain(directory: Path) -> Path:
    """``/run`` and ``/var/run`` are one directory on every Linux that runs Kubernetes."""
    for short, long in _SAME.items():
        if directory.is_relative_to(short):
            return long / directory.relative_to(short)
    return directory
