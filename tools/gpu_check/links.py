"""NVLinks of a card, and PCIe levels between cards; with one card, between it and itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tools.gpu_check.cards import Card
from tools.gpu_check.findings import Bench
from tools.gpu_check.library import Refused, address, ask, constant, refused

LINK_COUNT_FIELD = 91
_INTERNAL = 0
_LEVELS = (0, 10, 20, 30, 40, 50)
_SYSTEM = 50


def check_links(card: Card) -> None:
    """How many, how many are up, what is at their ends, and what is answered past the last."""
    limit = int(constant("NVML_NVLINK_MAX_LINKS") or 18)
    states = [ask("nvmlDeviceGetNvLinkState", card.handle, link) for link in range(limit)]
    there = [link for link, state in enumerate(states) if isinstance(state, int)]
    up = [link for link in there if states[link]]
    with card.about("links") as findings:
        card.among("ports", "link_count", len(there))
        card.among("ports that are up", "active_links", len(up))
        _field(card, len(there))
        if len(there) < limit:
            code = "INVALID_ARGUMENT" if there else "NOT_SUPPORTED"
            findings.equal("state past the last port", refused(card.code(code)), states[len(there)])
        if not up:
            findings.not_applicable("ends of ports", "no port is up")
            return
        _ends(card, up)


def _field(card: Card, ports: int) -> None:
    """The field that should make counting unnecessary."""
    values = ask("nvmlDeviceGetFieldValues", card.handle, [LINK_COUNT_FIELD])
    if isinstance(values, Refused):
        card.findings.judge("port count as a field", ports, values, same=False)
        return
    code = int(values[0].nvmlReturn)
    if ports:
        card.findings.equal("port count as a field", ports, refused(code) if code else int(values[0].value.uiVal))
    else:
        card.findings.equal("port count as a field", refused(card.code("NOT_SUPPORTED")), refused(code))


def _ends(card: Card, up: Sequence[int]) -> None:
    versions = {ask("nvmlDeviceGetNvLinkVersion", card.handle, link) for link in up}
    kinds = {ask("nvmlDeviceGetNvLinkRemoteDeviceType", card.handle, link) for link in up}
    for version in sorted(versions, key=repr):
        card.among("version", "link_version", version)
    card.among("kinds of ends", "remote_types", sorted(kinds, key=repr))
    infos = [ask("nvmlDeviceGetNvLinkRemotePciInfo", card.handle, link) for link in up]
    refusals = sorted({str(info.name) for info in infos if isinstance(info, Refused)})
    card.findings.equal("ends that have no bus id", [], refusals)


def check_levels(bench: Bench, cards: Sequence[Card]) -> None:
    """Levels are the same from both ends; a card's level with itself is internal."""
    for card in cards:
        with card.about("topology") as findings:
            own = ask("nvmlDeviceGetTopologyCommonAncestor", card.handle, card.handle)
            findings.equal("level with itself", _INTERNAL, own)
            findings.equal("on its own board", 1, ask("nvmlDeviceOnSameBoard", card.handle, card.handle))
            _nearest(card, cards)
    with bench.findings.about("topology"):
        for i, a in enumerate(cards):
            for b in cards[i + 1 :]:
                _pair(bench, a, b)


def _nearest(card: Card, cards: Sequence[Card]) -> None:
    """The cards at the farthest level; none for a card that is alone."""
    found = ask("nvmlDeviceGetTopologyNearestGpus", card.handle, _SYSTEM)
    far = [
        other.index
        for other in cards
        if other.index != card.index
        and ask("nvmlDeviceGetTopologyCommonAncestor", card.handle, other.handle) == _SYSTEM
    ]
    observed = found if isinstance(found, Refused) else _indices(found, cards)
    card.findings.equal(f"cards at level {_SYSTEM}", far, observed)


def _indices(handles: Sequence[Any], cards: Sequence[Card]) -> list[int]:
    """Of the cards that can be asked: a lost one may be named or not."""
    known = {address(card.handle): card.index for card in cards}
    return sorted(known[found] for found in map(address, handles) if found in known)


def _pair(bench: Bench, a: Card, b: Card) -> None:
    there = ask("nvmlDeviceGetTopologyCommonAncestor", a.handle, b.handle)
    back = ask("nvmlDeviceGetTopologyCommonAncestor", b.handle, a.handle)
    name = f"cards {a.index} and {b.index}"
    bench.findings.judge(f"{name}: level", f"one of {_LEVELS}", there, same=there in _LEVELS)
    bench.findings.equal(f"{name}: level from the other end", there, back)
    status = ask("nvmlDeviceGetP2PStatus", a.handle, b.handle, 0)
    bench.findings.judge(f"{name}: peer status", "a number", status, same=isinstance(status, int))
