"""What a machine under examination lacks: an API server, and a host that may be written to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from hami_plugin.aio import Watched
from hami_plugin.allocation.pods import PodTable
from hami_plugin.host.paths import HostFiles
from hami_plugin.model.ports import Annotations, PodFeed, Subject
from hami_plugin.model.views import NodeView, PodView

NODE = "this-node"
HAMI_CORE = ("libvgpu.so", "ld.so.preload")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchHost(HostFiles):
    """Reads the host as it is, and writes below ``scratch`` alone. HAMi-core counts as installed: nothing runs here."""

    scratch: Path

    def is_file(self, path: str | Path) -> bool:
        return Path(path).name in HAMI_CORE or HostFiles.is_file(self, path)

    def read(self, path: str | Path, *, most: int = 65536) -> bytes:
        installed = str(Path(path).with_name("libvgpu.so")) if Path(path).name == "ld.so.preload" else ""
        return installed.encode() or HostFiles.read(self, path, most=most)

    def writable(self, path: str | Path) -> Path:
        return self.scratch / Path(path).relative_to("/")


class TableCluster:
    """The API server as far as one pod needs it: patches land in the table that the allocator reads."""

    def __init__(self, pods: PodTable) -> None:
        self.reachable: Watched[str] = Watched("")
        self._pods = pods
        self._node = NodeView(name=NODE, uid=NODE)

    async def patch_pod(self, pod: PodView, annotations: Annotations) -> PodView:
        changed = replace(pod, annotations=_merged(pod.annotations, annotations))
        self._pods.update(changed)
        return changed

    async def patch_node(self, annotations: Annotations, *, resource_version: str = "") -> NodeView:  # noqa: ARG002  # the port's signature
        self._node = replace(self._node, annotations=_merged(self._node.annotations, annotations))
        return self._node

    async def get_node(self) -> NodeView:
        return self._node

    async def create_event(self, subject: Subject, *, reason: str, message: str, warning: bool) -> None:
        """Events go nowhere: what is refused here shows in the report."""

    async def follow_pods(self, feed: PodFeed) -> NoReturn:
        """The table starts empty, and nobody else changes it."""
        feed.replace([])
        raise await _never()

    async def follow_node(self, deliver: Callable[[NodeView | None], None]) -> NoReturn:
        deliver(self._node)
        raise await _never()


def _merged(present: Mapping[str, str], changes: Annotations) -> dict[str, str]:
    return {key: value for key, value in {**present, **changes}.items() if value is not None}


async def _never() -> BaseException:
    await asyncio.Event().wait()
    return AssertionError("an event that nobody sets")
