"""Runs the steps on one node, or on every machine, each in its own process; and a claim's life beside them.

Claims meet a simulated kube-scheduler and the kubelet's part of Dynamic Resource Allocation.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from cdi.errors import CdiError
from cdi.names import QualifiedName
from cdi.spec import ContainerEdits
from cdi.store import load
from hami_plugin.demo.board import Board, Frame, StepOutcome
from hami_plugin.demo.node import CONFIGURATION, NODE, SimulatedNode, Tile, simulated_node
from hami_plugin.demo.steps import CORES, MEMORY_MIB, NOTE, STEPS, UNSHOWN, Facts, Step, require
from hami_plugin.dra.explanation import Selection, verdicts
from hami_plugin.dra.slices import device_name, driver_name
from hami_plugin.errors import HamiError
from hami_plugin.model.views import Json, PodView, pod_view, whole
from hami_plugin.simulation.dra import ClaimManager, PrepareError, UnschedulableError, allocate, deallocate
from hami_plugin.simulation.machines import machine_names

NAMESPACE = "demo"
WHOLE_ONLY = "these devices are given out whole, as nothing holds containers to parts of them"


class ClaimsDemo:
    """A node whose devices go by claims. ``steps`` are in order."""

    def __init__(self, sim: SimulatedNode, kubelet: ClaimManager) -> None:
        self.sim, self.api, self.kubelet = sim, sim.api, kubelet
        self.driver = driver_name(sim.hardware.vendor.name)
        self._number = 0
        self.pods: list[PodView] = []

    @property
    def steps(self) -> dict[str, Step]:
        return {
            "publish the devices": self.publish,
            "two pods share a card": self.share,
            "a pod that does not fit": self.refuse,
            "the daemon is killed": self.kill,
            "the kubelet starts anew": self.restart,
            "a device fails and heals": self.lose_and_heal,
            "the pods end": self.end,
        }

    def devices(self) -> list[Json]:
        """What is published."""
        own = [one for one in self.api.slices() if one["spec"]["driver"] == self.driver]
        return [device for one in own for device in one["spec"].get("devices", ())]

    def tiles(self) -> tuple[Tile, ...]:
        """The devices as a scheduler sees them."""
        listed = {device["name"]: device for device in self.devices()}
        given = {result["device"] for claim in self.api.claims() for result in _results(claim)}
        names = [(self.sim.name(device.uuid), device_name(device.uuid)) for device in self.sim.devices]
        return tuple(
            Tile(
                name=short,
                listed=name in listed,
                well=name in listed and not listed[name].get("taints"),
                used=name in given,
            )
            for short, name in names
        )

    async def publish(self, _sim: SimulatedNode) -> Facts:
        """The daemon starts, registers a DRA driver with the kubelet, and publishes the devices in ResourceSlices."""
        await self.sim.start_daemon()
        await self._served(len(self.sim.devices))
        seconds = time.monotonic() - self.sim.started
        slices, shared = self.api.slices(), [one for one in self.devices() if one.get("allowMultipleAllocations")]
        require(not self.sim.kubelet.ledger.resources, "the kubelet counts devices that go by claims")
        return {
            NOTE: f"{len(self.devices())} devices in {len(slices)} ResourceSlices after {seconds:.2f} s",
            "devices": len(self.devices()),
            "offered after": f"{seconds:.2f} s",
            "sharing": f"{len(shared)} devices are shared" if shared else WHOLE_ONLY,
        }

    async def share(self, _sim: SimulatedNode) -> Facts:
        """Two claims of 3000 MiB and 30 % are allocated to one device, and each container gets its own limits."""
        if not self.devices()[0].get("allowMultipleAllocations"):
            pod = await self._run(self._place({}))
            return {NOTE: WHOLE_ONLY, UNSHOWN: WHOLE_ONLY, "given": self._given(pod)}
        asked = {"memory": f"{MEMORY_MIB}Mi", "cores": str(CORES)}
        asked = {name: amount for name, amount in asked.items() if name in self.devices()[0]["capacity"]}
        pods = [await self._run(self._place(asked)) for _ in range(2)]
        given = [_results(self.api.claim(NAMESPACE, pod.name))[0]["device"] for pod in pods]
        require(given[0] == given[1], "the two pods are on different devices")
        edits = [self._edits(pod) for pod in pods]
        require(edits[0] != edits[1], "both containers receive the same")
        self.sim.show("shared")
        limits = {key: value for key, value in edits[0].env.items() if "LIMIT" in key or "CORES" in key}
        return {NOTE: ", ".join(f"{k}={v}" for k, v in sorted(limits.items())) or f"on {given[0]}", "device": given[0]}

    async def refuse(self, _sim: SimulatedNode) -> Facts:
        """A claim larger than any device stays pending, and `hami-plugin dra explain` names what is missing."""
        capacity = self.devices()[0].get("capacity", {})
        if "memory" not in capacity:
            return {UNSHOWN: "these devices publish no memory"}
        most = max(whole(device["capacity"]["memory"]["value"]) for device in self.devices())
        try:
            self._place({"memory": str(2 * most)})
        except UnschedulableError:
            claim = self.api.claim(NAMESPACE, f"pod-{self._number}")
        else:
            raise HamiError("the scheduler has allocated a claim that no device can serve")
        found = verdicts(claim, {self.driver: Selection(driver=self.driver)}, self.api.slices(), self.api.claims())
        require(bool(found) and not any(one.fits for one in found), "nothing says why the claim waits")
        self._forget(claim["metadata"]["name"])
        return {NOTE: str(found[0])}

    async def kill(self, _sim: SimulatedNode) -> Facts:
        """The daemon is killed and the CDI directory emptied, as by a reboot: the next daemon answers the same."""
        before = {pod.uid: self._edits(pod) for pod in self.pods}
        await self.sim.stop_daemon(kill=True)
        for path in self._specs.iterdir():
            path.unlink()
        notified = len(self.kubelet.notified)
        await self.sim.start_daemon()
        await self.sim.until(lambda: (self.driver, "") in self.kubelet.notified[notified:], "the registration")
        await self.sim.until(self._resolvable, "the specs")
        require(all(self._edits(pod) == before[pod.uid] for pod in self.pods), "a container would receive other limits")
        return {NOTE: f"{len(before)} claims answered as before, specs written again"}

    async def restart(self, _sim: SimulatedNode) -> Facts:
        """The kubelet starts anew and deletes the slices. They are back, and claims are answered without the API."""
        reads = self.api.count(r"GET .*/resourceclaims/")
        await self.kubelet.restart()
        seconds = await self._served(len(self.sim.devices))
        for pod in self.pods:
            await self.kubelet.prepare(pod)
        require(self.api.count(r"GET .*/resourceclaims/") == reads, "a prepared claim was read again")
        return {NOTE: f"slices back after {seconds:.2f} s", "registered again after": f"{seconds:.2f} s"}

    async def lose_and_heal(self, _sim: SimulatedNode) -> Facts:
        """A device fails: no claim is given it any more. It heals, and is offered again."""
        if len(self.sim.devices) < 2:
            return {UNSHOWN: "the node has a single device"}
        victim = self.sim.devices[-1]
        name = device_name(victim.uuid)

        def offered() -> bool:
            return any(one["name"] == name and not one.get("taints") for one in self.devices())

        self.sim.hardware.simulator.inject("lost", victim.index)
        lost = await self.sim.until(lambda: not offered(), "the fault in the slices")
        self.sim.show("lost")
        self.sim.hardware.simulator.inject("back", victim.index)
        healed = await self.sim.until(offered, "the healed device in the slices")
        self.sim.show("healed")
        return {NOTE: f"out after {lost:.2f} s, back {healed:.2f} s later", "healed after": f"{healed:.2f} s"}

    async def end(self, _sim: SimulatedNode) -> Facts:
        """The pods end, and nothing of their claims is left."""
        for pod in self.pods:
            await self.kubelet.unprepare(pod)
            self._forget(pod.name)
            self.api.delete_pod(NAMESPACE, pod.name)
        ended, self.pods = len(self.pods), []
        left = [path.name for path in self._specs.iterdir() if path.name.startswith("hami-claim_")]
        require(not left, f"specs are left: {', '.join(left)}")
        return {NOTE: f"{ended} claims released, no spec left"}

    @property
    def _specs(self) -> Path:
        return self.sim.directory / "cdi"

    async def _served(self, count: int) -> float:
        return await self.sim.until(
            lambda: len(self.devices()) == count and self.kubelet.registered(self.driver), "the driver and its slices"
        )

    def _place(self, asked: Mapping[str, str]) -> PodView:
        """A pod with a claim of its own, allocated and bound. ``UnschedulableError`` where nothing has room."""
        self._number += 1
        name = f"pod-{self._number}"
        request = {"name": "gpu", "exactly": {"deviceClassName": self.driver, "capacity": {"requests": dict(asked)}}}
        meta = {"metadata": {"name": name, "namespace": NAMESPACE}}
        claim = self.api.create_claim({**meta, "spec": {"devices": {"requests": [request]}}})
        spec: dict[str, Any] = {
            "containers": [{"name": "main", "image": "example", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        }
        pod = self.api.create_pod({**meta, "spec": spec})
        try:
            allocate(self.api, claim, pod, self.sim.node)
        except UnschedulableError:
            self.api.delete_pod(NAMESPACE, name)
            raise
        return pod_view(self.api.bind(NAMESPACE, name, self.sim.node))

    async def _run(self, pod: PodView) -> PodView:
        try:
            await self.kubelet.prepare(pod)
        except PrepareError as error:
            raise HamiError(f"the claim of {pod.key} is refused: {error}") from error
        self.pods.append(pod)
        return pod

    def _edits(self, pod: PodView) -> ContainerEdits:
        """What the runtime makes of the container's CDI names."""
        names = [QualifiedName.parse(name) for name in self.kubelet.cdi_devices(pod, "main")]
        return load([self._specs], yaml=None).resolve(names)

    def _resolvable(self) -> bool:
        """Whether the runtime finds all CDI names of the pods."""
        try:
            return all(bool(self._edits(pod)) for pod in self.pods)
        except CdiError:
            return False

    def _given(self, pod: PodView) -> str:
        return ", ".join(sorted(self._edits(pod).env))

    def _forget(self, claim: str) -> None:
        deallocate(self.api, NAMESPACE, claim)
        self.api.delete_claim(NAMESPACE, claim)


@asynccontextmanager
async def by_claims(sim: SimulatedNode) -> AsyncIterator[ClaimsDemo]:
    """Let the node's devices go by claims; its daemon does not run yet."""
    vendors = {one.hardware.vendor.name: {"frontEnd": "dra"} for one in sim.machines}
    specs = sim.directory / "cdi"
    specs.mkdir()
    configuration = {**CONFIGURATION, "cdiDirs": [str(specs)], "vendors": vendors}
    (sim.directory / "config.yaml").write_text(json.dumps(configuration), encoding="utf-8")
    kubelet = ClaimManager(sim.directory, sim.api, sim.node)
    await kubelet.start()
    try:
        yield ClaimsDemo(sim, kubelet)
    finally:
        await kubelet.stop()


def _results(claim: Json) -> list[Json]:
    return ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results") or []


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
