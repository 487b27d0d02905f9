"""A snapshot's links as a picture: a standalone SVG in which darker cells are better connected pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from hami_plugin.model.device import Device, Snapshot
from hami_plugin.render.svg import ALARM, FONT, INK, QUIET, clean, colours, depth, text
from hami_plugin.render.tables import device_name, differs, explained, numa_name, pair_label

_EMPTY = "#f3f3f3"
_MARGIN, _TOP, _LINE = 24, 68, 20


def heat_map_svg(snapshot: Snapshot, title: str, noun: str) -> str:
    """The pair scores of a snapshot, with labels, NUMA nodes and a legend. Devices are named by ``noun``.

    Colours follow the ratio of the scores, so that 10, 50 and 1820 are told apart and 110 beside 120 looks like what it
    is; the order adds a little, so that no two scores look equal.
    """
    picture = _Picture(snapshot=snapshot, scores=_scores(snapshot), noun=noun)
    width, height = picture.width, picture.height
    size = f'width="{width}" height="{height}"'
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" {size} {FONT}>',
        f"<title>{escape(clean(title))}</title>",
        f'<rect {size} fill="#ffffff"/>',
        text(_MARGIN, 34, title, size=20, weight=600),
        text(_MARGIN, 56, _subtitle(snapshot), size=13, fill=QUIET),
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
    noun: str

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
            fill = INK if device.health.offered else ALARM
            state = "" if device.health.offered else " ✕"
            name = device_name(device, self.noun)
            yield text(self.left + middle, self.top - 10, name, size=12, weight=600, fill=fill, anchor="middle")
            row = self.top + middle
            yield text(_MARGIN, row - 1, f"{name}{state}", size=13, weight=600, fill=fill)
            yield text(_MARGIN, row + 14, f"NUMA {numa_name(device)}", size=11, fill=QUIET)

    def cells(self) -> Iterator[str]:
        for row, a in enumerate(self.devices):
            for column, b in enumerate(self.devices):
                yield from self._cell(a, b, self.left + column * self.cell, self.top + row * self.cell)

    def _cell(self, a: Device, b: Device, x: int, y: int) -> Iterator[str]:
        label, middle, size = pair_label(self.snapshot, a, b), self.cell // 2, self.cell - 2
        if a is b:
            yield f'<rect x="{x + 1}" y="{y + 1}" width="{size}" height="{size}" rx="4" fill="{_EMPTY}"/>'
            yield text(x + middle, y + middle + 4, label, size=12, fill=QUIET, anchor="middle")
            return
        score = self.snapshot.links.score(a.uuid, b.uuid)
        colour, ink = self._colours(score)
        odd = differs(self.snapshot, a, b)
        edge = f' stroke="{ALARM}" stroke-width="2" stroke-dasharray="4 3"' if odd else ""
        hint = escape(f"{device_name(a, self.noun)} and {device_name(b, self.noun)}: {label}, score {score}")
        yield (
            f'<rect x="{x + 1}" y="{y + 1}" width="{size}" height="{size}" rx="4" fill="{colour}"{edge}>'
            f"<title>{hint}</title></rect>"
        )
        yield text(x + middle, y + middle - 1, label, size=13, weight=600, fill=ink, anchor="middle")
        yield text(x + middle, y + middle + 14, str(score), size=11, fill=ink, anchor="middle")

    def legend(self) -> Iterator[str]:
        y, step = self.bottom + 30, 64
        yield text(_MARGIN, y + 15, "Pair score", size=12, weight=600)
        shown = self.scores if len(self.scores) <= 8 else _spread(self.scores, 8)
        for i, score in enumerate(shown):
            colour, ink = self._colours(score)
            x = _MARGIN + 84 + i * step
            yield f'<rect x="{x}" y="{y}" width="{step - 4}" height="22" rx="4" fill="{colour}"/>'
            yield text(x + step // 2 - 2, y + 15, str(score), size=12, fill=ink, anchor="middle")
        for i, (label, meaning) in enumerate(self._legend_lines()):
            yield text(_MARGIN, y + 50 + i * _LINE, label, size=12, weight=600)
            yield text(_MARGIN + 84, y + 50 + i * _LINE, meaning, size=12, fill=QUIET)

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
        """Fill and ink for a score."""
        return colours(depth(score, self.scores))


def _spread(values: Sequence[int], count: int) -> list[int]:
    return [values[i * (len(values) - 1) // (count - 1)] for i in range(count)]
