"""Recorded JSON as our values, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hami_plugin.model.device import Link, Links, PairScores, symmetric
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.nodes import DeviceInfo, MigProfile, decode_scores
from hami_plugin.scheduler.engine.devices import DeviceState, Piece, Slice, Tenant
from hami_plugin.scheduler.engine.node_info import WrittenLinks
from tests.hami.parity import Json


def state(item: Json) -> DeviceState:
    return DeviceState(
        info=DeviceInfo(
            id=item["id"],
            index=item.get("index", 0),
            count=item.get("count", 0),
            devmem=item.get("totalmem", 0),
            devcore=item.get("totalcore", 0),
            type=item.get("type", ""),
            numa=item.get("numa", 0),
            mode=item.get("mode", ""),
            health=item.get("health", False),
            mig_profiles=profiles(item.get("mig_profiles")),
            custom=item.get("custominfo"),
        ),
        slots=item.get("used", 0),
        memory=item.get("usedmem", 0),
        cores=item.get("usedcores", 0),
        tenants=tuple(
            Tenant(name=pod.get("name", ""), annotations=pod.get("annotations") or {}) for pod in item.get("pods") or ()
        ),
        slices=tuple(
            Slice(profile=one["profile"], start=one["placement"]["start"], size=one["placement"]["size"])
            for one in item.get("mig_in_use") or ()
        ),
        notes=item.get("custominfo") or {},
    )


def states(question: Json) -> list[DeviceState]:
    """The devices of a question."""
    return [state(device) for device in question["devices"]]


def device(state: DeviceState) -> dict[str, Any]:
    """A device as the recorder writes it in a question."""
    info = state.info
    return {
        **usage(state),
        "count": info.count,
        "totalmem": info.devmem,
        "totalcore": info.devcore,
        "type": info.type,
        "numa": info.numa,
        "mode": info.mode,
        "health": info.health,
        "mig_profiles": [
            {
                "name": one.name,
                "memoryMB": one.memory,
                "core": one.cores,
                "sliceCount": one.slices,
                "placements": [{"start": start, "size": size} for start, size in one.placements],
            }
            for one in info.mig_profiles
        ],
        "pods": [{"name": tenant.name, "annotations": dict(tenant.annotations)} for tenant in state.tenants],
    }


def scores(links: PairScores) -> list[dict[str, Any]]:
    """Links as the score annotation has them."""
    peers: dict[str, dict[str, int]] = {}
    known = set(links.pairs) if isinstance(links, Links) else set()
    if isinstance(links, WrittenLinks):
        known = {(min(a, b), max(a, b)) for a, row in decode_scores(links.text).items() for b in row if a != b}
    for a, b in known:
        (score,) = links.scores((a, b))
        peers.setdefault(a, {})[b] = score
        peers.setdefault(b, {})[a] = score
    return [{"uuid": uuid, "score": score} for uuid, score in sorted(peers.items())]


def profiles(items: Sequence[Json] | None) -> tuple[MigProfile, ...]:
    return tuple(
        MigProfile(
            name=item["name"],
            memory=item["memoryMB"],
            cores=item["core"],
            slices=item["sliceCount"],
            placements=tuple((place["start"], place["size"]) for place in item["placements"]),
        )
        for item in items or ()
    )


def usage(state: DeviceState) -> dict[str, Any]:
    """A device as the recorder writes it after a booking."""
    return {
        "id": state.uuid,
        "index": state.index,
        "used": state.slots,
        "usedmem": state.memory,
        "usedcores": state.cores,
        "custominfo": dict(state.notes),
        "mig_in_use": [
            {"profile": one.profile, "placement": {"start": one.start, "size": one.size}} for one in state.slices
        ],
    }


def grant(item: Json) -> Grant:
    return Grant(
        uuid=item.get("uuid", ""),
        device_type=item.get("type", ""),
        memory=item.get("usedmem", 0),
        cores=item.get("usedcores", 0),
        index=item.get("idx", 0),
        notes=item.get("custominfo"),
    )


def pieces(items: Sequence[Sequence[Json] | None] | None) -> tuple[Piece, ...]:
    return tuple(tuple(grant(item) for item in piece or ()) for piece in items or ())


def granted(grant: Grant, *, slots: bool = False) -> dict[str, Any]:
    """A grant as the recorder writes it."""
    return {
        "idx": grant.index,
        "uuid": grant.uuid,
        "type": grant.device_type,
        "usedmem": grant.memory,
        "usedcores": grant.cores,
        "custominfo": dict(grant.notes or {}),
        **({"slots": grant.slots} if slots else {}),
    }


def container(item: Json, *, init: bool = False) -> ContainerView:
    return ContainerView(
        name=item.get("name", ""),
        init=init,
        limits=item.get("limits") or {},
        requests=item.get("requests") or {},
        env={one["name"]: one["value"] for one in item.get("env") or ()},
    )


def pod(item: Json | None) -> PodView:
    """A pod. ``init_count`` stands for so many init containers of which nothing is known."""
    item = item or {}
    inits = [container(one, init=True) for one in item.get("init_containers") or ()]
    inits += [ContainerView(name=f"init-{n}", init=True) for n in range(item.get("init_count", 0))]
    return PodView(
        uid=item.get("uid", ""),
        namespace=item.get("namespace") or "default",
        name=item.get("name", ""),
        annotations=item.get("annotations") or {},
        containers=(*inits, *(container(one) for one in item.get("containers") or ())),
    )


def node(item: Json | None) -> NodeView:
    item = item or {}
    return NodeView(
        name=item.get("name", ""),
        annotations=item.get("annotations") or {},
        labels=item.get("labels") or {},
        capacity=item.get("capacity") or {},
        allocatable=item.get("allocatable") or {},
    )


def links(items: Sequence[Json] | None) -> Links:
    """The score annotation's content as links."""
    scores: Mapping[str, Mapping[str, int]] = {item["uuid"]: item.get("score") or {} for item in items or ()}
    return symmetric(
        {(a, b): Link(score=score, label="") for a, peers in scores.items() for b, score in peers.items() if a != b}
    )
