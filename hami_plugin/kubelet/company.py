"""What the endpoints of one directory know together: which sockets are theirs, and which kubelet has been met."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from hami_plugin.kubelet.identity import Identity
from hami_plugin.kubelet.registration import KUBELET_SOCKET


class Company:
    """``started`` is called for each kubelet that any of them meets first, before it hears of that one."""

    def __init__(self, started: Callable[[], None] = lambda: None) -> None:
        self._started = started
        self._sockets: set[str] = set()
        self._kubelet: Identity | None = None

    def join(self, socket: str) -> None:
        """A socket of this name is one of ours."""
        self._sockets.add(socket)

    def meet(self, kubelet: Identity) -> None:
        """An endpoint is about to register. A kubelet is new once: for one that comes later it has been there."""
        if kubelet != self._kubelet:
            self._kubelet = kubelet
            self._started()

    def others(self, directory: Path) -> Mapping[Path, Identity]:
        """The sockets of other plugins in ``directory``."""
        try:
            paths = [path for path in directory.iterdir() if path.is_socket()]
        except OSError:
            return {}
        known = {KUBELET_SOCKET, *self._sockets}
        return {path: identity for path in paths if path.name not in known and (identity := Identity.of(path))}
