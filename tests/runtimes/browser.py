"""Debian's Chromium, unpacked in a folder of its own, and a tab of it that a test drives by the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from tests.runtimes.install import cache
from tools.debian import telling
from tools.debian.apt import Packages
from tools.debian.commands import LackingError, output, tool
from tools.debian.telling import Say
from tools.debian.tree import Tree

SHORT_S, START_S = 60, 60
PROGRAM = "usr/lib/chromium/chromium"
UNUSED = ("usr/share/doc", "usr/share/icons", "usr/share/man", "usr/share/mime", "usr/share/gtk-doc")


def install(say: Say = telling.silence) -> Path:
    """Return the folder of the browser, made now if it is not there yet. ``LackingError`` where that cannot be."""
    packages = Packages(base=("chromium", "fonts-dejavu-core"))
    return Tree(packages=packages, finish=_finish, decided_by=["chromium"]).kept_in(
        cache().with_name("chromium"), telling.timed(say)
    )


def _finish(root: Path) -> Mapping[str, object]:
    for folder in UNUSED:
        shutil.rmtree(root / folder, ignore_errors=True)
    settings = [f"{name}={value}" for name, value in _environment(root, root).items()]
    said = output([tool("env"), *settings, str(root / PROGRAM), "--version"], deadline_s=SHORT_S)
    found = re.search(r"Chromium (\d+\S*)", said)
    if not found:
        raise LackingError(f"chromium says {said.strip()!r}")
    return {"version": found[1]}


def _environment(root: Path, home: Path) -> dict[str, str]:
    libraries = root / "usr/lib/x86_64-linux-gnu"
    return {
        "LD_LIBRARY_PATH": f"{libraries}:{libraries / 'pulseaudio'}",
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "FONTCONFIG_FILE": str(_fonts(root, home)),
    }


def _fonts(root: Path, home: Path) -> Path:
    path = home / "fonts.conf"
    path.write_text(f"<fontconfig><dir>{root}/usr/share/fonts</dir><cachedir>{home}/fonts</cachedir></fontconfig>")
    return path


@dataclass(slots=True)
class Tab:
    """A page in the browser."""

    socket: aiohttp.ClientWebSocketResponse
    _numbers: Any = field(default_factory=lambda: count(1))

    async def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """One command of the DevTools protocol, and its result."""
        number = next(self._numbers)
        await self.socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(SHORT_S):
            while True:
                answer = await self.socket.receive_json()
                if answer.get("id") == number:
                    assert "error" not in answer, answer
                    result: dict[str, Any] = answer["result"]
                    return result

    async def ask(self, script: str) -> Any:
        """What a script answers."""
        result = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until the script answers what is true."""
        ends = asyncio.get_running_loop().time() + SHORT_S
        while not await self.ask(script):
            assert asyncio.get_running_loop().time() < ends, script
            await asyncio.sleep(0.05)

    async def open(self, url: str, *, scripts: bool = True, dark: bool = False, width: int = 1000) -> None:
        """Load a page as a visitor has it."""
        await self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=760, deviceScaleFactor=1, mobile=width < 600
        )
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState=='complete'&&location.href!='about:blank'")

    async def press(self, key: str) -> None:
        """Press a key and let it go."""
        code = {"Tab": 9, "ArrowRight": 39, "ArrowLeft": 37}[key]
        for kind in ("rawKeyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    async def picture(self, path: Path) -> None:
        """Save what is to be seen as a PNG."""
        answer = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(answer["data"]))


@asynccontextmanager
async def tab(root: Path) -> AsyncIterator[Tab]:
    """A browser with one tab, until the end of the block."""
    home = Path(tempfile.mkdtemp(prefix="browser-"))
    arguments = (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--hide-scrollbars",
        "--remote-debugging-port=0",
        f"--user-data-dir={home / 'profile'}",
        "about:blank",
    )
    process = await asyncio.create_subprocess_exec(
        str(root / PROGRAM),
        *arguments,
        env=_environment(root, home),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        port = await _port(home / "profile" / "DevToolsActivePort", process)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = await answer.json(content_type=None)
            url = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
            async with session.ws_connect(url, max_msg_size=64 << 20) as socket:
                yield Tab(socket)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)


async def _port(path: Path, process: asyncio.subprocess.Process) -> int:
    ends = asyncio.get_running_loop().time() + START_S
    while not (port := _noted(path)):
        if process.returncode is not None or asyncio.get_running_loop().time() > ends:
            raise LackingError(f"Chromium does not start (status {process.returncode})")
        await asyncio.sleep(0.05)
    return port


def _noted(path: Path) -> int:
    """The port that the browser has written down; 0 before."""
    lines = path.read_text().splitlines() if path.exists() else []
    return int(lines[0]) if len(lines) > 1 else 0
