"""A small HTTP server for probes, metrics and the effective configuration, and the status page that it shows.

The page is the state of a node, or of the cluster, as one file of HTML, whole without scripts, live with them. Every
text of a pod or a driver goes through ``_text``. The policy of the page lets a browser run the one script below and
fetch from this server, and nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
import ipaddress
import json
import math
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from html import escape
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from hami_plugin.errors import HamiError
from hami_plugin.telemetry.connections import Connections

Document = Mapping[str, Any]

MAX_TEXT = 400
"""Characters of one text; a longer one is cut."""
MAX_DRAWN = 32
"""Devices whose links are drawn; those of more are no picture."""
SIGNS = {"healthy": "✓", "suspect": "?", "unhealthy": "✗", "probation": "…"}
_HIDDEN = dict.fromkeys((*range(32), *range(127, 160), 1564, 8206, 8207, *range(8234, 8239)), "�")
_HIDDEN |= dict.fromkeys(range(8294, 8298), "�")

STYLE = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#16202c;--soft:#566372;--line:#d5dbe2;--ok:#17703f;
--bad:#b3261e;--mid:#8a5a00;--fill:#2a6fdb}
@media(prefers-color-scheme:dark){:root{--bg:#12161b;--card:#1b2129;--ink:#e7ecf2;--soft:#a3afbd;--line:#37414d;
--ok:#6fd39a;--bad:#ff8a80;--mid:#f0c060;--fill:#6ea8ff}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.45 system-ui,sans-serif}
header,main,footer{max-width:1180px;margin:0 auto;padding:0 16px}header{padding-top:18px}
h1{font-size:1.35rem;margin:0}h2{font-size:1.05rem;margin:26px 0 10px}h3{font-size:1rem;margin:0}
.soft,footer{color:var(--soft)}footer{padding-bottom:28px}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(250px,100%),1fr));gap:12px;margin:0;padding:0;
list-style:none}
.tile{background:var(--card);border:1px solid var(--line);border-left:5px solid var(--ok);border-radius:8px;
padding:10px 12px;overflow-wrap:anywhere}
.tile.unhealthy{border-left-color:var(--bad)}.tile.suspect,.tile.probation{border-left-color:var(--mid)}
.tile:focus-visible,a:focus-visible,summary:focus-visible,.wide:focus-visible{outline:3px solid var(--fill);
outline-offset:2px}
.ok{color:var(--ok)}.bad{color:var(--bad)}.mid{color:var(--mid)}.top{display:flex;justify-content:space-between;gap:8px}
meter{width:100%;height:12px}ul.plain{margin:6px 0 0;padding:0;list-style:none}.mono{font-family:ui-monospace,monospace;
font-size:.85em}
.wide{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:8px}
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:6px 10px;
border-bottom:1px solid var(--line);overflow-wrap:anywhere;min-width:5.5em}tr:last-child td{border-bottom:0}
th{color:var(--soft);font-weight:600}svg{width:100%;max-width:460px;height:auto;display:block;margin:auto}
svg text{fill:var(--ink);font-size:13px;text-anchor:middle;dominant-baseline:central}svg circle{fill:var(--card);
stroke:var(--ink)}svg line{stroke:var(--fill)}.skip{position:absolute;left:-999px}.skip:focus{left:8px;top:8px}
@media(prefers-reduced-motion:no-preference){.tile{transition:border-color .3s}}
"""
SCRIPT = """
const main=document.getElementById('state'),live=document.getElementById('live');let seen='',timer=0;
async function look(){clearTimeout(timer);if(document.hidden)return;
try{const answer=await fetch('status.json',{cache:'no-store'});if(!answer.ok)throw new Error(answer.status);
const now=await answer.json();if(now.digest!==seen){const held=document.activeElement&&document.activeElement.id;
const open=new Set([...main.querySelectorAll('details[open]')].map(one=>one.id));main.innerHTML=now.html;
for(const one of main.querySelectorAll('details'))if(open.has(one.id))one.open=true;
const back=held&&document.getElementById(held);if(back)back.focus({preventScroll:true});seen=now.digest;}
live.textContent='live';}catch(error){live.textContent='no answer, trying again';}
timer=setTimeout(look,2000);}
document.addEventListener('visibilitychange',look);
document.addEventListener('keydown',event=>{const tiles=[...document.querySelectorAll('.tile')];
const at=tiles.indexOf(document.activeElement),step={ArrowRight:1,ArrowDown:1,ArrowLeft:-1,ArrowUp:-1}[event.key];
if(at>=0&&step){event.preventDefault();(tiles[at+step]||tiles[at]).focus();}});look();
"""


def _digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def policy() -> str:
    """The page's Content-Security-Policy."""
    return (
        f"default-src 'none'; style-src {_digest(STYLE)}; script-src {_digest(SCRIPT)}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def page(document: Document) -> str:
    """The whole page."""
    node = _text(document["node"] if "node" in document else f"Cluster, {document['scheduler']}")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{node}, hami-plugin</title>\n'
        f'<style>{STYLE}</style>\n</head>\n<body>\n<a class="skip" href="#state">Skip to the devices</a>\n'
        f'<header><h1>{node}</h1><p class="soft">hami-plugin {_text(document["version"])}, '
        f'<span id="live" role="status">as of {_time(document["time"])}; reload for news</span></p></header>\n'
        f'<main id="state" tabindex="-1">\n{state(document)}</main>\n'
        f'<footer>Read-only. <a href="status.json">This as JSON</a>, <a href="metrics">metrics</a>, '
        f'<a href="readyz">readiness</a></footer>\n<script>{SCRIPT}</script>\n</body>\n</html>\n'
    )


def news(document: Document) -> dict[str, Any]:
    """What the page's script fetches: the document, and its part of the page with a digest that changes with it."""
    html = state(document)
    return {**document, "html": html, "digest": hashlib.sha256(html.encode()).hexdigest()[:16]}


def state(document: Document) -> str:
    """The part of the page that changes."""
    return "".join(
        f'<section aria-labelledby="{name}"><h2 id="{name}">{title}</h2>\n{body}</section>\n'
        for name, title, body in _sections(document)
        if body
    )


def _sections(document: Document) -> Iterator[tuple[str, str, str]]:
    """Of a node, or of the cluster."""
    yield from _of_node(document) if "node" in document else _of_cluster(document)


def _of_cluster(document: Document) -> Iterator[tuple[str, str, str]]:
    yield "ready", "Scheduler", _daemon(document)
    shown = f", of the first {len(document['nodes'])} nodes" if document["more"] else ""
    yield "sums", f"Devices{shown}", _sums(document["sums"])
    for number, node in enumerate(document["nodes"]):
        tiles = "".join(_cluster_tile(f"{number}-{at}", one) for at, one in enumerate(node["devices"]))
        yield f"node-{number}", _text(node["name"]), f'<ul class="tiles">\n{tiles}</ul>\n'
    yield "more", "Further nodes", f"<p>{document['more']} more nodes are not shown.</p>\n" if document["more"] else ""
    yield "refused", "Refused", _events(document["refused"], "refused")
    yield "events", "Last events", _events(document["events"], "events")


def _sums(sums: Mapping[str, Mapping[str, int]]) -> str:
    rows = [
        (
            _text(device_type),
            f"{one['healthy']} of {one['devices']}",
            f"{one['sharesTaken']} of {one['shares']}",
            f"{one['memoryTaken']} of {one['memory']}",
        )
        for device_type, one in sums.items()
    ]
    heads = ("Type", "Healthy", "Shares taken", "Memory taken")
    return _table(heads, rows, "sums") if rows else "<p>No node has devices.</p>\n"


def _cluster_tile(place: str, device: Mapping[str, Any]) -> str:
    health, kind = ("healthy", "ok") if device["healthy"] else ("unhealthy", "bad")
    name = f"{_text(device['deviceType'])} {int(device['index'])}"
    shares = f"{int(device['sharesTaken'])} of {int(device['shares'])} shares"
    memory, taken = int(device["memory"]), int(device["memoryTaken"])
    holders = [_text(one) for one in device["holders"]]
    holders += [f"and {int(device['moreHolders'])} more"] if device["moreHolders"] else []
    return (
        f'<li class="tile {health}" id="d-{place}" tabindex="0" aria-label="{name}, {health}, {shares}">'
        f'<div class="top"><h3>{name}</h3><span class="{kind}">{SIGNS[health]} {health}</span></div>'
        f'<div class="soft">{_text(device["model"])}</div>'
        f"<div>{shares}, {taken} of {memory} {_text(device['unit'])}</div>"
        + (f'<meter min="0" max="{memory}" value="{min(taken, memory)}">{taken}</meter>' if memory > 0 else "")
        + (
            '<ul class="plain">' + "".join(f"<li>{one}</li>" for one in holders) + "</ul>"
            if holders
            else '<div class="soft">free</div>'
        )
        + f'<div class="soft mono">{_text(device["uuid"])}</div></li>\n'
    )


def _of_node(document: Document) -> Iterator[tuple[str, str, str]]:
    yield "ready", "Daemon", _daemon(document)
    yield "devices", "Devices", _tiles(document["devices"])
    yield "links", "Links", "".join(_links(one) for one in document["links"])
    yield "partitions", "Partitions", _partitions(document)
    yield "refused", "Refused", _events(document["refused"], "refused")
    yield "events", "Last events", _events(document["events"], "events")


def _daemon(document: Document) -> str:
    problems = {name: why for name, why in document["components"].items() if why}
    configuration = document["configuration"]
    lines = [
        '<span class="ok">✓ ready</span>' if not problems else '<span class="bad">✗ not ready</span>',
        f"configuration {_text(configuration['generation'])}"
        + (
            f', <span class="bad">✗ a change is refused ({_text(configuration["refused"])})</span>: '
            f"{_text(configuration['problem'])}"
            if configuration["refused"]
            else " in force"
        ),
        *(f'<span class="bad">✗ {_text(name)}</span>: {_text(why)}' for name, why in problems.items()),
    ]
    return '<ul class="plain">' + "".join(f"<li>{line}</li>" for line in lines) + "</ul>\n"


def _tiles(devices: Sequence[Mapping[str, Any]]) -> str:
    if not devices:
        return "<p>No devices are known.</p>\n"
    return '<ul class="tiles">\n' + "".join(map(_tile, devices)) + "</ul>\n"


def _tile(device: Mapping[str, Any]) -> str:
    health = str(device["health"])
    kind = {"healthy": "ok", "unhealthy": "bad"}.get(health, "mid")
    held = sum(one["memoryLimit"] for one in device["containers"])
    memory = int(device["memory"])
    name = f"{_text(device['noun'])}{_text(device['number'])}"
    why = " ".join(filter(None, (str(device["reason"]), str(device["message"]))))
    return (
        f'<li class="tile {_text(health)}" id="d-{_text(device["uuid"])}" tabindex="0" aria-label="{name}, '
        f'{_text(health)}, {device["sharesAllocated"]} of {device["shares"]} shares">'
        f'<div class="top"><h3>{name}</h3><span class="{kind}">{SIGNS.get(health, "!")} {_text(health)}</span></div>'
        f'<div class="soft">{_text(device["model"])}</div>'
        + (f'<p class="{kind}">{_text(why)}</p>' if why else "")
        + f"<div>{device['sharesAllocated']} of {device['shares']} shares, {_size(held)} of {_size(memory)}</div>"
        + (f'<meter min="0" max="{memory}" value="{min(held, memory)}">{_size(held)}</meter>' if memory else "")
        + _holders(device["containers"])
        + _outsiders(device["outsiders"] or ())
        + f'<div class="soft mono">{_text(device["uuid"])}</div></li>\n'
    )


def _holders(containers: Sequence[Mapping[str, Any]]) -> str:
    if not containers:
        return '<div class="soft">free</div>'
    lines = []
    for one in containers:
        used = f", uses {_size(one['memoryUsed'])}" if one["memoryUsed"] is not None else ""
        if one["driverMemory"] is not None:
            used += f" ({_size(one['driverMemory'])} by the driver)"
        cores = f", {one['cores']:.0%} of the cores" if one["cores"] else ""
        name = f"{_text(one['namespace'])}/{_text(one['pod'])} ({_text(one['container'])})"
        lines.append(f"<li>{name}: {_size(one['memoryLimit'])}{cores}{used}</li>")
    return '<ul class="plain">' + "".join(lines) + "</ul>"


def _outsiders(groups: Sequence[Mapping[str, Any]]) -> str:
    """Processes on the device that are of nobody who has a share of it."""
    lines = [f"<li>{_text(one['who'])}: {one['processes']} on it, {_size(one['memory'])}</li>" for one in groups]
    return f'<ul class="plain mid">{"".join(lines)}</ul>' if lines else ""


def _links(group: Mapping[str, Any]) -> str:
    """The pairs as a graph where they can be told apart, and as a table."""
    pairs = group["pairs"]
    names = sorted({str(name) for pair in pairs for name in (pair["a"], pair["b"])}, key=_number)
    vendor = _text(group["vendor"])
    rows = [
        (_text(label), f"{len(found)}", _text(", ".join(f"{pair['a']}-{pair['b']}" for pair in found)))
        for label, found in _by_label(pairs).items()
    ]
    drawn = _graph(names, pairs, vendor) if len(names) <= MAX_DRAWN and not group["more"] else ""
    more = f'<p class="soft">{group["more"]} more pairs are left out.</p>' if group["more"] else ""
    table = _table(("Link", "Pairs", "Which"), rows, "pairs")
    return (
        f'{drawn}<details id="links-{vendor}"><summary>{vendor}: {len(pairs)} pairs</summary>{table}{more}</details>\n'
    )


def _by_label(pairs: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for pair in pairs:
        found.setdefault(str(pair["label"]), []).append(pair)
    return found


def _graph(names: Sequence[str], pairs: Sequence[Mapping[str, Any]], vendor: str) -> str:
    """Devices on a circle; the better a link, the stronger its line."""
    places = {
        name: (
            round(200 + 165 * math.sin(2 * math.pi * number / len(names)), 1),
            round(200 - 165 * math.cos(2 * math.pi * number / len(names)), 1),
        )
        for number, name in enumerate(names)
    }
    scores = sorted({pair["score"] for pair in pairs})
    lines = []
    for pair in reversed(pairs):
        rank = (scores.index(pair["score"]) + 1) / len(scores)
        (x1, y1), (x2, y2) = places[str(pair["a"])], places[str(pair["b"])]
        lines.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke-width="{0.5 + 2.5 * rank:.1f}" '
            f'stroke-opacity="{0.15 + 0.75 * rank:.2f}"/>'
        )
    points = "".join(
        f'<circle cx="{x}" cy="{y}" r="17"/><text x="{x}" y="{y}">{_text(name)}</text>'
        for name, (x, y) in places.items()
    )
    best = _text(pairs[0]["label"])
    return (
        f'<svg viewBox="0 0 400 400" role="img" aria-label="Links of {vendor}: {len(names)} devices, {len(pairs)} '
        f'pairs, the best is {best}">{"".join(lines)}{points}</svg>\n'
    )


def _partitions(document: Document) -> str:
    rows = [
        (
            _text(one.get("resource", "")),
            _text(one.get("card", "")),
            _text(one.get("profile", "")),
            _text(one.get("state", "")),
            _text(one.get("owner") or one.get("pod") or ""),
        )
        for one in document["partitions"]
    ]
    left = [
        (_text(one["resource"]), _text(one["card"]), _text(one["profile"]), f"{one['left']} more", "")
        for one in document["placeable"]
    ]
    return _table(("Resource", "Card", "Profile", "State", "Pod"), rows + left, "parts") if rows or left else ""


def _events(events: Sequence[Mapping[str, Any]], name: str) -> str:
    rows = [
        (
            _time(one["time"]),
            _reason(one),
            f"{_text(one['kind'])} {_text(one['about'])}",
            _text(one["message"]),
        )
        for one in events
    ]
    return _table(("Time", "Reason", "About", "Message"), rows, name) if rows else "<p>None.</p>\n"


def _reason(event: Mapping[str, Any]) -> str:
    kind, sign = ("bad", "✗") if event["warning"] else ("ok", "✓")
    return f'<span class="{kind}">{sign} {_text(event["reason"])}</span>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], name: str) -> str:
    """``rows`` are HTML already."""
    head = "".join(f'<th scope="col">{one}</th>' for one in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows)
    return (
        f'<div class="wide" id="t-{name}" tabindex="0" role="region" aria-label="{name}"><table><thead><tr>{head}</tr>'
        f"</thead><tbody>\n{body}</tbody></table></div>\n"
    )


def _text(value: object) -> str:
    """Any text as HTML, in an attribute too: cut, without characters that hide or reorder others."""
    text = str(value)
    short = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
    return escape(short.translate(_HIDDEN), quote=True)


def _time(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return f'<time datetime="{moment:%Y-%m-%dT%H:%M:%SZ}">{moment:%H:%M:%S} UTC</time>'


def _size(size: float) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


def _number(name: str) -> tuple[list[int], str]:
    return [int(part) for part in name.split(":") if part.isdecimal()], name


_INDEX = """hami-plugin

/healthz       whether the process is alive
/readyz        {purpose}
/metrics       for Prometheus
/debug/config  the effective configuration, from this host or pod only{more}
"""
_PAGES = {
    "usage": "/debug/usage   devices, their containers and what they use, from this host or pod only",
    "partitions": "/debug/partitions  what cards are cut into, from this host or pod only",
    "faults": "/debug/faults  devices with their last fault and whom it hit, from this host or pod only",
    "status": "/status.json   all of the state; a browser gets it here as a page, unless statusPage says otherwise",
    "claims": "/debug/claims  what is prepared for ResourceClaims, from this host or pod only",
}
FORGET_HEADER, RESIZE_HEADER = "Hami-Plugin-Forget", "Hami-Plugin-Resize"
"""Of a request that changes something: no page in a browser can send it to another site unasked."""
MAX_RESIZE_BYTES = 4096
_CLAIM_UID = re.compile(r"[0-9a-zA-Z][-0-9a-zA-Z]{0,62}")
_END = b"# EOF\n"
"""Of metrics in OpenMetrics' format."""
NODE_PURPOSE = "whether the devices are offered to the kubelet"
_STOP_S = 2.0
_SHUTDOWN_TIMEOUT_S = _STOP_S / 4
"""Timeout of requests while the server stops; aiohttp waits twice as long."""


async def nothing() -> None:
    """Nothing to refresh before a scrape."""


async def no_metrics() -> bytes:
    """None beside those of the registry."""
    return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """The pages about a process. They show what the callables return at the time of the request.

    ``alive`` lists problems that only a restart solves; a broken device or an absent kubelet is none of them.
    ``ready`` maps each component to its problem, empty if there is none; ``purpose`` says what readiness means.
    ``refresh`` is awaited before each scrape. ``more_metrics`` are lines that both formats may have, of
    metrics that are too many for a registry. ``details`` are shown beside readiness, and do not decide it.
    ``documents`` are what commands of this host or pod read, by their names.
    """

    registry: CollectorRegistry
    alive: Callable[[], Sequence[str]]
    ready: Callable[[], Mapping[str, str]]
    configuration: Callable[[], Mapping[str, object]]
    refresh: Callable[[], Awaitable[None]] = nothing
    more_metrics: Callable[[], Awaitable[bytes]] = no_metrics
    purpose: str = NODE_PURPOSE
    documents: Mapping[str, Callable[[], Mapping[str, object]]] = field(default_factory=dict)
    details: Callable[[], Mapping[str, object]] = dict
    status: Callable[[], Mapping[str, Any]] | None = None
    status_readers: Callable[[], str] = lambda: "loopback"
    forget_claim: Callable[[str], Awaitable[Mapping[str, object]]] | None = None
    resize: Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]] | None = None

    def add_to(self, app: web.Application) -> None:
        """Serve the pages in ``app``."""
        app.router.add_get("/", self._index)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/debug/config", partial(document, "configuration", self.configuration))
        for name, make in self.documents.items():
            app.router.add_get(f"/debug/{name}", partial(document, name, make))
        if self.status:
            app.router.add_get("/status.json", self._status)
        if self.forget_claim:
            app.router.add_delete("/debug/claims/{uid}", self._forget_claim)
        if self.resize:
            app.router.add_post("/debug/resize", self._resize)

    async def _index(self, request: web.Request) -> web.Response:
        """The status page for a browser that may see it, else what there is, as text."""
        if self.status and "text/html" in request.headers.get("Accept", "") and self._may_look(request):
            return web.Response(text=page(self.status()), content_type="text/html", headers=_page_headers())
        there = {*self.documents, *(("status",) if self.status else ())}
        more = "".join(f"\n{line}" for name, line in _PAGES.items() if name in there)
        return web.Response(text=_INDEX.format(purpose=self.purpose, more=more))

    async def _healthz(self, _request: web.Request) -> web.Response:
        problems = list(self.alive())
        return _json({"alive": not problems, "problems": problems}, status=503 if problems else 200)

    async def _readyz(self, _request: web.Request) -> web.Response:
        components = dict(self.ready())
        reasons = [f"{component}: {problem}" for component, problem in components.items() if problem]
        answer = {"ready": not reasons, "reasons": reasons, "components": components, **self.details()}
        return _json(answer, status=503 if reasons else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        try:
            encode, kind = choose_encoder(request.headers.get("Accept", ""))
        except (TypeError, ValueError):  # the library trips over versions that are no numbers
            encode, kind = choose_encoder("")
        await self.refresh()
        body = encode(self.registry)
        if more := await self.more_metrics():
            end = _END if body.endswith(_END) else b""
            body = body.removesuffix(_END) + more + end
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _status(self, request: web.Request) -> web.Response:
        assert self.status
        if not self._may_look(request):
            return _forbidden("the status page", "; statusPage: any opens it to others")

        return _json(news(self.status()))

    def _may_look(self, request: web.Request) -> bool:
        readers = self.status_readers()
        return readers == "any" or (readers == "loopback" and _from_loopback(request) and _by_address(request))

    async def _forget_claim(self, request: web.Request) -> web.Response:
        assert self.forget_claim
        if not _from_loopback(request) or FORGET_HEADER not in request.headers:
            return _forbidden("this request")
        uid = request.match_info["uid"]
        if not _CLAIM_UID.fullmatch(uid):
            return _json({"forgotten": False, "why": "that is no UID of a claim"}, status=400)
        answer = await self.forget_claim(uid)
        return _json(answer, status=200 if answer["forgotten"] else 409)

    async def _resize(self, request: web.Request) -> web.Response:
        assert self.resize
        if not _from_loopback(request) or RESIZE_HEADER not in request.headers:
            return _forbidden("this request")
        text = await request.content.read(MAX_RESIZE_BYTES + 1)
        try:
            body = json.loads(text) if len(text) <= MAX_RESIZE_BYTES else None
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            return _json({"resized": False, "why": "that is no JSON object of a few words"}, status=400)
        answer = await self.resize(body)
        return _json(answer, status=200 if answer["resized"] else 409)


class TelemetryServer:
    """Serves the pages on their own port."""

    def __init__(
        self, host: str, port: int, probes: Probes, *, dropped: Callable[[str], None] = lambda _why: None
    ) -> None:
        self._host = host
        self._wanted = port
        self._probes = probes
        self._connections = Connections(dropped=dropped)
        self._runner: web.AppRunner | None = None
        self._socket: socket.socket | None = None

    @property
    def port(self) -> int:
        """The port that it listens on; the configured one before the start."""
        return int(self._socket.getsockname()[1]) if self._socket else self._wanted

    async def start(self) -> None:
        """Listen. ``HamiError`` if the address is unavailable."""
        try:
            self._socket = listening(self._host, self._wanted)
        except (OSError, UnicodeError) as error:
            raise cannot_listen(self._host, self._wanted, error) from error
        app = web.Application(middlewares=[self._connections.noticing])
        self._probes.add_to(app)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_TIMEOUT_S, keepalive_timeout=75.0)
        await self._runner.setup()
        assert self._runner.server
        self._connections.start(self._runner.server, self._socket)

    async def stop(self) -> None:
        """Close the port and every connection, within two seconds. Harmless when nothing was started."""
        runner, self._runner = self._runner, None
        listener, self._socket = self._socket, None
        self._connections.stop()
        if listener is not None:
            listener.close()
        if runner is not None:
            async with asyncio.timeout(_STOP_S):
                await runner.cleanup()
        self._connections.close()


def listening(host: str, port: int, *, backlog: int = 1024) -> socket.socket:
    """Open a listening socket. ``::`` accepts IPv4 too, as usual in pods.

    ``OSError`` or ``UnicodeError`` if the address is unavailable.
    """
    if ":" not in host:
        return socket.create_server((host, port), backlog=backlog)
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=both)


async def document(name: str, make: Callable[[], Mapping[str, object]], request: web.Request) -> web.Response:
    """What is made for this host or pod only."""
    return _json(make()) if _from_loopback(request) else _forbidden(f"the {name}")


def _from_loopback(request: web.Request) -> bool:
    peer = request.transport.get_extra_info("peername") if request.transport else None
    try:
        address = ipaddress.ip_address(peer[0]) if peer else None
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address is not None and (mapped or address).is_loopback


def _by_address(request: web.Request) -> bool:
    """Whether the server was named by an address: a name could be a website's that leads a browser here."""
    name = request.url.host or ""
    try:
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _page_headers() -> dict[str, str]:

    return {
        "Cache-Control": "no-store",
        "Content-Security-Policy": policy(),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


def _forbidden(what: str, more: str = "") -> web.Response:
    why = f"{what} is served on the loopback address only; use kubectl port-forward or kubectl exec{more}"
    return _json({"error": why}, status=403)


def _json(value: Mapping[str, object], *, status: int = 200) -> web.Response:
    text = json.dumps(value, indent=2, default=str) + "\n"
    return web.Response(
        text=text, status=status, content_type="application/json", headers={"Cache-Control": "no-store"}
    )


def cannot_listen(
    host: str,
    port: int,
    error: OSError | UnicodeError,
    *,
    what: str = "probes and metrics",
    keys: tuple[str, str] = ("httpHost", "httpPort"),
) -> HamiError:
    """Why an address is unavailable, and what to do. ``keys`` are the settings of its host and port."""
    host_key, port_key = keys
    number = error.errno if isinstance(error, OSError) else 0
    match number:
        case errno.EADDRINUSE:
            why, hint = "another process uses this port", f"stop it, or choose another {port_key}"
        case errno.EACCES | errno.EPERM:
            why, hint = "permission denied", f"ports below 1024 need CAP_NET_BIND_SERVICE; choose another {port_key}"
        case errno.EADDRNOTAVAIL:
            why, hint = (
                "this machine does not have this address",
                f"set {host_key} to 0.0.0.0 or to an address of this machine",
            )
        case _:
            why, hint = getattr(error, "strerror", None) or str(error), f"check {host_key} and {port_key}"
    return HamiError(f"cannot listen on {host}:{port} for {what}: {why}", hint=hint)
