"""NVIDIA's CDI hook: a program on the host with which a container's own loader finds the driver's libraries.

The container runtime runs it on the host while the container is made, so what counts is the path there. A hook that is
missing fails every container, so one that can be looked for and is not there is never used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cdi.edits import Hook
from vendors.nvidia.driver_files.tree import Tree

PLACES = (
    *("/usr/bin/nvidia-cdi-hook", "/usr/local/bin/nvidia-cdi-hook", "/usr/local/nvidia/toolkit/nvidia-cdi-hook"),
    *("/usr/bin/nvidia-ctk", "/usr/local/bin/nvidia-ctk", "/usr/local/nvidia/toolkit/nvidia-ctk"),
)
"""Where NVIDIA's packages and its operator put the program, the one that only has hooks first."""
_WHEN = "createContainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookProgram:
    """The program by the host's path of it. Without a path there is none; ``remark`` says how that was found out."""

    path: str = ""
    remark: str

    def links(self, links: Sequence[tuple[str, str]]) -> tuple[Hook, ...]:
        """Make links in the container: pairs of what a link contains, and where it is."""
        arguments = (part for target, link in links for part in ("--link", f"{target}::{link}"))
        return self._hook("create-symlinks", *arguments) if links else ()

    def loader(self, folders: Sequence[str]) -> tuple[Hook, ...]:
        """Tell the container's loader of folders, which also gives each library the links that it needs."""
        return self._hook("update-ldcache", *(part for folder in folders for part in ("--folder", folder)))

    def _hook(self, *arguments: str) -> tuple[Hook, ...]:
        if not self.path:
            return ()
        program = Path(self.path).name
        words = (program, "hook") if program.startswith("nvidia-ctk") else (program,)
        return (Hook(name=_WHEN, path=self.path, args=(*words, *arguments)),)


def find(configured: str, host: Tree | None) -> HookProgram:
    """The configured program, else the first of the usual places. ``host`` is the host's whole tree, if we see it."""
    if configured and host is None:
        return HookProgram(path=configured, remark=f"hook {configured}, as configured; this process cannot look there")
    if host is None:
        return HookProgram(remark="no hook: this process does not see the host's programs; set nvidiaCdiHookPath")
    for place in (configured,) if configured else PLACES:
        if host.is_file(place):
            return HookProgram(path=host.named(place), remark=f"hook {host.named(place)}")
    if configured:
        return HookProgram(remark=f"no hook: nvidiaCdiHookPath is {configured}, and the host has no such file")
    return HookProgram(remark="no hook: neither nvidia-cdi-hook nor nvidia-ctk is in the usual places")
