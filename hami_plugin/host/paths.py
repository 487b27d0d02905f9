"""Where things are on this node. Every root can be moved, so that tests and simulations bring their own."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

DEV = Path("/dev")


class Roots(Protocol):
    """Settings that say where a node's file trees are. None means the usual places."""

    @property
    def sysfs_root(self) -> Path | None: ...

    @property
    def proc_root(self) -> Path | None: ...

    @property
    def dev_root(self) -> Path | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPaths:
    """Roots of the file trees that discovery reads and injection names.

    ``hook`` is HAMi's ``HOOK_PATH`` as the *host* sees it; ``hook_view`` the same directory as this process sees it.
    ``node`` is the node's name, for devices that have none of their own. ``prepared``: of a machine that is only
    described, what has to be installed on a host is taken to be there.
    """

    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    hook: Path = Path("/usr/local")
    hook_view: Path = Path("/usr/local")
    node: str = ""
    prepared: bool = False

    def elsewhere(self, *, sysfs: Path | None = None, proc: Path | None = None, dev: Path | None = None) -> HostPaths:
        """The same host with some of its roots at other places."""
        return replace(self, sysfs=sysfs or self.sysfs, proc=proc or self.proc, dev=dev or self.dev)

    def rooted(self, settings: Roots) -> HostPaths:
        """The same host with its trees where the settings say that they are."""
        return self.elsewhere(sysfs=settings.sysfs_root, proc=settings.proc_root, dev=settings.dev_root)

    def seen(self, path: str | Path) -> Path:
        """A path under ``hook`` as this process reaches it."""
        return self.hook_view / Path(path).relative_to(self.hook)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFiles:
    """The host's files, as injection needs them. ``/dev`` and the hook directory are mapped to this process's view."""

    paths: HostPaths

    def writable(self, path: str | Path) -> Path:
        """Where this process creates a directory that a container will see at host path ``path``."""
        return Path(_moved(str(path), self.paths.hook, self.paths.hook_view) or path)

    def exists(self, path: str | Path) -> bool:
        """Whether a host path exists."""
        return self._seen(path).exists()

    def is_file(self, path: str | Path) -> bool:
        """Whether a host path is a file. A directory of that name is what a runtime made when the file was missing."""
        return self._seen(path).is_file()

    def read(self, path: str | Path, *, most: int = 65536) -> bytes:
        """How a host file begins. OSError where it cannot be read."""
        with self._seen(path).open("rb") as file:
            return file.read(most)

    def room(self, path: str | Path) -> int | None:
        """Free bytes of the file system of a host path; None if it does not report them, or the path does not exist."""
        try:
            found = os.statvfs(self._seen(path))
        except OSError:
            return None
        return found.f_bavail * found.f_frsize if found.f_blocks else None

    def _seen(self, path: str | Path) -> Path:
        text, paths = str(path), self.paths
        return Path(_moved(text, DEV, paths.dev) or _moved(text, paths.hook, paths.hook_view) or text)


def _moved(path: str, root: Path, view: Path) -> str:
    """``path`` with ``view`` in place of ``root``; empty if it is not below. Text, as every Allocate asks several."""
    above = str(root).rstrip("/")
    return f"{view}{path[len(above) :]}" if path == above or path.startswith(f"{above}/") else ""
