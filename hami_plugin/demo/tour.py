"""The demonstration on every machine that can be simulated, each in a process of its own, as a table."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from hami_plugin.simulation.machines import machine_names

AT_ONCE = 2
DEADLINE_S = 300.0
FAREWELL_S = 5.0
SHOWN = ("devices are known by", "sharing", "lock")
COLUMNS = "{:<26} {:<6} {:>5} {:>9} {:>7}  {}"


async def tour(profiles: Sequence[str] = (), *, at_once: int = AT_ONCE) -> bool:
    """Play on each profile, without ``profiles`` on all of them; True when no step of any one failed."""
    turns = asyncio.Semaphore(at_once)
    names = profiles or machine_names()
    click.echo(COLUMNS.format("profile", "", "held", "not shown", "seconds", "; ".join(SHOWN)))

    async def one(profile: str) -> bool:
        async with turns:
            told = await _played(profile)
        click.echo(_row(profile, told))
        return bool(told["ok"])

    held = await asyncio.gather(*map(one, names))
    click.echo(f"{sum(held)} of {len(held)} machines: no step failed.")
    return all(held)


async def _played(profile: str) -> dict[str, Any]:
    """The outcome as the command prints it, or what the command said instead of one."""
    arguments = ("-m", "hami_plugin", "demo", "--profile", profile, "--json")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(DEADLINE_S):
            out, errors = await process.communicate()
        return dict(json.loads(out))
    except TimeoutError:
        process.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await process.wait()
        problem = f"not over within {DEADLINE_S:g} s"
    except ValueError:
        problem = errors.decode(errors="replace").strip().rpartition("\n")[2]
    return {"ok": False, "seconds": 0, "steps": [{"step": "start", "problem": problem, "facts": {}}]}


def _row(profile: str, told: dict[str, Any]) -> str:
    steps = told["steps"]
    last = steps[-1]
    short = (str(last["facts"].get(key, "")).partition(":")[0].partition(",")[0] for key in SHOWN)
    state, says = ("ok", "; ".join(short)) if told["ok"] else ("FAILED", f"{last['step']}: {last['problem'][:200]}")
    unshown = len(told.get("notShown", ()))
    held = len([step for step in steps if not step["problem"]]) - unshown
    return COLUMNS.format(profile, state, held, unshown, f"{told['seconds']:.1f}", says)
