"""Parts of devices, where nothing on the node would hold a container to its part."""

from __future__ import annotations

from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.model.placement import Assignment


def only_whole(assignment: Assignment, title: str) -> None:
    """``RefusedError`` when a part of a device is granted: its memory says so, whatever is said of its cores."""
    for share in assignment.shares:
        if 0 < share.grant.memory < share.device.memory:
            raise RefusedError(
                RefusalReason.NOT_PREPARED,
                f'container "{assignment.container.name}" of pod {assignment.pod.key} is granted {share.grant.memory} '
                f"of the {share.device.memory} MiB of {share.device.uuid}, and only the vendor's own agent limits "
                f"containers on {title}",
                hint="ask for whole devices, or set unlimitedShares: true where containers can be trusted",
            )
