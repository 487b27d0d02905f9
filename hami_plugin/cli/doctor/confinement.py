"""What may keep a limiter's library from a container: SELinux, and a C library that it does not fit."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hami_plugin.cli.doctor.findings import Finding, failed, ok, warning

PROC, SYS = Path("/proc"), Path("/sys")
MAX_LIBRARY = 64 << 20
_NEEDS = re.compile(rb"\0GLIBC_2\.(\d{1,3})(?:\.\d{1,3})?(?=\0)")
READABLE = frozenset(
    ("container_file_t", "container_ro_file_t", "container_share_t", "usr_t", "lib_t", "bin_t", "textrel_shlib_t")
)
"""Types that every container may read under the usual policies."""
CONFINED = "container_t"
"""The type of ordinary containers, which may not connect to the kubelet's sockets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """``own`` is the SELinux type of this process, ``library`` that of the limiter's library at ``path``; empty where
    there is none. ``glibc`` is the minor version of glibc 2 that the library needs, 0 if that is unknown.
    """

    enforcing: bool = False
    own: str = ""
    path: str = ""
    library: str = ""
    glibc: int = 0


def label_of(path: Path) -> str:
    """A file's SELinux label; empty where it has none."""
    with suppress(OSError):
        return os.getxattr(path, "security.selinux").decode(errors="replace").strip("\0")
    return ""


def confinement(
    hook: Path, *, proc: Path = PROC, sysfs: Path = SYS, label: Callable[[Path], str] = label_of
) -> Confinement:
    """Of this process and the libraries below HAMi's hook path."""
    found = next((one for one in sorted((hook / "vgpu").glob("lib*.so*")) if one.is_file()), None)
    return Confinement(
        enforcing=_text(sysfs / "fs/selinux/enforce") == "1",
        own=_type(_text(proc / "self/attr/current")),
        path=str(found or ""),
        library=_type(label(found)) if found else "",
        glibc=_needed(found) if found else 0,
    )


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(4096).decode(errors="replace").strip("\0\n ")
    except OSError:
        return ""


def _type(label: str) -> str:
    """``container_t`` of ``system_u:system_r:container_t:s0``."""
    parts = label.split(":")
    return parts[2] if len(parts) > 2 else ""


def _needed(library: Path) -> int:
    try:
        with library.open("rb") as file:
            return max((int(minor) for minor in _NEEDS.findall(file.read(MAX_LIBRARY))), default=0)
    except OSError:
        return 0


def confined(facts: Confinement) -> Iterator[Finding]:
    """Causes of containers without limits, and of a daemon that reaches nobody."""
    if facts.enforcing and facts.own == CONFINED:
        text = f"is enforcing, and this process runs as {CONFINED}, which may not use the kubelet's sockets"
        yield failed("SELinux", text, "set seLinuxOptions: {type: container_device_plugin_t} for the daemon")
    elif facts.enforcing and facts.library and facts.library not in READABLE:
        text = f"is enforcing, and {facts.path} is {facts.library}, which containers may not read: they have no limits"
        yield warning("SELinux", text, f"chcon -R -t container_file_t {Path(facts.path).parent}")
    elif facts.enforcing:
        yield ok("SELinux", "is enforcing, and lets this process and the limiter's library through")
    if facts.glibc:
        needs = f"{Path(facts.path).name} needs glibc 2.{facts.glibc} in containers"
        yield ok("C library", f"{needs}; images with an older one, or with musl, run without limits")
