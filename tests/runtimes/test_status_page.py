"""The status pages of a running daemon and scheduler in Debian's Chromium: what a person sees, on whatever screen."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from aiohttp import web

from hami_plugin.demo.node import CONFIGURATION, SimulatedNode, simulated_node
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.e2e.manifests import small
from tests.e2e.steps import bring_up, start
from tests.runtimes import browser
from tests.scheduler.extender.test_reload import placed
from tests.support.scheduler_process import started
from tests.support.scheduling import add_node, daemons

PICTURES = os.environ.get("STATUS_PICTURES")
"""A folder for the pictures of the documentation; ``make pictures`` sets it."""
WIDE = 1180
LOADS = 20
NOT_MUCH_MORE = 8
"""So many times a bare file's time, at most: a page that asks for more or is laid out twice takes longer."""


@pytest.fixture(scope="session")
def chromium(present: Callable[[Callable[[], Path]], Path]) -> Path:
    return present(browser.install)


@pytest.fixture
async def node(chromium: Path) -> AsyncIterator[SimulatedNode]:
    async with simulated_node("dgx-h100", configuration=CONFIGURATION) as stage:
        await start(stage)
        yield stage


async def test_a_person_sees_devices_holders_links_and_faults_on_any_screen(
    node: SimulatedNode, chromium: Path, tmp_path: Path
) -> None:
    resources, folder = node.family.resources, Path(PICTURES or tmp_path)
    for number, memory in enumerate((20000, 40000, 30000)):
        await bring_up(node, small(f"train-{number}", resources, memory=memory, cores=25))
    url = f"http://{node.options['--http']}/"

    async with browser.tab(chromium) as tab:
        await tab.open(url, scripts=False)
        await tab.call("Emulation.setScriptExecutionDisabled", value=False)
        seen: str = await tab.ask("document.body.innerText")
        for words in ("demo-node", "GPU7", "train-0", "19.5 GiB", "✓ ready", "Links", "reload for news"):
            assert words in seen
        assert await tab.ask("document.querySelectorAll('.tile').length") == 8
        assert await tab.ask("document.querySelectorAll('svg line').length") == 28

        grounds = set()
        for name, options in PERSONS.items():
            await tab.open(url, **options)
            await tab.until("document.getElementById('live').textContent=='live'")
            grounds.add(await tab.ask("getComputedStyle(document.body).backgroundColor"))
            assert await tab.ask("document.documentElement.scrollWidth<=innerWidth"), name
            assert await tab.ask(READABLE) == [], name
        assert len(grounds) == 2

        await tab.ask("document.querySelector('.tile').focus()")
        await tab.press("ArrowRight")
        assert "GPU1" in await tab.ask("document.activeElement.getAttribute('aria-label')")

        node.hardware.simulator.inject("xid", device=1, value=79)
        await tab.until("document.querySelectorAll('.tile.unhealthy').length==1")
        assert await tab.ask("document.getElementById('live').textContent") == "live"
        assert "GPU1, unhealthy" in await tab.ask("document.activeElement.getAttribute('aria-label')")
        assert "XID" in (await tab.ask("document.querySelector('.tile.unhealthy').innerText")).upper()
        await pictured(tab, url, folder, "node")


async def pictured(tab: browser.Tab, url: str, folder: Path, what: str) -> None:
    """The page on a wide screen, light and dark."""
    for name in ("light", "dark"):
        await tab.open(url, dark=name == "dark", width=WIDE)
        await tab.until("document.getElementById('live').textContent=='live'")
        await tab.picture(folder / f"status-{what}-{name}.png")


PERSONS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"dark": True},
    "narrow": {"width": 360},
}
READABLE = """
(() => { const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
  .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b };
  const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$/.test(c)) return c } return 'rgb(255, 255, 255)' };
  return [...document.querySelectorAll('h1,h2,h3,p,li,td,th,span,.soft,a')].filter(e => e.offsetParent).filter(e => {
    const [a, b] = [getComputedStyle(e).color, ground(e)].map(light).sort((x, y) => y - x);
    return (a + .05) / (b + .05) < 4.5 }).map(e => e.outerHTML.slice(0, 80)) })()
"""
"""Texts whose contrast with their ground is below what WCAG asks for."""


async def test_the_clusters_page_on_the_schedulers_port_is_as_readable_and_follows(
    chromium: Path, tmp_path: Path
) -> None:
    folder = Path(PICTURES or tmp_path)
    async with SimulatedApiServer() as server, daemons(server):
        for name in ("gpu-1", "gpu-2"):
            add_node(server, name, 4, counted=40)
        async with started(server, tmp_path) as running, browser.tab(chromium) as tab:
            await running.ready()
            await placed(server, running, "train-0", memory=3000)
            url = f"http://127.0.0.1:{running.plain}/"
            await tab.open(url, scripts=False)
            await tab.call("Emulation.setScriptExecutionDisabled", value=False)
            seen: str = await tab.ask("document.body.innerText")
            for words in ("gpu-1", "gpu-2", "team/train-0", "1 of 10 shares", "✓ ready", "NVIDIA"):
                assert words in seen
            assert await tab.ask("document.querySelectorAll('.tile').length") == 8

            for name, options in PERSONS.items():
                await tab.open(url, **options)
                await tab.until("document.getElementById('live').textContent=='live'")
                assert await tab.ask("document.documentElement.scrollWidth<=innerWidth"), name
                assert await tab.ask(READABLE) == [], name

            await tab.ask("document.querySelector('.tile').focus()")
            await tab.press("ArrowRight")
            assert "NVIDIA 1" in await tab.ask("document.activeElement.getAttribute('aria-label')")
            await placed(server, running, "train-1", memory=3000)
            await tab.until("document.body.innerText.includes('team/train-1')")
            await pictured(tab, url, folder, "cluster")


async def bare(_request: web.Request) -> web.Response:
    """A file of the page's size that says nothing."""
    return web.Response(text=f"<!DOCTYPE html><title>bare</title><!--{'-' * 40_000}-->", content_type="text/html")


@asynccontextmanager
async def a_bare_file() -> AsyncIterator[str]:
    """Where it is served, by the same library as the page."""
    app = web.Application()
    app.router.add_get("/", bare)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def loaded(tab: browser.Tab, url: str) -> float:
    """Milliseconds from the click to a page that is laid out with all it has, at the median."""
    times = []
    for _ in range(LOADS):
        await tab.open(url)
        await tab.until("performance.getEntriesByType('navigation')[0].loadEventEnd>0")
        times.append(float(await tab.ask("performance.getEntriesByType('navigation')[0].loadEventEnd")))
    return median(times)


async def test_the_page_loads_like_a_file_and_asks_for_nothing_while_nobody_looks(
    node: SimulatedNode, chromium: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://{node.options['--http']}/"
    async with browser.tab(chromium) as tab, a_bare_file() as other:
        await tab.open(other)
        page, file = await loaded(tab, url), await loaded(tab, other)
        with capsys.disabled():
            print(f"\nthe status page of eight cards loads in {page:.0f} ms, a bare file in {file:.0f} ms (medians)")  # noqa: T201  # the figure is wanted
        assert page < NOT_MUCH_MORE * file

        await tab.open(url)
        await tab.ask(COUNTING)
        await tab.until("window.looks>=2")
        await tab.ask(LOOKING.format(hidden="true"))
        before = await tab.ask("window.looks")
        await asyncio.sleep(3 * EVERY_S)
        assert await tab.ask("window.looks") == before
        await tab.ask(LOOKING.format(hidden="false"))
        await tab.until(f"window.looks>{before}")


EVERY_S = 2
"""How often the page's script asks for news."""
COUNTING = "{window.looks=0;const plain=window.fetch;window.fetch=(...all)=>{window.looks++;return plain(...all)}}"
LOOKING = """{{Object.defineProperty(document,'hidden',{{value:{hidden},configurable:true}});
document.dispatchEvent(new Event('visibilitychange'))}}"""
"""Somebody turns to another tab, or comes back."""
