"""The node as the API server last showed it."""

from __future__ import annotations

from hami_plugin.aio import Watched
from hami_plugin.model.views import NodeView, revision


class LiveNode:
    """The newest known view of the node; None before the first answer, and while the node does not exist."""

    def __init__(self) -> None:
        self.view: Watched[NodeView | None] = Watched(None)

    @property
    def value(self) -> NodeView | None:
        return self.view.value

    def deliver(self, node: NodeView | None) -> None:
        """Take a view from the watch, or the answer to a patch of ours. An older one of the same node is dropped."""
        known = self.view.value
        if (
            node
            and known
            and node.uid == known.uid
            and revision(node.resource_version) < revision(known.resource_version)
        ):
            return
        self.view.set(node)
