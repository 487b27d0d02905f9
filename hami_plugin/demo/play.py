"""Runs the steps one after the other on one node, or on every machine, each in a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import click

from hami_plugin.demo.board import Board, Frame, Outcome
from hami_plugin.demo.stage import NODE, Stage, staged
from hami_plugin.demo.steps import NOTE, STEPS, UNSHOWN, Step
from hami_plugin.errors import HamiError
from hami_plugin.simulation.machines import machine_names

ALONE = "The daemon is real; the machine, the kubelet and the API server are simulated."
BESIDE = "In the same node, served by the same daemon."
FIGURES = {
    "devices": "devices",
    "shares": "shares",
    "offered": "offered after",
    "fault seen": "kubelet saw it after",
    "healed": "healed after",
    "kubelet back": "registered again after",
}
"""Column of the table at the end: the fact in it."""
AT_ONCE = 2
TIMEOUT_S = 300.0
CLOSE_TIMEOUT_S = 15.0
SHOWN = ("devices are known by", "sharing", "lock")
COLUMNS = "{:<26} {:<6} {:>5} {:>9} {:>7}  {}"


async def play(
    profile: str, *, board: Board | None = None, as_json: bool = False, keep: bool = False, serve: bool = False
) -> bool:
    """Play all steps; True when none failed. After a step that did, the rest is left out.

    A step that the node cannot show is neither held nor failed. Of several machines, separated by commas, each has all
    steps in turn, while the one daemon serves them all. ``serve`` keeps the node up afterwards, until somebody
    cancels this.
    """
    start = time.monotonic()
    outcomes: dict[str, list[Outcome]] = {}
    async with staged(profile, keep=keep) as stage:
        expected = len(STEPS) * len(stage.machines)
        for number, here in enumerate((stage, *stage.each()[1:])):
            machine = here.hardware.machine
            here.daemon = stage.daemon
            if board:
                board.heading(machine.title, BESIDE if number else ALONE)
            outcomes[machine.name] = await _all_steps(here, board)
            if outcomes[machine.name][-1].problem:
                break
        every = [outcome for some in outcomes.values() for outcome in some]
        ok = len(every) == expected and not any(outcome.problem for outcome in every)
        seconds = round(time.monotonic() - start, 2)
        if as_json:
            click.echo(_document(profile, every, seconds, ok=ok))
        if board:
            rows = [_row(name, some) for name, some in outcomes.items()]
            board.summary(rows, _conclusion(every, expected, seconds, ok=ok), ok=ok)
        if keep:
            click.echo(f"Kept: {stage.directory}", err=True)
        if serve and ok:
            click.echo("\n".join(_addresses(stage)), err=as_json)
            await _serving(stage)
    return ok


async def _all_steps(stage: Stage, board: Board | None) -> list[Outcome]:
    outcomes: list[Outcome] = []
    frames: list[Frame] = []
    stage.show = lambda caption: frames.append((caption, stage.tiles()))
    for name, step in STEPS.items():
        frames.clear()
        async with board.running(name, stage.tiles) if board else nullcontext():
            outcome = await _perform(stage, name, step)
        outcomes.append(outcome)
        if board:
            board.step(outcome, frames)
        if outcome.problem:
            break
    return outcomes


async def _perform(stage: Stage, name: str, step: Step) -> Outcome:
    about = (step.__doc__ or "").strip()
    start = time.monotonic()
    try:
        facts, problem = await step(stage), ""
    except (HamiError, TimeoutError) as error:
        facts, problem = {}, str(error) or repr(error)
    seconds = round(time.monotonic() - start, 3)
    unshown, note = (str(facts.pop(key, "")) for key in (UNSHOWN, NOTE))
    return Outcome(step=name, about=about, seconds=seconds, facts=facts, note=note, problem=problem, unshown=unshown)


def _document(profile: str, outcomes: Sequence[Outcome], seconds: float, *, ok: bool) -> str:
    unshown = [outcome.step for outcome in outcomes if outcome.unshown]
    steps = [asdict(outcome) for outcome in outcomes]
    return json.dumps({"profile": profile, "ok": ok, "notShown": unshown, "seconds": seconds, "steps": steps}, indent=2)


def _row(machine: str, outcomes: Sequence[Outcome]) -> dict[str, str]:
    facts = {key: value for outcome in outcomes for key, value in outcome.facts.items()}
    figures = {column: str(facts.get(key, "-")) for column, key in FIGURES.items()}
    held = sum(outcome.held for outcome in outcomes)
    return {"machine": machine, **figures, "held": f"{held} of {len(STEPS)}"}


def _conclusion(outcomes: Sequence[Outcome], expected: int, seconds: float, *, ok: bool) -> str:
    held = sum(outcome.held for outcome in outcomes)
    unshown = [outcome.step for outcome in outcomes if outcome.unshown]
    if not ok:
        return f"A step did not hold ({held} of {expected} did, {seconds} s)."
    if unshown:
        return f"No step failed ({held} of {expected} held, {seconds} s). Not shown on this node: {', '.join(unshown)}."
    return f"Every step held ({held} of {expected}, {seconds} s)."


def _addresses(stage: Stage) -> list[str]:
    """Where to look while the node is up, as commands to copy."""
    http, kubeconfig = stage.options["--http"], stage.options["--kubeconfig"]
    return [
        "",
        "The node stays up until Ctrl-C or SIGTERM. To look at it:",
        f"  curl http://{http}/metrics",
        f"  curl http://{http}/readyz",
        f"  KUBECONFIG={kubeconfig} kubectl get --raw /api/v1/nodes/{NODE}",
        f"  curl {stage.api.url}/api/v1/nodes/{NODE}",
        f"  tail -f {stage.directory / stage.log}",
    ]


async def _serving(stage: Stage) -> None:
    """Wait until somebody cancels this. ``HamiError`` if the daemon ends before."""
    assert stage.daemon, "every step has held"
    try:
        status = await stage.daemon.wait()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task:
            task.uncancel()
        return
    raise HamiError(f"the daemon ended with status {status}", hint=stage.log_tail())


async def play_everywhere(profiles: Sequence[str] = (), *, at_once: int = AT_ONCE) -> bool:
    """Play on each profile, without ``profiles`` on all of them; True when no step of any one failed.

    Each is played in a process of its own; they end with this one.
    """
    turns = asyncio.Semaphore(at_once)
    names = profiles or machine_names()
    click.echo(COLUMNS.format("profile", "", "held", "not shown", "seconds", "; ".join(SHOWN)))

    async def one(profile: str) -> bool:
        async with turns:
            outcome = await _played(profile)
        click.echo(_line(profile, outcome))
        return bool(outcome["ok"])

    async with asyncio.TaskGroup() as group:
        played = [group.create_task(one(name)) for name in names]
    held = [task.result() for task in played]
    click.echo(f"{sum(held)} of {len(held)} machines: no step failed.")
    return all(held)


async def _played(profile: str) -> dict[str, Any]:
    """The outcome as the command prints it, or what the command said instead of one."""
    arguments = ("-m", "hami_plugin", "demo", "--profile", profile, "--json")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, errors = await process.communicate()
        return dict(json.loads(out))
    except TimeoutError:
        problem = f"not over within {TIMEOUT_S:g} s"
    except ValueError:
        problem = errors.decode(errors="replace").strip().rpartition("\n")[2]
    finally:
        await _ended(process)
    return {"ok": False, "seconds": 0, "steps": [{"step": "start", "problem": problem, "facts": {}}]}


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Ask a process to end, which then ends its own daemon; kill it if it does not."""
    if process.returncode is not None:
        return
    process.terminate()
    waiting = asyncio.ensure_future(process.wait())
    await asyncio.wait({waiting}, timeout=CLOSE_TIMEOUT_S)
    if not waiting.done():
        process.kill()
    await waiting


def _line(profile: str, outcome: Mapping[str, Any]) -> str:
    steps = outcome["steps"]
    last = steps[-1]
    short = (str(last["facts"].get(key, "")).partition(":")[0].partition(",")[0] for key in SHOWN)
    state, says = ("ok", "; ".join(short)) if outcome["ok"] else ("FAILED", f"{last['step']}: {last['problem'][:200]}")
    unshown = len(outcome.get("notShown", ()))
    held = len([step for step in steps if not step["problem"]]) - unshown
    return COLUMNS.format(profile, state, held, unshown, f"{outcome['seconds']:.1f}", says)
