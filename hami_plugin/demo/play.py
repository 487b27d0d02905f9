"""Runs the steps one after the other, and tells how it went."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from hami_plugin.demo.stage import Stage, staged
from hami_plugin.demo.steps import STEPS, Step
from hami_plugin.errors import HamiError

ALONE = "The daemon is the production entry point."
BESIDE = "It is in the same node, served by the same daemon."


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one step went; ``problem`` is empty when it held."""

    step: str
    about: str
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


async def play(profile: str, *, as_json: bool, keep: bool) -> bool:
    """Play all steps; True when every one held. After a step that did not, the rest is left out.

    Of several machines, parted by commas, each has all steps in turn, while the one daemon serves them all.
    """
    start, tell = time.monotonic(), _nothing if as_json else click.echo
    outcomes: list[Outcome] = []
    async with staged(profile, keep=keep) as stage:
        expected = len(STEPS) * len(stage.machines)
        for number in range(len(stage.machines)):
            here = stage.each()[number] if number else stage
            tell(f"A simulated {here.hardware.machine.title}. {BESIDE if number else ALONE}\n")
            outcomes += await _all_steps(here, tell)
            if outcomes[-1].problem:
                break
        if keep:
            click.echo(f"Kept: {stage.directory}", err=True)
    ok = len(outcomes) == expected and not any(outcome.problem for outcome in outcomes)
    seconds = round(time.monotonic() - start, 2)
    if as_json:
        steps = [asdict(outcome) for outcome in outcomes]
        click.echo(json.dumps({"profile": profile, "ok": ok, "seconds": seconds, "steps": steps}, indent=2))
    tell(f"{'Every step held' if ok else 'A step did not hold'} ({len(outcomes)} of {expected}, {seconds} s).")
    return ok


async def _all_steps(stage: Stage, tell: Callable[[str], None]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for name, step in STEPS.items():
        outcome = await _perform(stage, name, step)
        outcomes.append(outcome)
        tell(_told(outcome))
        if outcome.problem:
            break
    return outcomes


def _nothing(_text: str) -> None:
    """As JSON, the outcome is told at the end."""


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
