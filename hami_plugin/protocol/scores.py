"""The score annotation of a node: how well each pair of its devices is linked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from hami_plugin.model.links import Links
from hami_plugin.protocol.grammar import (
    INT64_MAX,
    Int64,
    from_json,
    from_usual_json,
    in_range,
    int_of,
    object_of,
    objects,
    printable,
    text_of,
    to_json,
)


def encode_scores(scores: Mapping[str, Mapping[str, int]], order: Sequence[str]) -> str:
    """The score annotation: one object for each device of ``order``, peers sorted, without the device itself."""
    return to_json(
        [
            {
                "uuid": printable(uuid, "uuid"),
                "score": {peer: in_range(n, f"score of {uuid} and {peer}") for peer, n in sorted(peers.items())},
            }
            for uuid, peers in ((uuid, scores.get(uuid, {})) for uuid in order)
        ],
        "score annotation",
    )


class _UsualRow(msgspec.Struct, forbid_unknown_fields=True):
    """A device's row as it should be: a scheduler that starts reads those of many nodes."""

    uuid: str
    score: dict[str, Int64]


_USUAL = msgspec.json.Decoder(list[_UsualRow])


def decode_scores(text: str) -> dict[str, dict[str, int]]:
    """Read the score annotation."""
    usual = from_usual_json(text, _USUAL, "score annotation")
    if usual is not None and "".join(chain.from_iterable([(row.uuid, *row.score) for row in usual])).isprintable():
        return {row.uuid: row.score for row in usual}
    return _decoded(objects(from_json(text, "score annotation"), "score annotation"))


def _decoded(items: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The same, member by member: ``WireError`` names the first one that is not what it should be."""
    scores: dict[str, dict[str, int]] = {}
    for position, item in enumerate(items):
        where = f"score annotation[{position}]"
        peers = object_of(item, "score", where) or {}
        printable("".join(peers), where)
        scores[text_of(item, "uuid", where)] = {peer: int_of(peers, peer, where, _LOW, _HIGH) for peer in peers}
    return scores


_LOW, _HIGH = -INT64_MAX - 1, INT64_MAX


def score_annotation(links: Links, uuids: Sequence[str], budget: int = 64 * 1024) -> str | None:
    """All pairs among ``uuids``; None when that needs more than ``budget`` bytes.

    It grows with the square of the devices: 64 take 193 KiB of the 256 that a node has for all its annotations.
    """
    shortest = sum(len(uuid) + len('"":0') for uuid in uuids) * (len(uuids) - 1)
    if shortest > budget:
        return None
    scores = {uuid: {peer: links.score(uuid, peer) for peer in uuids if peer != uuid} for uuid in uuids}
    text = encode_scores(scores, uuids)
    return text if len(text.encode()) <= budget else None
