"""``hami-plugin demo`` as its users have it: the process, its output, its signals, and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import aiohttp
import pytest
from click.testing import CliRunner

from hami_plugin.cli import main
from hami_plugin.demo.node import NODE
from hami_plugin.demo.steps import STEPS
from tests.support.terminal import ROOT, environment, on_terminal, piped

GUARD_S = 120.0
PROFILE = "aws-trn1-2xlarge"  # one device, and no C library to build


@pytest.fixture
def folder() -> Iterator[Path]:
    """Shorter than pytest's own: the name of a socket in it may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="d") as name:
        yield Path(name)


@asynccontextmanager
async def demo(folder: Path, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The running command; its temporary files are in ``folder``."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-u", "-m", "hami_plugin", "demo", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
        env=environment(TMPDIR=str(folder), PYTHONUNBUFFERED="1"),
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        for pid in daemons(folder):
            os.kill(pid, signal.SIGKILL)


def daemons(folder: Path) -> list[int]:
    """Processes whose command line names a file in ``folder``."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


async def line(process: asyncio.subprocess.Process, wanted: str) -> list[str]:
    """The lines up to the first that has ``wanted`` in it."""
    assert process.stdout
    seen: list[str] = []
    async with asyncio.timeout(GUARD_S):
        while not seen or wanted not in seen[-1]:
            text = (await process.stdout.readline()).decode()
            assert text, "".join(seen)
            seen.append(text.rstrip("\n"))
    return seen


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(GUARD_S):
        while not condition():  # noqa: ASYNC110  # of other processes
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    """A whole run with its output in a pipe."""
    return piped("demo", "--profile", "dgx-h100")


@pytest.mark.full
def test_the_picture_in_the_readme_shows_what_the_demonstration_prints(done: subprocess.CompletedProcess[str]):
    def shape(lines: list[str]) -> list[str]:
        return [re.sub(r"\d+(\.\d+)?", "#", " ".join(text.split())) for text in lines if text.strip()]

    picture = ET.parse(ROOT / "docs" / "demo.svg")
    rows: dict[float, list[tuple[float, str]]] = {}
    for text in picture.iter("{http://www.w3.org/2000/svg}text"):
        if "x" in text.attrib and text.attrib["class"].startswith("demo-r"):
            rows.setdefault(float(text.attrib["y"]), []).append((float(text.attrib["x"]), text.text or ""))
    drawn = [" ".join(part for _, part in sorted(row)) for _, row in sorted(rows.items())]

    assert "docs/demo.svg" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert [row.replace(" ", "") for row in shape(drawn)] == [
        row.replace(" ", "") for row in shape(done.stdout.splitlines())
    ], "draw it anew: make demo-picture"
    assert "http" not in {
        part.partition(":")[0] for part in re.findall(r"url\((.*?)\)", ET.tostring(picture.getroot()).decode())
    }


def test_in_a_pipe_the_board_is_plain_text_with_a_line_for_each_step_and_a_table(
    done: subprocess.CompletedProcess[str],
):
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    steps = [re.sub(r"^(. [A-Za-z, ]+?) +\d+\.\d\d s.*", r"\1", text) for text in lines if text[:1] in ("✓", "✗", "-")]
    assert steps == [f"✓ {name}" for name in STEPS]
    tiles = {text.split()[0]: re.findall(r"\[GPU\d (.)\]", text) for text in lines if "[GPU0" in text}
    assert tiles == {"offered": ["✓"] * 8, "lost": ["✓"] * 7 + ["✗"], "healed": ["✓"] * 8}
    header, row = lines[-4:-2]
    assert header.split()[:3] == ["MACHINE", "DEVICES", "SHARES"]
    assert row.split()[:3] == ["dgx-h100", "8", "80"]
    assert re.fullmatch(r"Every step succeeded \(8 of 8, [0-9.]+ s\)\.", lines[-1])
    assert not [text for text in lines if "CUDA_DEVICE" in text], "details come with -v"


def test_on_a_terminal_the_lost_device_is_red_and_heals():
    status, printed = on_terminal("demo", "--profile", PROFILE, "-v", columns=100)

    assert status == 0, printed
    red, green = (printed.rindex(f"m[NEURON0 {mark}]") for mark in ("✗", "✓"))
    assert re.search(r"\x1b\[[0-9;]*41m\[NEURON0 ✗\]", printed)
    assert red < green
    assert "AWS_NEURON_VISIBLE_DEVICES" in printed, "details with -v"
    assert max(len(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)) for text in printed.splitlines()) <= 100


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
async def test_a_signal_ends_the_demonstration_and_its_daemon(folder: Path, number: int):
    async with demo(folder, "--profile", PROFILE) as process:
        await line(process, "✓ Register")
        assert daemons(folder)

        process.send_signal(number)
        async with asyncio.timeout(GUARD_S):
            status = await process.wait()

        assert status == 128 + number
        assert not daemons(folder), "it has ended before this process has"
        assert not os.listdir(folder), "the working directory is cleared away"  # noqa: PTH208


@pytest.mark.full
async def test_a_signal_ends_the_demonstrations_of_all_machines(folder: Path):
    async with demo(folder, "--all") as process:
        await line(process, "profile")
        await until(lambda: len(daemons(folder)) >= 1)

        process.terminate()
        async with asyncio.timeout(GUARD_S):
            status = await process.wait()

        assert status == 128 + signal.SIGTERM
        assert not daemons(folder), "they have ended before this process has"


@pytest.mark.full
async def test_the_node_stays_up_to_be_looked_at_until_a_signal(folder: Path):
    async with demo(folder, "--profile", PROFILE, "--serve") as process:
        said = await line(process, "daemon.log")
        metrics, node = (re.findall(rf"curl (http://\S+{path})", "\n".join(said))[0] for path in ("/metrics", NODE))
        kubeconfig = re.findall(r"KUBECONFIG=(\S+) kubectl get --raw /api/v1/nodes/" + NODE, "\n".join(said))[0]

        text, _ = await answer(metrics)
        _, found = await answer(node)

        assert "hami_plugin_" in text
        assert found["metadata"]["name"] == NODE
        assert node.startswith(server_of(kubeconfig))
        process.terminate()
        async with asyncio.timeout(GUARD_S):
            assert await process.wait() == 0
        await until(lambda: not daemons(folder))


async def answer(url: str) -> tuple[str, Any]:
    async with asyncio.timeout(GUARD_S), aiohttp.ClientSession() as client, client.get(url) as response:
        assert response.status == 200
        text = await response.text()
        return text, await response.json() if "json" in response.content_type else None


def server_of(kubeconfig: str) -> str:
    found = re.search(r'"server": ?"([^"]+)"', Path(kubeconfig).read_text(encoding="utf-8"))
    assert found
    return found[1]


@pytest.mark.parametrize(
    ("profile", "nearest"), [("dgx-h10", "dgx-h100"), ("DGX-H100", "dgx-h100"), ("mlu", "cambricon-mlu590-8")]
)
def test_a_wrong_profile_suggests_the_nearest(profile: str, nearest: str):
    done = CliRunner().invoke(main, ["demo", "--profile", profile])

    assert done.exit_code == 2
    assert f"no machine profile is named '{profile}'; did you mean " in done.stderr
    assert nearest in done.stderr.partition("did you mean ")[2].partition("?")[0].split(", ")
