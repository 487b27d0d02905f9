"""What a pod takes of each device: its init containers run one after another, then the others together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hami_plugin.model.placement import Grant
from hami_plugin.policy.states import Piece


def collapsed(pieces: Sequence[Piece], inits: int, *, bits: bool = False) -> Piece:
    """One grant for each device, by UUID: the largest init container or the sum of the others, whichever is more.

    ``bits``: cores are masks. None of them is more than another, so all that any container has are joined.
    """
    peak: dict[str, Grant] = {}
    for grant in (grant for piece in pieces[:inits] for grant in piece):
        known = peak.get(grant.uuid, grant)
        memory, cores = max(known.memory, grant.memory), _most(known.cores, grant.cores, bits=bits)
        peak[grant.uuid] = replace(known, memory=memory, cores=cores, slots=1)
    running = {grant.uuid: grant for grant in added(pieces[inits:], bits=bits)}
    return tuple(_larger(peak.get(uuid), running.get(uuid), bits=bits) for uuid in sorted({*peak, *running}))


def added(pieces: Sequence[Piece], *, bits: bool = False) -> Piece:
    """One grant for each device, by UUID, with everything that these containers have of it. ``bits`` as above."""
    total: dict[str, Grant] = {}
    for grant in (grant for piece in pieces for grant in piece):
        known = total.get(grant.uuid, replace(grant, memory=0, cores=0, slots=0))
        total[grant.uuid] = replace(
            known,
            memory=known.memory + grant.memory,
            cores=known.cores | grant.cores if bits else known.cores + grant.cores,
            slots=known.slots + grant.slots,
        )
    return tuple(total[uuid] for uuid in sorted(total))


def _larger(peak: Grant | None, running: Grant | None, *, bits: bool) -> Grant:
    if peak is None or running is None:
        only = running or peak
        assert only is not None
        return only
    memory, cores = max(peak.memory, running.memory), _most(peak.cores, running.cores, bits=bits)
    return replace(running, memory=memory, cores=cores, slots=max(1, running.slots))


def _most(one: int, other: int, *, bits: bool) -> int:
    return one | other if bits else max(one, other)
