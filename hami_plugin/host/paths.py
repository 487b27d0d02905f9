"""Where things are on this node. Every root can be moved, so that tests and simulations bring their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPaths:
    """Roots of the file trees that discovery reads and injection names.

    ``hook`` is HAMi's ``HOOK_PATH`` as the *host* sees it; ``hook_view`` the same directory as this process sees it.
    """

    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    hook: Path = Path("/usr/local")
    hook_view: Path = Path("/usr/local")

    def seen(self, path: str | Path) -> Path:
        """A path under ``hook`` as this process reaches it."""
        return self.hook_view / Path(path).relative_to(self.hook)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFiles:
    """The one question that injection asks of the host."""

    paths: HostPaths

    def writable(self, path: str | Path) -> Path:
        """Where this process creates a directory that a container will see at host path ``path``."""
        path = Path(path)
        return self.paths.seen(path) if path.is_relative_to(self.paths.hook) else path

    def exists(self, path: str | Path) -> bool:
        """Whether a host path exists. ``/dev`` and the hook directory are looked up where this process sees them."""
        path = Path(path)
        if path.is_relative_to("/dev"):
            path = self.paths.dev / path.relative_to("/dev")
        elif path.is_relative_to(self.paths.hook):
            path = self.paths.seen(path)
        return path.exists()
