"""Runs the steps one after the other, and tells how it went."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from hami_plugin.demo.stage import Stage, staged
from hami_plugin.demo.steps import STEPS, Step
from hami_plugin.demo.ways import UNSHOWN
from hami_plugin.errors import HamiError

ALONE = "The daemon is the production entry point."
BESIDE = "It is in the same node, served by the same daemon."


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one step went; ``problem`` is empty when it held.

    ``unshown`` is why the node cannot show what the step is about: then nothing was proven, and nothing failed.
    """

    step: str
    about: str
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    unshown: str = ""

    @property
    def state(self) -> str:
        return "FAILED" if self.problem else "not shown" if self.unshown else "ok"


async def play(profile: str, *, as_json: bool, keep: bool) -> bool:
    """Play all steps; True when none failed. After a step that did, the rest is left out.

    A step that the node cannot show is told as such, and counted as neither held nor failed.

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
        unshown = [outcome.step for outcome in outcomes if outcome.unshown]
        told = {"profile": profile, "ok": ok, "notShown": unshown, "seconds": seconds, "steps": steps}
        click.echo(json.dumps(told, indent=2))
    tell(_summary(outcomes, expected, seconds, ok=ok))
    return ok


def _summary(outcomes: Sequence[Outcome], expected: int, seconds: float, *, ok: bool) -> str:
    held = sum(outcome.state == "ok" for outcome in outcomes)
    unshown = [outcome.step for outcome in outcomes if outcome.unshown]
    if not ok:
        return f"A step did not hold ({held} of {expected} did, {seconds} s)."
    if unshown:
        return f"No step failed ({held} of {expected} held, {seconds} s). Not shown on this node: {', '.join(unshown)}."
    return f"Every step held ({held} of {expected}, {seconds} s)."


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
    seconds = round(time.monotonic() - start, 3)
    unshown = str(facts.pop(UNSHOWN, ""))
    return Outcome(step=name, about=about, seconds=seconds, facts=facts, problem=problem, unshown=unshown)


def _told(outcome: Outcome) -> str:
    lines = [
        f"{outcome.state}  {outcome.step}  ({outcome.seconds:.2f} s)",
        f"    {outcome.about}",
    ]
    lines += [f"    {why}" for why in (outcome.problem, outcome.unshown) if why]
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
