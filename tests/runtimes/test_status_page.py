"""The status pages of a running daemon and scheduler in Debian's Chromium: what a person sees, on whatever screen."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.demo.node import CONFIGURATION, SimulatedNode, simulated_node
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.e2e.manifests import small
from tests.e2e.steps import bring_up, start
from tests.runtimes import browser
from tests.scheduler.extender.test_reload import placed
from tests.support.scheduler_process import started
from tests.support.scheduling import add_node, daemons

PICTURES = os.environ.get("STATUS_PICTURES")
"""A folder for the pictures, where somebody wants to look at them."""


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
            await tab.picture(folder / f"{name}.png")
        assert len(grounds) == 2

        await tab.ask("document.querySelector('.tile').focus()")
        await tab.press("ArrowRight")
        assert "GPU1" in await tab.ask("document.activeElement.getAttribute('aria-label')")

        node.hardware.simulator.inject("xid", device=1, value=79)
        await tab.until("document.querySelectorAll('.tile.unhealthy').length==1")
        assert await tab.ask("document.getElementById('live').textContent") == "live"
        assert "GPU1, unhealthy" in await tab.ask("document.activeElement.getAttribute('aria-label')")
        assert "XID" in (await tab.ask("document.querySelector('.tile.unhealthy').innerText")).upper()
        await tab.picture(folder / "fault.png")
        await tab.open(url, width=1180)
        await tab.until("document.getElementById('live').textContent=='live'")
        await tab.picture(folder / "status.png")


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
                await tab.picture(folder / f"cluster-{name}.png")

            await tab.ask("document.querySelector('.tile').focus()")
            await tab.press("ArrowRight")
            assert "NVIDIA 1" in await tab.ask("document.activeElement.getAttribute('aria-label')")
            await placed(server, running, "train-1", memory=3000)
            await tab.until("document.body.innerText.includes('team/train-1')")
