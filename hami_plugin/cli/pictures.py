"""A snapshot's links as pictures, each a standalone SVG.

In the heat map, darker cells are better connected pairs. In the graph the devices form a circle, grouped by NUMA node,
with a line for each direct link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import cos, log, pi, sin

from hami_plugin.cli.tables import device_name, differs, explained, numa_name, pair_label
from hami_plugin.model.device import Device, Link, Snapshot

_MARGIN = 24
_EMPTY = "#f3f3f3"
_TOP, _LINE = 68, 20


def heat_map_svg(snapshot: Snapshot, title: str, noun: str) -> str:
    """The pair scores of a snapshot, with labels, NUMA nodes and a legend. Devices are named by ``noun``.

    Colours follow the ratio of the scores: 10, 50 and 1820 look different, 110 and 120 look similar. The order adds a
    little, so that no two scores look equal.
    """
    picture = _Picture(snapshot=snapshot, scores=_scores(snapshot), noun=noun)
    width, height = picture.width, picture.height
    size = f'width="{width}" height="{height}"'
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" {size} {_FONT}>',
        f"<title>{escape(_clean(title))}</title>",
        f'<rect {size} fill="#ffffff"/>',
        _line(_MARGIN, 34, title, size=20, weight=600),
        _line(_MARGIN, 56, _subtitle(snapshot), size=13, fill=_QUIET),
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
    """The layout. ``scores`` are the distinct pair scores, lowest first."""

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
            fill = _INK if device.health.offered else _ALARM
            state = "" if device.health.offered else " ✕"
            name = device_name(device, self.noun)
            yield _line(self.left + middle, self.top - 10, name, size=12, weight=600, fill=fill, anchor="middle")
            row = self.top + middle
            yield _line(_MARGIN, row - 1, f"{name}{state}", size=13, weight=600, fill=fill)
            yield _line(_MARGIN, row + 14, f"NUMA {numa_name(device)}", size=11, fill=_QUIET)

    def cells(self) -> Iterator[str]:
        for row, a in enumerate(self.devices):
            for column, b in enumerate(self.devices):
                yield from self._cell(a, b, self.left + column * self.cell, self.top + row * self.cell)

    def _cell(self, a: Device, b: Device, x: int, y: int) -> Iterator[str]:
        label, middle, size = pair_label(self.snapshot, a, b), self.cell // 2, self.cell - 2
        if a is b:
            yield f'<rect x="{x + 1}" y="{y + 1}" width="{size}" height="{size}" rx="4" fill="{_EMPTY}"/>'
            yield _line(x + middle, y + middle + 4, label, size=12, fill=_QUIET, anchor="middle")
            return
        score = self.snapshot.links.score(a.uuid, b.uuid)
        colour, ink = self._colours(score)
        odd = differs(self.snapshot, a, b)
        edge = f' stroke="{_ALARM}" stroke-width="2" stroke-dasharray="4 3"' if odd else ""
        hint = escape(f"{device_name(a, self.noun)} and {device_name(b, self.noun)}: {label}, score {score}")
        yield (
            f'<rect x="{x + 1}" y="{y + 1}" width="{size}" height="{size}" rx="4" fill="{colour}"{edge}>'
            f"<title>{hint}</title></rect>"
        )
        yield _line(x + middle, y + middle - 1, label, size=13, weight=600, fill=ink, anchor="middle")
        yield _line(x + middle, y + middle + 14, str(score), size=11, fill=ink, anchor="middle")

    def legend(self) -> Iterator[str]:
        y, step = self.bottom + 30, 64
        yield _line(_MARGIN, y + 15, "Pair score", size=12, weight=600)
        shown = self.scores if len(self.scores) <= 8 else _spread(self.scores, 8)
        for i, score in enumerate(shown):
            colour, ink = self._colours(score)
            x = _MARGIN + 84 + i * step
            yield f'<rect x="{x}" y="{y}" width="{step - 4}" height="22" rx="4" fill="{colour}"/>'
            yield _line(x + step // 2 - 2, y + 15, str(score), size=12, fill=ink, anchor="middle")
        for i, (label, meaning) in enumerate(self._legend_lines()):
            yield _line(_MARGIN, y + 50 + i * _LINE, label, size=12, weight=600)
            yield _line(_MARGIN + 84, y + 50 + i * _LINE, meaning, size=12, fill=_QUIET)

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
        """The fill and text colour of a score."""
        return _colours(_depth(score, self.scores))


def _spread(values: Sequence[int], count: int) -> list[int]:
    return [values[i * (len(values) - 1) // (count - 1)] for i in range(count)]


_GRAPH_TOP, _GRAPH_LINE = 76, 22
_THROUGH_THE_HOST = ("PHB", "NODE", "SYS", "")
_ZONES = ("#dbe9f6", "#fde3cf", "#ddefdd", "#e6e0f2", "#fbe0ea", "#e9e4d8", "#d9efef", "#f1edc9")
_FABRIC, _BUS = "#08306b", "#7a8a99"
_THIN, _THICK = 1.5, 5.0


def link_graph_svg(snapshot: Snapshot, title: str, noun: str) -> str:
    """Devices, NUMA nodes and direct links as a standalone SVG; a better link is a thicker line.

    Devices without a line reach each other through the host.
    """
    graph = _Graph(snapshot=snapshot, noun=noun)
    width, height = graph.width, graph.height
    size = f'width="{width}" height="{height}"'
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" {size} {_FONT}>',
        f"<title>{escape(_clean(title))}</title>",
        f'<rect {size} fill="#ffffff"/>',
        _line(_MARGIN, 34, title, size=20, weight=600),
        _line(_MARGIN, 56, f"{len(snapshot.devices)} devices · thicker = better connected", size=13, fill=_QUIET),
        *graph.zones(),
        *graph.lines(),
        *graph.nodes(),
        *graph.legend(),
        "</svg>",
    )
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph:
    snapshot: Snapshot
    noun: str

    @property
    def devices(self) -> Sequence[Device]:
        """Grouped by NUMA node; devices without one come last."""
        return sorted(self.snapshot.devices, key=lambda one: (one.numa is None, one.numa or 0, one.index))

    @property
    def radius(self) -> float:
        return max(150.0, 84 * len(self.snapshot.devices) / (2 * pi))

    @property
    def reach(self) -> float:
        """From the centre to the outer end of the NUMA nodes' names."""
        return self.radius + 96

    @property
    def width(self) -> int:
        return round(2 * (self.reach + _MARGIN))

    @property
    def bottom(self) -> float:
        return _GRAPH_TOP + 2 * self.reach

    @property
    def height(self) -> int:
        return round(self.bottom + _GRAPH_LINE * max(1, len(self._legend_lines())) + _MARGIN)

    def place(self, turn: float, radius: float) -> tuple[float, float]:
        """``turn`` devices on from the top."""
        angle = 2 * pi * (turn + 0.5) / max(1, len(self.snapshot.devices)) - pi / 2
        return round(self.width / 2 + radius * cos(angle), 1), round(_GRAPH_TOP + self.reach + radius * sin(angle), 1)

    def zones(self) -> Iterator[str]:
        """A coloured arc for each NUMA node, with its name."""
        for number, (name, members) in enumerate(groupby(enumerate(self.devices), lambda one: numa_name(one[1]))):
            turns = [turn for turn, _ in members]
            first, last = turns[0] - 0.47, turns[-1] + 0.47
            steps = [first + (last - first) * step / 24 for step in range(25)]
            points = " ".join(f"{x:g},{y:g}" for x, y in (self.place(turn, self.radius) for turn in steps))
            colour = _ZONES[number % len(_ZONES)]
            yield (
                f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="64" stroke-linejoin="round"/>'
            )
            x, y = self.place((first + last) / 2, self.radius + 62)
            zone = "no NUMA node" if name == "-" else f"NUMA {name}"
            yield _line(x, y + 4, zone, size=12, weight=600, fill=_QUIET, anchor="middle")

    def lines(self) -> Iterator[str]:
        """The weakest first, so that the best are drawn on top."""
        turns = {device.uuid: turn for turn, device in enumerate(self.devices)}
        thickness = self._thickness()
        for a, b, link in sorted(self._direct(), key=lambda one: one[2].score):
            (x1, y1), (x2, y2) = (self.place(turns[device.uuid], self.radius) for device in (a, b))
            odd = differs(self.snapshot, a, b)
            colour = _ALARM if odd else _FABRIC if link.lanes else _BUS
            dashes = ' stroke-dasharray="6 4"' if odd else ""
            names = f"{device_name(a, self.noun)} and {device_name(b, self.noun)}"
            yield (
                f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" stroke-opacity="0.75" '
                f'stroke-width="{thickness[link.label]:g}"{dashes}>'
                f"<title>{escape(f'{names}: {link.label}, score {link.score}')}</title></line>"
            )

    def nodes(self) -> Iterator[str]:
        for turn, device in enumerate(self.devices):
            x, y = self.place(turn, self.radius)
            colour = _INK if device.health.offered else _ALARM
            yield f'<rect x="{x - 36:g}" y="{y - 15:g}" width="72" height="30" rx="6" fill="#fff" stroke="{colour}"/>'
            name = device_name(device, self.noun) + ("" if device.health.offered else " ✕")
            yield _line(x, y + 4, name, size=12, weight=600, fill=colour, anchor="middle")

    def legend(self) -> Iterator[str]:
        for number, (label, colour, thickness, meaning) in enumerate(self._legend_lines()):
            y = self.bottom + number * _GRAPH_LINE
            if colour:
                yield (
                    f'<line x1="{_MARGIN}" y1="{y - 4:g}" x2="{_MARGIN + 40}" y2="{y - 4:g}" stroke="{colour}" '
                    f'stroke-width="{thickness:g}"/>'
                )
            yield _line(_MARGIN + 52, y, label, size=12, weight=600)
            yield _line(_MARGIN + 120, y, meaning, size=12, fill=_QUIET)

    def _direct(self) -> list[tuple[Device, Device, Link]]:
        """The pairs that are not connected through the host, each once."""
        devices = self.devices
        pairs = [
            (a, b, self.snapshot.links.between(a.uuid, b.uuid)) for i, a in enumerate(devices) for b in devices[:i]
        ]
        return [(a, b, link) for a, b, link in pairs if link and (link.lanes or link.level not in _THROUGH_THE_HOST)]

    def _thickness(self) -> dict[str, float]:
        """The line width for each label, by score; the thinnest first."""
        best: dict[str, int] = {}
        for _, _, link in self._direct():
            best[link.label] = max(link.score, best.get(link.label, 0))
        step = (_THICK - _THIN) / max(1, len(best))
        return {label: _THIN + step * place for place, label in enumerate(sorted(best, key=best.__getitem__), 1)}

    def _legend_lines(self) -> list[tuple[str, str, float, str]]:
        """Label, colour and thickness of the line, and what it means; best first."""
        drawn = self._direct()
        fabric = {link.label: bool(link.lanes) for _, _, link in drawn}
        found = [
            (label, _FABRIC if fabric[label] else _BUS, thickness, _meaning(label))
            for label, thickness in reversed(self._thickness().items())
        ]
        if any(differs(self.snapshot, a, b) for a, b, _ in drawn):
            found.append(("dashed", _ALARM, _THIN, "the two directions differ, the worse one counts"))
        if not all(device.health.offered for device in self.snapshot.devices):
            found.append(("✕", "", 0, "not offered at present"))
        pairs = len(self.snapshot.devices) * (len(self.snapshot.devices) - 1) // 2
        if len(drawn) < pairs:
            found.append(("no line", "", 0, "connected through the host, or not measured"))
        return found


def _meaning(label: str) -> str:
    (_, meaning) = explained([label])[0]
    number = "".join(filter(str.isdigit, label))
    return meaning.replace("# fabric links", f"{number} fabric link{'s'[: number != '1']}")


# The steps of one hue remain distinct in print and for colour-blind readers.
_PALE, _DEEP = (232, 240, 249), (8, 48, 107)
_INK, _QUIET, _ALARM = "#1c2733", "#5b6875", "#b3261e"
_FONT = "font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif\""

_SPAN = 10
"""The scale covers at least this ratio, so that similar scores have similar colours."""
_ORDER = 0.15
"""The part of the depth that comes from a score's rank, which keeps any two scores apart."""
_LIGHT = 0.179
"""The luminance above which black is more legible than white."""


def _depth(score: int, scores: Sequence[int]) -> float:
    """The colour depth of a score among ``scores`` (distinct, lowest first): 1 for the best, less for others.

    It depends on the ratio to the best, on a logarithmic scale, and a little on the rank.
    """
    if len(scores) < 2:
        return 0.7
    worst, best = (max(1, limit) for limit in (scores[0], scores[-1]))
    ratio = 1 - log(best / max(1, score)) / log(max(_SPAN, best / worst))
    return (1 - _ORDER) * ratio + _ORDER * scores.index(score) / (len(scores) - 1)


def _colours(depth: float) -> tuple[str, str]:
    """The fill for a depth between 0 and 1, and a text colour with contrast."""
    fill = [round(pale + (deep - pale) * depth) for pale, deep in zip(_PALE, _DEEP, strict=True)]
    red, green, blue = (((part / 255 + 0.055) / 1.055) ** 2.4 for part in fill)
    light = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#{:02x}{:02x}{:02x}".format(*fill), "#000000" if light > _LIGHT else "#ffffff"


def _line(
    x: float, y: float, content: str, *, size: int, weight: int = 400, fill: str = _INK, anchor: str = "start"
) -> str:
    """A line of text as SVG."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" fill="{fill}" '
        f'text-anchor="{anchor}">{escape(_clean(content))}</text>'
    )


def _clean(text: str) -> str:
    """``text`` without characters that XML cannot contain."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)
