"""Trace four requests through the running program, and count the files and calls of each.

    .venv/bin/python tools/ways.py

The daemon and the scheduler run as processes, by their own command line, beside a simulated machine, kubelet and API
server. A profile function in each records every call; which of them belong to a request is decided afterwards, by the
monotonic clock that all processes share:

- Allocate: from the entry of the device plugin's method ``Allocate`` until it returns;
- a filter, a bind: from the request over HTTP until the answer is read;
- a fault: from its injection into the simulated driver until the kubelet's list and the node's annotation have it.

A call is the entry of a named function of ``cdi``, ``hami_plugin`` or ``vendors``. Lambdas, comprehensions, generator
expressions, class bodies, the methods of ``dataclass``, and resumed coroutines and generators do not count. A request
has the calls of the tasks that began with it, and those on other threads; what a watch brings meanwhile is not part of
it. A fault, which no request begins, has all calls outside the vendor's package, whose driver finds it. Each is
repeated several times, and the run with the fewest calls counts.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from dis import opmap
from itertools import count, pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = "hami_plugin"
PACKAGES = ("cdi", PROGRAM, "vendors")
MACHINE = "dgx-h100"
ROUNDS = 7
PAUSE_S = 0.3
"""The pause before each run, in which the work of the previous one ends."""
GUARD_S = 60.0
NOBODY = -1
QUICK_CONFIGURATION = {"scheduler": {"lingerSeconds": 0.2}}
RETURNS = frozenset(number for name, number in opmap.items() if name.startswith("RETURN_") and "GENERATOR" not in name)
RESOURCES = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}

Span = tuple[int, int]
"""A period of the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Call:
    """One entry of a function, or its return (``returned``), at a time of the monotonic clock in nanoseconds.

    ``owner`` is the number of the task, or of the one that a thread works for; ``NOBODY`` on a thread of its own.
    """

    at: int
    file: str
    function: str
    owner: int
    returned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The cost of one request. ``changes`` counts consecutive calls in different files."""

    files: int
    functions: int
    calls: int
    changes: int
    listed: tuple[str, ...]

    @classmethod
    def of(cls, calls: Sequence[Call]) -> Way:
        return cls(
            files=len({call.file for call in calls}),
            functions=len({(call.file, call.function) for call in calls}),
            calls=len(calls),
            changes=sum(one.file != next_one.file for one, next_one in pairwise(calls)),
            listed=tuple(sorted({call.file for call in calls})),
        )


class Recorder:
    """A profile function that records calls of the project's code."""

    def __init__(self) -> None:
        self._known: dict[CodeType, tuple[str, str] | None] = {}
        self._noted: list[tuple[int, CodeType, int, int, bool]] = []
        self._tasks: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
        self._numbers = count()
        self._working_for = ContextVar("working for", default=NOBODY)

    def start(self) -> None:
        """Record this thread, and those that are started from now on."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def write(self, path: Path) -> None:
        """Write the records, one JSON array per line."""
        sys.setprofile(None)
        with path.open("w", encoding="utf-8") as file:
            for call in self._calls():
                file.write(json.dumps([call.at, call.file, call.function, call.owner, call.returned]) + "\n")

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if code not in self._known:
            self._known[code] = _place(code)
        if self._known[code] is not None:
            self._noted.append((time.monotonic_ns(), code, frame.f_lasti, self._owner(), event == "return"))

    def _owner(self) -> int:
        """The number of the present task. A thread has its task's where it was started with the task's context."""
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no event loop here
            task = None
        if task is None:
            return self._working_for.get()
        if task not in self._tasks:
            self._tasks[task] = next(self._numbers)
            self._working_for.set(self._tasks[task])
        return self._tasks[task]

    def _calls(self) -> Iterator[Call]:
        for at, code, offset, owner, returned in self._noted:
            place = self._known[code]
            if place and (_is_return(code, offset) if returned else _is_entry(code, offset)):
                yield Call(at, *place, owner, returned)


def _place(code: CodeType) -> tuple[str, str] | None:
    """The file, relative to the root, and the function's name; None if it does not count."""
    path = Path(code.co_filename)
    if code.co_name.startswith("<") or not path.is_relative_to(ROOT):
        return None
    file = path.relative_to(ROOT)
    return (file.as_posix(), code.co_qualname) if file.parts[0] in PACKAGES else None


def _is_entry(code: CodeType, offset: int) -> bool:
    """Whether a frame begins there. The argument of ``RESUME`` is 0 at a function's start, and not 0 after a yield.

    Class bodies are frames too, but run at import only.
    """
    return code.co_code[offset + 1] == 0


def _is_return(code: CodeType, offset: int) -> bool:
    """Whether the frame ends there. To the profiler, a suspended coroutine returns too."""
    return code.co_code[offset] in RETURNS


def record(path: Path, arguments: Sequence[str]) -> None:
    """Run the project's command line with a recorder, which writes to ``path`` when the command has ended."""
    sys.path.insert(0, str(ROOT))
    sys.argv = [PROGRAM, *arguments]
    recorder = Recorder()
    recorder.start()
    try:
        runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)
    finally:
        recorder.write(path)


async def daemon_ways(directory: Path, rounds: int) -> dict[str, Way]:
    """Allocate and a fault, in the daemon. Also answers, in ``directory/register``, what the node says of its cards."""
    from hami_plugin.demo.node import simulated_node  # noqa: PLC0415  # a recorder must start before the first import

    record_file, faults = directory / "daemon", []
    async with simulated_node(MACHINE) as stage:
        await stage.start_daemon(__file__, "--record", str(record_file))
        key, resource, cards = stage.family.rules.annotations.register, stage.resource, len(stage.devices)
        whole = stage.kubelet.allocatable
        await stage.until(lambda: whole(resource) > 0 and bool(stage.annotation(key)), "the registration")
        shares, annotation = whole(resource), stage.annotation(key)
        (directory / "register").write_text(json.dumps({key: annotation}), encoding="utf-8")
        (directory / "count").write_text(str(shares), encoding="utf-8")
        for number in range(rounds):
            await asyncio.sleep(PAUSE_S)
            await stage.end_pod(await stage.run_pod(_pod(f"pod-{number}")))
        for number in range(rounds):
            await asyncio.sleep(PAUSE_S)
            healthy, card, began = stage.annotation(key), number % cards, time.monotonic_ns()
            stage.hardware.simulator.inject("xid", card, 79)
            stage.hardware.simulator.inject("lost", card)
            await stage.until(lambda: whole(resource) < shares, "the fault at the kubelet")
            await stage.until(lambda: stage.annotation(key) != healthy, "the fault in the annotation")  # noqa: B023
            faults.append((began, time.monotonic_ns()))
            await asyncio.sleep(PAUSE_S)  # a card is well again only after it was discovered to be lost
            stage.hardware.simulator.inject("back", card)
            await stage.until(lambda: whole(resource) == shares, "the recovery at the kubelet")
            await stage.until(lambda: stage.annotation(key) == annotation, "the recovery in the annotation")
    calls = _read(record_file)
    from_the_driver = (
        [one for one in _within(calls, fault) if not one.file.startswith("vendors/")] for fault in faults
    )
    return {"allocate": _quietest(_requests(calls, _method(calls, "Allocate"))), "fault": _quietest(from_the_driver)}


async def scheduler_ways(directory: Path, rounds: int) -> dict[str, Way]:
    """A filter and a bind, in the scheduler: a node of its own for each pod, which is as the daemon registered it."""
    from hami_plugin.simulation.apiserver import SimulatedApiServer  # noqa: PLC0415  # as above

    record_file = directory / "scheduler"
    spans: dict[str, list[Span]] = {"filter": [], "bind": []}
    register = json.loads((directory / "register").read_text(encoding="utf-8"))
    counted = {next(iter(RESOURCES)): (directory / "count").read_text(encoding="utf-8")}
    async with SimulatedApiServer() as api:
        for number in range(rounds):
            api.create_node(f"node-{number}", capacity=counted, allocatable=counted)
            api.annotate_node(f"node-{number}", register)
        kubeconfig = api.write_kubeconfig(directory / "kubeconfig")
        async with _scheduler(directory, record_file, kubeconfig) as (session, url):
            for number in range(rounds):
                pod, node = api.create_pod(_pod(f"pod-{number}")), f"node-{number}"
                meta = pod["metadata"]
                identity = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
                questions = {
                    "filter": {"Pod": pod, "Nodes": None, "NodeNames": [node]},
                    "bind": {**identity, "Node": node},
                }
                for way, question in questions.items():
                    await asyncio.sleep(PAUSE_S)
                    began = time.monotonic_ns()
                    async with session.post(f"{url}/{way}", json=question) as answer:
                        reply = await answer.json()
                    spans[way].append((began, time.monotonic_ns()))
                    if reply["Error"] or reply.get("NodeNames", [node]) != [node]:
                        raise SystemExit(f"the scheduler refuses {way}: {reply}")
    calls = _read(record_file)
    return {way: _quietest(_requests(calls, times)) for way, times in spans.items()}


@asynccontextmanager
async def _scheduler(directory: Path, recorded: Path, kubeconfig: Path) -> AsyncIterator[tuple[Any, str]]:
    """The scheduler's process, once it is ready: a client's session, and where it listens."""
    import aiohttp  # noqa: PLC0415  # a recorder must start before the first import

    config, plain, port = directory / "config.json", _free_port(), _free_port()
    config.write_text(json.dumps(QUICK_CONFIGURATION), encoding="utf-8")
    options = {
        "--config": config,
        "--kubeconfig": kubeconfig,
        "--listen": f"127.0.0.1:{port}",
        "--http": f"127.0.0.1:{plain}",
        "--log-level": "error",
    }
    arguments = [str(argument) for option in options.items() for argument in option]
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--record", str(recorded), "scheduler", *arguments
    )
    try:
        new_each_time = aiohttp.TCPConnector(force_close=True)  # so each request begins a task
        limit = aiohttp.ClientTimeout(total=GUARD_S)
        async with aiohttp.ClientSession(connector=new_each_time, timeout=limit) as session:
            async with asyncio.timeout(GUARD_S):
                while not await _ready(session, f"http://127.0.0.1:{plain}/readyz", process):  # noqa: ASYNC110  # another process
                    await asyncio.sleep(0.05)
            yield session, f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), GUARD_S)


async def _ready(session: Any, url: str, process: asyncio.subprocess.Process) -> bool:
    if process.returncode is not None:
        raise SystemExit(f"the scheduler ended with status {process.returncode}")
    try:
        async with session.get(url) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _pod(name: str) -> dict[str, Any]:
    """A pod that requests a part of one card."""
    return {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": RESOURCES}}]},
    }


def _read(path: Path) -> list[Call]:
    with path.open(encoding="utf-8") as file:
        return sorted((Call(*json.loads(line)) for line in file), key=lambda call: call.at)


def _method(calls: Sequence[Call], name: str) -> list[Span]:
    """When the outermost method of this name was entered, and when it returned."""
    spans, depth, began = [], 0, 0
    for call in calls:
        if call.function.rpartition(".")[2] == name:
            depth += -1 if call.returned else 1
            if depth == 1 and not call.returned:
                began = call.at
            elif depth == 0:
                spans.append((began, call.at))
    return spans


def _within(calls: Sequence[Call], span: Span) -> list[Call]:
    began, ended = span
    return [call for call in calls if began <= call.at <= ended and not call.returned]


def _requests(calls: Sequence[Call], spans: Sequence[Span]) -> Iterator[list[Call]]:
    """For each span the calls of the request that is answered in it: those of its tasks, and of other threads."""
    first: dict[int, int] = {}
    for call in calls:
        first.setdefault(call.owner, call.at)
    for span in spans:
        yield [call for call in _within(calls, span) if call.owner == NOBODY or first[call.owner] >= span[0]]


def _quietest(taken: Iterable[Sequence[Call]]) -> Way:
    """The run with the fewest calls, and so with the least foreign work."""
    return min(map(Way.of, taken), key=lambda way: way.calls)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def measure(rounds: int = ROUNDS) -> dict[str, Way]:
    """All requests, each repeated. ``SystemExit`` says what did not happen."""
    sys.path.insert(0, str(ROOT))
    os.environ.pop("KUBECONFIG", None)
    with tempfile.TemporaryDirectory(prefix="hami-ways-") as name:
        directory = Path(name)
        return {**asyncio.run(daemon_ways(directory, rounds)), **asyncio.run(scheduler_ways(directory, rounds))}


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--record"]:
        record(Path(arguments[1]), arguments[2:])
    elif arguments:
        raise SystemExit(__doc__)
    else:
        with redirect_stdout(sys.stderr):  # the simulation's log
            ways = measure()
        print(json.dumps({name: asdict(way) for name, way in ways.items()}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
