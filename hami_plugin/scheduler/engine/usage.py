"""What is taken of a node's devices, from the pods that have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hami_plugin.model.views import PodView
from hami_plugin.scheduler.engine.requests import Demand, Request
from hami_plugin.scheduler.engine.states import DeviceState, Piece, Restore, added, collapsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a pod was given of one family, as some scheduler wrote it down."""

    pod: PodView
    pieces: tuple[Piece, ...]


def used(
    states: Sequence[DeviceState],
    holdings: Iterable[Holding],
    request: Request,
    restore: Restore,
    *,
    bits: bool = False,
) -> tuple[DeviceState, ...]:
    """The devices with what all these pods have of them. Devices that are no longer there count for nothing.

    ``bits``: their cores are masks.
    """
    after = {state.uuid: state for state in states}
    for holding in holdings:
        for grant in held(holding, request, bits=bits):
            if grant.uuid in after:
                after[grant.uuid] = restore(after[grant.uuid], grant, holding.pod)
    return tuple(after[state.uuid] for state in states)


def held(holding: Holding, request: Request, *, bits: bool = False) -> Piece:
    """One grant for each device that the pod must have now. ``bits``: its cores are a mask.

    The N-th piece that is not empty is the N-th asking container's, as on the node: schedulers place empty ones
    differently. A plain init container counts with the sidecars before it, and for nothing once the pod runs. Pieces
    that do not go with the containers count all together: that is never less than what is in use.
    """
    pieces = [piece for piece in holding.pieces if piece]
    asking = [container for container in holding.pod.containers if isinstance(request(container), Demand)]
    if len(pieces) != len(asking):
        return added(pieces, bits=bits)
    running: list[Piece] = []
    alone: list[Piece] = []
    for container, piece in zip(asking, pieces, strict=True):
        if container.alone:
            alone.append(added((*running, piece), bits=bits))
        else:
            running.append(piece)
    over = holding.pod.phase == "Running"
    return added(running, bits=bits) if over else collapsed((*alone, *running), len(alone), bits=bits)
