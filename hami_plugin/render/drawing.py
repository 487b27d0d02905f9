"""What the pictures of a snapshot share: letters, colours, and the scale from a pale to a deep blue."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log

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
