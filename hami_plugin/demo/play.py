"""Runs the steps on one node, or on every machine, each in its own process."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import click

from cdi.errors import CdiError
from hami_plugin.demo.board import Board, Frame, StepOutcome
from hami_plugin.demo.claims import by_claims
from hami_plugin.demo.node import NODE, SimulatedNode, Tile, simulated_node
from hami_plugin.demo.steps import NOTE, STEPS, UNSHOWN, Step
from hami_plugin.errors import HamiError
from hami_plugin.simulation.machines import machine_names

ALONE = "The daemon is real; the machine, the kubelet and the API server are simulated."
BESIDE = "On the same node, served by the same daemon."
FIGURES = {
    "devices": "devices",
    "shares": "shares",
    "offered": "offered after",
    "fault seen": "kubelet saw it after",
    "healed": "healed after",
    "kubelet back": "registered again after",
}
"""Columns of the summary table, and the fact in each."""
AT_ONCE = 2
TIMEOUT_S = 300.0
CLOSE_TIMEOUT_S = 15.0
SHOWN = ("devices are known by", "sharing", "lock")
COLUMNS = "{:<26} {:<6} {:>5} {:>9} {:>7}  {}"


async def play(
    profile: str,
    *,
    board: Board | None = None,
    as_json: bool = False,
    keep: bool = False,
    serve: bool = False,
    dra: bool = False,
) -> bool:
    """Run all steps; True if none failed. A failed step skips the rest. With ``dra`` they are those of a claim's life.

    A step that the node cannot show neither succeeds nor fails. Each of several machines, separated by commas, runs all
    steps in turn, while one daemon serves them all. ``serve`` keeps the node running afterwards, until cancelled.
    """
    start = time.monotonic()
    outcomes: dict[str, list[StepOutcome]] = {}
    async with simulated_node(profile, keep=keep) as sim:
        if dra:
            expected = await _claims_life(sim, board, outcomes)
        else:
            expected = len(STEPS) * len(sim.machines)
            await _lives(sim, board, outcomes)
        every = [outcome for some in outcomes.values() for outcome in some]
        ok = len(every) == expected and not any(outcome.problem for outcome in every)
        seconds = round(time.monotonic() - start, 2)
        if as_json:
            click.echo(_document(profile, every, seconds, ok=ok))
        if board:
            each = expected // len(sim.machines)
            rows = [_row(name, some, each) for name, some in outcomes.items()]
            board.summary(rows, _conclusion(every, expected, seconds, ok=ok), ok=ok)
        if keep:
            click.echo(f"Kept: {sim.directory}", err=True)
        if serve and ok:
            sim.report_counts()
            click.echo("\n".join(_addresses(sim)), err=as_json)
            await _serving(sim)
    return ok


async def _lives(sim: SimulatedNode, board: Board | None, outcomes: dict[str, list[StepOutcome]]) -> None:
    """All steps on each machine of the node, until one fails."""
    for number, here in enumerate((sim, *sim.each()[1:])):
        machine = here.hardware.machine
        here.daemon = sim.daemon
        if board:
            board.heading(machine.title, BESIDE if number else ALONE)
        outcomes[machine.name] = await _all_steps(here, board, STEPS, here.tiles)
        if outcomes[machine.name][-1].problem:
            return


async def _claims_life(sim: SimulatedNode, board: Board | None, outcomes: dict[str, list[StepOutcome]]) -> int:
    """The steps of a claim's life on the node's first machine. Answers how many there are."""
    if len(sim.machines) > 1:
        raise HamiError("--dra shows one machine", hint="name a single profile")
    machine = sim.hardware.machine
    async with by_claims(sim) as life:
        if board:
            board.heading(machine.title, ALONE)
        outcomes[machine.name] = await _all_steps(sim, board, life.steps, life.tiles)
    return len(life.steps)


async def _all_steps(
    sim: SimulatedNode, board: Board | None, steps: Mapping[str, Step], tiles: Callable[[], Sequence[Tile]]
) -> list[StepOutcome]:
    outcomes: list[StepOutcome] = []
    frames: list[Frame] = []
    sim.show = lambda caption: frames.append((caption, tiles()))
    for name, step in steps.items():
        frames.clear()
        async with board.running(name, tiles) if board else nullcontext():
            outcome = await _perform(sim, name, step)
        outcomes.append(outcome)
        if board:
            board.step(outcome, frames)
        if outcome.problem:
            break
    return outcomes


async def _perform(sim: SimulatedNode, name: str, step: Step) -> StepOutcome:
    about = (step.__doc__ or "").strip()
    start = time.monotonic()
    try:
        facts, problem = await step(sim), ""
    except (HamiError, CdiError, TimeoutError) as error:
        facts, problem = {}, str(error) or repr(error)
    seconds = round(time.monotonic() - start, 3)
    unshown, note = (str(facts.pop(key, "")) for key in (UNSHOWN, NOTE))
    return StepOutcome(
        step=name, about=about, seconds=seconds, facts=facts, note=note, problem=problem, unshown=unshown
    )


def _document(profile: str, outcomes: Sequence[StepOutcome], seconds: float, *, ok: bool) -> str:
    unshown = [outcome.step for outcome in outcomes if outcome.unshown]
    steps = [asdict(outcome) for outcome in outcomes]
    return json.dumps({"profile": profile, "ok": ok, "notShown": unshown, "seconds": seconds, "steps": steps}, indent=2)


def _row(machine: str, outcomes: Sequence[StepOutcome], expected: int) -> dict[str, str]:
    facts = {key: value for outcome in outcomes for key, value in outcome.facts.items()}
    figures = {column: str(facts.get(key, "-")) for column, key in FIGURES.items()}
    held = sum(outcome.held for outcome in outcomes)
    return {"machine": machine, **figures, "held": f"{held} of {expected}"}


def _conclusion(outcomes: Sequence[StepOutcome], expected: int, seconds: float, *, ok: bool) -> str:
    held = sum(outcome.held for outcome in outcomes)
    unshown = [outcome.step for outcome in outcomes if outcome.unshown]
    if not ok:
        return f"A step failed ({held} of {expected} succeeded, {seconds} s)."
    if unshown:
        return f"No step failed ({held} of {expected} succeeded, {seconds} s). Not shown here: {', '.join(unshown)}."
    return f"Every step succeeded ({held} of {expected}, {seconds} s)."


def _addresses(sim: SimulatedNode) -> list[str]:
    """Commands to inspect the running node."""
    http, kubeconfig = sim.options["--http"], sim.options["--kubeconfig"]
    return [
        "",
        "The node runs until Ctrl-C or SIGTERM. To inspect it:",
        f"  curl http://{http}/metrics",
        f"  curl http://{http}/readyz",
        f"  KUBECONFIG={kubeconfig} kubectl get --raw /api/v1/nodes/{NODE}",
        f"  curl {sim.api.url}/api/v1/nodes/{NODE}",
        f"  tail -f {sim.directory / sim.log}",
    ]


async def _serving(sim: SimulatedNode) -> None:
    """Wait until cancelled. ``HamiError`` if the daemon ends before."""
    assert sim.daemon, "every step has held"
    try:
        status = await sim.daemon.wait()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task:
            task.uncancel()
        return
    raise HamiError(f"the daemon ended with status {status}", hint=sim.log_tail())


async def play_everywhere(profiles: Sequence[str] = (), *, at_once: int = AT_ONCE) -> bool:
    """Run the demo on each of ``profiles``, by default on all; True if no step failed.

    Each runs in its own process, which ends with this one.
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
    """The command's JSON output, or its error."""
    arguments = ("-m", "hami_plugin", "demo", "--profile", profile, "--json")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, errors = await process.communicate()
        return dict(json.loads(out))
    except TimeoutError:
        problem = f"not finished within {TIMEOUT_S:g} s"
    except ValueError:
        problem = errors.decode(errors="replace").strip().rpartition("\n")[2]
    finally:
        await _ended(process)
    return {"ok": False, "seconds": 0, "steps": [{"step": "start", "problem": problem, "facts": {}}]}


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Terminate a process, which ends its daemon; kill it if it does not end."""
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
