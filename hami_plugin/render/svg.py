"""A snapshot as JSON, for other programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from math import log
from typing import Any

from hami_plugin.model.device import Device, Snapshot
from hami_plugin.render.tables import device_name


def snapshot_json(snapshot: Snapshot) -> str:
    """Everything the snapshot holds but the vendor's own traits. Memory is in MiB, cores in percent."""
    links = snapshot.links
    document = {
        "ready": snapshot.ready,
        "reason": snapshot.reason,
        "message": snapshot.message,
        "facts": dict(sorted(snapshot.facts.items())),
        "devices": [_device(device) for device in snapshot.devices],
        "links": [
            {"a": a, "b": b, "score": link.score, "label": link.label, "level": link.level, "lanes": link.lanes}
            for (a, b), link in sorted(links.pairs.items())
        ],
        "asymmetric": [list(pair) for pair in links.asymmetric],
        "problems": list(links.problems),
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def links_document(snapshot: Snapshot, noun: str) -> dict[str, Any]:
    """How the devices are linked, for other programs: the devices by name, and each pair once, by their names."""
    names = {device.uuid: device_name(device, noun) for device in snapshot.devices}
    return {
        "devices": [
            {
                "name": names[device.uuid],
                "uuid": device.uuid,
                "index": device.index,
                "model": device.model,
                "numa": device.numa,
                "pci": device.pci,
                "offered": device.health.offered,
            }
            for device in snapshot.devices
        ],
        "links": [
            {
                "a": names.get(a, a),
                "b": names.get(b, b),
                "label": link.label,
                "score": link.score,
                "level": link.level,
                "lanes": link.lanes,
                "asymmetric": (a, b) in snapshot.links.asymmetric,
            }
            for (a, b), link in sorted(snapshot.links.pairs.items())
        ],
        "problems": list(snapshot.links.problems),
    }


def _device(device: Device) -> dict[str, Any]:
    return {
        "uuid": device.uuid,
        "index": device.index,
        "family": device.family,
        "model": device.model,
        "memory": device.memory,
        "cores": device.cores,
        "minor": device.minor,
        "pci": device.pci,
        "numa": device.numa,
        "mode": device.mode,
        "health": str(device.health),
        "offered": device.health.offered,
        "reason": device.reason,
        "message": device.message,
    }


# In print and for colour-blind readers the steps of one hue stay apart.
_PALE, _DEEP = (232, 240, 249), (8, 48, 107)
INK, QUIET, ALARM = "#1c2733", "#5b6875", "#b3261e"
FONT = "font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif\""

_SPAN = 10
"""The scale covers at least this ratio: where all scores are close to each other, so are their colours."""
_ORDER = 0.15
"""How much of the depth comes from a score's place in the order, which keeps any two scores apart."""
_LIGHT = 0.179
"""The luminance from which on black stands out better than white."""


def depth(score: int, scores: Sequence[int]) -> float:
    """How deep a score is drawn among ``scores`` (distinct, lowest first): 1 for the best, less for others.

    The ratio to the best counts, on a logarithmic scale, and a little the order.
    """
    if len(scores) < 2:
        return 0.7
    worst, best = (max(1, limit) for limit in (scores[0], scores[-1]))
    ratio = 1 - log(best / max(1, score)) / log(max(_SPAN, best / worst))
    return (1 - _ORDER) * ratio + _ORDER * scores.index(score) / (len(scores) - 1)


def colours(depth: float) -> tuple[str, str]:
    """The fill for a depth between 0 and 1, and ink that stands out from it."""
    fill = [round(pale + (deep - pale) * depth) for pale, deep in zip(_PALE, _DEEP, strict=True)]
    red, green, blue = (((part / 255 + 0.055) / 1.055) ** 2.4 for part in fill)
    light = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#{:02x}{:02x}{:02x}".format(*fill), "#000000" if light > _LIGHT else "#ffffff"


def text(
    x: float, y: float, words: str, *, size: int, weight: int = 400, fill: str = INK, anchor: str = "start"
) -> str:
    """A line of text as SVG."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" fill="{fill}" '
        f'text-anchor="{anchor}">{escape(clean(words))}</text>'
    )


def clean(text: str) -> str:
    """Without characters that XML cannot hold."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)
