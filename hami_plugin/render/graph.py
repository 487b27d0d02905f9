"""A snapshot's links as a graph: the devices in a circle, NUMA node by NUMA node, and a line for each direct link."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import cos, pi, sin

from hami_plugin.model.device import Device, Snapshot
from hami_plugin.model.links import Link
from hami_plugin.render.svg import ALARM, FONT, INK, QUIET, clean, text
from hami_plugin.render.tables import device_name, differs, explained, numa_name

_MARGIN, _TOP, _LINE = 24, 76, 22
_THROUGH_THE_HOST = ("PHB", "NODE", "SYS", "")
_ZONES = ("#dbe9f6", "#fde3cf", "#ddefdd", "#e6e0f2", "#fbe0ea", "#e9e4d8", "#d9efef", "#f1edc9")
_FABRIC, _BUS = "#08306b", "#7a8a99"
_THIN, _THICK = 1.5, 5.0


def link_graph_svg(snapshot: Snapshot, title: str, noun: str) -> str:
    """Devices, NUMA nodes and direct links as a standalone SVG; a better link is a thicker line.

    A pair without a line reaches each other through the host.
    """
    graph = _Graph(snapshot=snapshot, noun=noun)
    width, height = graph.width, graph.height
    size = f'width="{width}" height="{height}"'
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" {size} {FONT}>',
        f"<title>{escape(clean(title))}</title>",
        f'<rect {size} fill="#ffffff"/>',
        text(_MARGIN, 34, title, size=20, weight=600),
        text(_MARGIN, 56, f"{len(snapshot.devices)} devices · thicker = better connected", size=13, fill=QUIET),
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
        """NUMA node by NUMA node, those that are of no node last."""
        return sorted(self.snapshot.devices, key=lambda one: (one.numa is None, one.numa or 0, one.index))

    @property
    def radius(self) -> float:
        return max(150.0, 84 * len(self.snapshot.devices) / (2 * pi))

    @property
    def reach(self) -> float:
        """From the middle to the end of the names of the NUMA nodes."""
        return self.radius + 96

    @property
    def width(self) -> int:
        return round(2 * (self.reach + _MARGIN))

    @property
    def bottom(self) -> float:
        return _TOP + 2 * self.reach

    @property
    def height(self) -> int:
        return round(self.bottom + _LINE * max(1, len(self._legend_lines())) + _MARGIN)

    def place(self, turn: float, radius: float) -> tuple[float, float]:
        """``turn`` devices on from the top."""
        angle = 2 * pi * (turn + 0.5) / max(1, len(self.snapshot.devices)) - pi / 2
        return round(self.width / 2 + radius * cos(angle), 1), round(_TOP + self.reach + radius * sin(angle), 1)

    def zones(self) -> Iterator[str]:
        """A coloured piece of the ring for each NUMA node, with its name."""
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
            words = "no NUMA node" if name == "-" else f"NUMA {name}"
            yield text(x, y + 4, words, size=12, weight=600, fill=QUIET, anchor="middle")

    def lines(self) -> Iterator[str]:
        """The weakest first, so that the best lie on top."""
        turns = {device.uuid: turn for turn, device in enumerate(self.devices)}
        thickness = self._thickness()
        for a, b, link in sorted(self._direct(), key=lambda one: one[2].score):
            (x1, y1), (x2, y2) = (self.place(turns[device.uuid], self.radius) for device in (a, b))
            odd = differs(self.snapshot, a, b)
            colour = ALARM if odd else _FABRIC if link.lanes else _BUS
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
            colour = INK if device.health.offered else ALARM
            yield f'<rect x="{x - 36:g}" y="{y - 15:g}" width="72" height="30" rx="6" fill="#fff" stroke="{colour}"/>'
            name = device_name(device, self.noun) + ("" if device.health.offered else " ✕")
            yield text(x, y + 4, name, size=12, weight=600, fill=colour, anchor="middle")

    def legend(self) -> Iterator[str]:
        for number, (label, colour, thickness, meaning) in enumerate(self._legend_lines()):
            y = self.bottom + number * _LINE
            if colour:
                yield (
                    f'<line x1="{_MARGIN}" y1="{y - 4:g}" x2="{_MARGIN + 40}" y2="{y - 4:g}" stroke="{colour}" '
                    f'stroke-width="{thickness:g}"/>'
                )
            yield text(_MARGIN + 52, y, label, size=12, weight=600)
            yield text(_MARGIN + 120, y, meaning, size=12, fill=QUIET)

    def _direct(self) -> list[tuple[Device, Device, Link]]:
        """The pairs that need not go through the host, each once."""
        devices = self.devices
        pairs = [
            (a, b, self.snapshot.links.between(a.uuid, b.uuid)) for i, a in enumerate(devices) for b in devices[:i]
        ]
        return [(a, b, link) for a, b, link in pairs if link and (link.lanes or link.level not in _THROUGH_THE_HOST)]

    def _thickness(self) -> dict[str, float]:
        """Of the line for each label, by the order of their scores; the thinnest first."""
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
            found.append(("dashed", ALARM, _THIN, "the two directions differ, the worse one counts"))
        if not all(device.health.offered for device in self.snapshot.devices):
            found.append(("✕", "", 0, "not offered at present"))
        pairs = len(self.snapshot.devices) * (len(self.snapshot.devices) - 1) // 2
        if len(drawn) < pairs:
            found.append(("no line", "", 0, "the way leads through the host, or was not measured"))
        return found


def _meaning(label: str) -> str:
    (_, meaning) = explained([label])[0]
    number = "".join(filter(str.isdigit, label))
    return meaning.replace("# fabric links", f"{number} fabric link{'s'[: number != '1']}")
