"""Runs the steps one after the other, and tells how it went."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from hami_plugin.demo.stage import Stage, staged
from hami_plugin.demo.steps import STEPS, Step
from hami_plugin.errors import HamiError


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one step went; ``problem`` is empty when it held."""

    step: str
    about: str
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


async def play(profile: str, *, as_json: bool, keep: bool) -> bool:
    """Play all steps; True when every one held. After a step that did not, the rest is left out."""
    start = time.monotonic()
    outcomes: list[Outcome] = []
    async with staged(profile, keep=keep) as stage:
        if not as_json:
            click.echo(f"A simulated {stage.hardware.machine.title}. The daemon is the production entry point.\n")
        for name, step in STEPS.items():
            outcome = await _perform(stage, name, step)
            outcomes.append(outcome)
            if not as_json:
                click.echo(_told(outcome))
            if outcome.problem:
                break
        if keep:
            click.echo(f"Kept: {stage.directory}", err=True)
    ok = len(outcomes) == len(STEPS) and not any(outcome.problem for outcome in outcomes)
    seconds = round(time.monotonic() - start, 2)
    if as_json:
        steps = [asdict(outcome) for outcome in outcomes]
        click.echo(json.dumps({"profile": profile, "ok": ok, "seconds": seconds, "steps": steps}, indent=2))
    else:
        click.echo(
            f"{'Every step held' if ok else 'A step did not hold'} ({len(outcomes)} of {len(STEPS)}, {seconds} s)."
        )
    return ok


async def _perform(stage: Stage, name: str, step: Step) -> Outcome:
    about = (step.__doc__ or "").strip()
    start = time.monotonic()
    try:
        facts, problem = await step(stage), ""
    except (HamiError, TimeoutError) as error:
        facts, problem = {}, str(error) or repr(error)
    return Outcome(step=name, about=about, seconds=round(time.monotonic() - start, 3), facts=facts, problem=problem)


def _told(outcome: Outcome) -> str:
    lines = [
        f"{'FAILED' if outcome.problem else 'ok'}  {outcome.step}  ({outcome.seconds:.2f} s)",
        f"    {outcome.about}",
    ]
    if outcome.problem:
        lines.append(f"    {outcome.problem}")
    for key, value in outcome.facts.items():
        if key == "containers":
            lines += _containers(value)
        elif key == "text":
            lines += ["", *(f"    {line}" for line in value.splitlines())]
        else:
            lines.append(f"    {key}: {value}")
    return "\n".join((*lines, ""))


def _containers(containers: dict[str, Any]) -> list[str]:
    lines = []
    for name, got in containers.items():
        lines.append(f"    container {name}:")
        lines += [f"      {key}={value}" for key, value in got["env"].items()]
        lines += [f"      mount {mount}" for mount in got["mounts"]]
        lines += [f"      device {device}" for device in got["devices"]]
    return lines
