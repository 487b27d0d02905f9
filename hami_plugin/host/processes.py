"""Of which pod and container a process is, as its cgroup's path says: what the kubelet and the runtime named."""

from __future__ import annotations

import re
from pathlib import Path

from hami_plugin.model.usage import ProcessOwner

MAX_BYTES = 8192
MAX_LINES = 64
"""Version 1 has a line for each controller, version 2 has one."""

_POD = re.compile(r"(?<![0-9a-z])pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-z_-])")
"""With the cgroup driver ``cgroupfs`` a folder's own name; with ``systemd`` the end of a slice's, without dashes."""
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""A folder (containerd), or part of a scope's name (``cri-containerd-<id>.scope``, ``crio-<id>.scope``)."""


def owner_in(text: str) -> ProcessOwner:
    """Whose a process with this ``/proc/<pid>/cgroup`` is.

    The outermost pod counts: inside its own cgroup a container may make folders of any name.
    """
    for line in text.splitlines()[:MAX_LINES]:
        path = line.split(":", 2)[-1]
        if pod := _POD.search(path):
            container = _CONTAINER.search(path, pod.end())
            return ProcessOwner(pod=pod[1].replace("_", "-"), container=container[0] if container else "")
    return ProcessOwner()


HOSTS_NAMESPACE = "pid:[4026531836]"
"""The kernel's own name for the namespace that it starts with."""


def hosts_processes_seen(proc: Path) -> bool:
    """Whether this process has the host's process ids; also where that cannot be said."""
    try:
        return str((proc / "self" / "ns" / "pid").readlink()) == HOSTS_NAMESPACE
    except OSError:
        return True


def owner_of(proc: Path, pid: int) -> ProcessOwner | None:
    """The same of a process in this ``/proc``; None where it is not seen, or has just ended."""
    try:
        with (proc / str(pid) / "cgroup").open("rb") as file:
            return owner_in(file.read(MAX_BYTES).decode("utf-8", "replace"))
    except OSError:
        return None
