"""A snapshot's links as a picture: a standalone SVG in which darker cells are better connected pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from hami_plugin.model.device import Device, Snapshot
from hami_plugin.render.names import device_name, differs, explained, numa_name, pair_label

# From a pale to a deep blue in steps that stay apart in print and for colour-blind readers.
_PALE, _DEEP = (232, 240, 249), (8, 48, 107)
_EMPTY = "#f3f3f3"
_INK, _QUIET, _ALARM = "#1c2733", "#5b6875", "#b3261e"
_MARGIN, _TOP, _LINE = 24, 68, 20
_FONT = "font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif\""


def heat_map_svg(snapshot: Snapshot, title: str) -> str:
    """The pair scores of a snapshot, with labels, NUMA nodes and a legend.

    Colours follow the order of the scores, not their size: on a machine with a fabric, 10 and 50 would else look equal.
    """
    picture = _Picture(snapshot=snapshot, scores=_scores(snapshot))
    width, height = picture.width, picture.height
    size = f'width="{width}" height="{height}"'
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" {size} {_FONT}>',
        f"<title>{escape(_clean(title))}</title>",
        f'<rect {size} fill="#ffffff"/>',
        _text(_MARGIN, 34, title, size=20, weight=600),
        _text(_MARGIN, 56, _subtitle(snapshot), size=13, fill=_QUIET),
        *picture.headers(),
        *picture.cells(),
        *picture.legend(),
        "</svg>",
    )
    return "\n".join(lines)


def _scores(snapshot: Snapshot) -> tuple[int, ...]:
    devices, links = snapshot.devices, snapshot.links
    return tuple(sorted({links.score(a.uuid, b.uuid) for a in devices for b in devices if a is not b}))


def _subtitle(snapshot: Snapshot) -> str:
    models = sorted({device.model for device in snapshot.devices})
    unwell = sum(not device.health.offered for device in snapshot.devices)
    parts = [f"{len(snapshot.devices)} devices", ", ".join(models), "darker = better connected"]
    return " · ".join([*(part for part in parts if part), *([f"{unwell} not offered"] if unwell else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picture:
    """Where things stand. ``scores`` are the distinct pair scores, lowest first."""

    snapshot: Snapshot
    scores: tuple[int, ...]

    @property
    def devices(self) -> Sequence[Device]:
        return self.snapshot.devices

    @property
    def cell(self) -> int:
        return max(52, min(72, 640 // max(1, len(self.devices))))

    @property
    def left(self) -> int:
        return _MARGIN + 112

    @property
    def top(self) -> int:
        return _TOP + 30

    @property
    def bottom(self) -> int:
        return self.top + self.cell * len(self.devices)

    @property
    def width(self) -> int:
        return max(640, self.left + self.cell * len(self.devices) + _MARGIN)

    @property
    def height(self) -> int:
        return self.bottom + 60 + _LINE * len(self._legend_lines()) + _MARGIN

    def headers(self) -> Iterator[str]:
        for i, device in enumerate(self.devices):
            middle = i * self.cell + self.cell // 2
            fill = _INK if device.health.offered else _ALARM
            state = "" if device.health.offered else " ✕"
            name = device_name(device)
            yield _text(self.left + middle, self.top - 10, name, size=12, weight=600, fill=fill, anchor="middle")
            row = self.top + middle
            yield _text(_MARGIN, row - 1, f"{name}{state}", size=13, weight=600, fill=fill)
            yield _text(_MARGIN, row + 14, f"NUMA {numa_name(device)}", size=11, fill=_QUIET)

    def cells(self) -> Iterator[str]:
        for row, a in enumerate(self.devices):
            for column, b in enumerate(self.devices):
                yield from self._cell(a, b, self.left + column * self.cell, self.top + row * self.cell)

    def _cell(self, a: Device, b: Device, x: int, y: int) -> Iterator[str]:
        label, middle, size = pair_label(self.snapshot, a, b), self.cell // 2, self.cell - 2
        if a is b:
            yield f'<rect x="{x + 1}" y="{y + 1}" width="{size}" height="{size}" rx="4" fill="{_EMPTY}"/>'
            yield _text(x + middle, y + middle + 4, label, size=12, fill=_QUIET, anchor="middle")
            return
        score = self.snapshot.links.score(a.uuid, b.uuid)
        colour, ink = self._colours(score)
        odd = differs(self.snapshot, a, b)
        edge = f' stroke="{_ALARM}" stroke-width="2" stroke-dasharray="4 3"' if odd else ""
        hint = escape(f"{device_name(a)} and {device_name(b)}: {label}, score {score}")
        yield (
            f'<rect x="{x + 1}" y="{y + 1}" width="{size}" height="{size}" rx="4" fill="{colour}"{edge}>'
            f"<title>{hint}</title></rect>"
        )
        yield _text(x + middle, y + middle - 1, label, size=13, weight=600, fill=ink, anchor="middle")
        yield _text(x + middle, y + middle + 14, str(score), size=11, fill=ink, anchor="middle")

    def legend(self) -> Iterator[str]:
        y, step = self.bottom + 30, 64
        yield _text(_MARGIN, y + 15, "Pair score", size=12, weight=600)
        shown = self.scores if len(self.scores) <= 8 else _spread(self.scores, 8)
        for i, score in enumerate(shown):
            colour, ink = self._colours(score)
            x = _MARGIN + 84 + i * step
            yield f'<rect x="{x}" y="{y}" width="{step - 4}" height="22" rx="4" fill="{colour}"/>'
            yield _text(x + step // 2 - 2, y + 15, str(score), size=12, fill=ink, anchor="middle")
        for i, (label, meaning) in enumerate(self._legend_lines()):
            yield _text(_MARGIN, y + 50 + i * _LINE, label, size=12, weight=600)
            yield _text(_MARGIN + 84, y + 50 + i * _LINE, meaning, size=12, fill=_QUIET)

    def _legend_lines(self) -> list[tuple[str, str]]:
        devices = self.devices
        labels = sorted({pair_label(self.snapshot, a, b) for a in devices for b in devices if a is not b})
        lines = explained(labels)
        if self.snapshot.links.asymmetric:
            lines.append(("dashed", "the two directions differ, the worse one counts"))
        if not all(device.health.offered for device in devices):
            lines.append(("✕", "not offered at present"))
        return lines

    def _colours(self, score: int) -> tuple[str, str]:
        """Fill and ink for a score, by its place among the scores that occur."""
        rank = self.scores.index(score) / (len(self.scores) - 1) if len(self.scores) > 1 else 0.7
        red, green, blue = (round(pale + (deep - pale) * rank) for pale, deep in zip(_PALE, _DEEP, strict=True))
        return f"#{red:02x}{green:02x}{blue:02x}", "#ffffff" if rank > 0.57 else _INK


def _spread(values: Sequence[int], count: int) -> list[int]:
    return [values[i * (len(values) - 1) // (count - 1)] for i in range(count)]


def _text(x: int, y: int, text: str, *, size: int, weight: int = 400, fill: str = _INK, anchor: str = "start") -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{fill}" '
        f'text-anchor="{anchor}">{escape(_clean(text))}</text>'
    )


def _clean(text: str) -> str:
    """Without characters that XML cannot hold."""
    return "".join(char if char.isprintable() else "�" for char in text)
