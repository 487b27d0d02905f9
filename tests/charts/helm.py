"""Helm's own code, in a process of its own: lint a chart, install it into a stand-in of an API server, upgrade it."""

from __future__ import annotations

import atexit
import copy
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import yaml

from tests.charts.library import library
from tests.charts.stand_in import StandIn, kubeconfig, serving

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/hami-plugin"
RELEASE, NAMESPACE = "hami-plugin", "hami-system"
DEADLINE_S = 60
WITHIN_S = 20
OPTIONS = {"wait": False, "timeout_seconds": WITHIN_S, "server_side_apply": "true", "disable_openapi_validation": True}
CREATE_NAMESPACE = {"create_namespace": True}


class HelmError(Exception):
    """What Helm said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """``text`` is what Helm rendered, ``notes`` what it prints, ``objects`` what the API server then had."""

    text: str
    notes: str
    objects: Mapping[str, Any]

    @property
    def documents(self) -> list[dict[str, Any]]:
        """The reader's own, to change as it likes."""
        return copy.deepcopy(_documents(self.text))

    def kind(self, kind: str) -> list[dict[str, Any]]:
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind: str) -> dict[str, Any]:
        (document,) = self.kind(kind)
        return document


@cache
def _documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def installed(
    *values: Mapping[str, Any],
    version: str = "v1.31.4",
    policies: bool = True,
    release: str = RELEASE,
) -> tuple[Release, ...]:
    """Install with the first values, upgrade with each further ones; the release after each. ``HelmError``.

    What has been installed once is remembered, with the certificates that it has made; the answer is the caller's own.
    """
    return copy.deepcopy(_installed(json.dumps(values), version, policies, release))


@cache
def _installed(values: str, version: str, policies: bool, release: str) -> tuple[Release, ...]:
    with serving(StandIn(version, policies=policies)) as server:
        answers = run(
            [{"verb": "upgrade" if n else "install", "values": v} for n, v in enumerate(json.loads(values))],
            kubeconfig(server.url),
            release,
        )
        objects = dict(server.objects)
    return tuple(
        Release(text=answer.get("manifest", ""), notes=answer["info"].get("notes", ""), objects=objects)
        for answer in answers
    )


def rendered(values: Mapping[str, Any] | None = None, **where: Any) -> Release:
    """The chart installed with these values."""
    return installed(values or {}, **where)[0]


def refusals(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """What Helm says against each of these sets of values, in one process; empty where it installs them."""
    with serving(StandIn("v1.31.4", policies=True)) as server:
        steps = [{"verb": "install", "values": dict(v), "may_fail": True} for v in values]
        return [answer.get("refused", "") for answer in run(steps, kubeconfig(server.url), RELEASE)]


def lint() -> list[str]:
    """What Helm's linter says of the chart, but for hints."""
    with serving(StandIn("v1.31.4", policies=True)) as server:
        (answer,) = run([{"verb": "lint"}], kubeconfig(server.url), RELEASE)
    return [str(message) for message in answer["Messages"] or () if message["Severity"] > 1]


def run(
    steps: Sequence[Mapping[str, Any]],
    config: str,
    release: str,
    *,
    entering: Sequence[str] = (),
    storage: str = "memory",
) -> list[dict[str, Any]]:
    """What Helm answers to each step: a ``verb`` (install, upgrade, uninstall, lint), ``values`` and ``options``.

    A step that ``may_fail`` answers ``refused`` with Helm's words. ``config`` is the text of a kubeconfig, of a
    stand-in or of a real cluster, and ``entering`` a command that runs another one where that cluster can be reached.
    Helm remembers releases in ``storage``: beyond this call in ``secret``. ``HelmError`` says what Helm said.
    """
    work = {"library": str(library()), "kubeconfig": config, "release": release, "steps": steps}
    if entering or storage != "memory":
        with _Process(entering, storage) as process:
            return process.ask(work)
    if _kept().ended:
        _kept.cache_clear()
    return _kept().ask(work)


class _Process:
    """Helm's code in a process: a line of work in, a line of answers out, until its input ends."""

    def __init__(self, entering: Sequence[str] = (), storage: str = "memory") -> None:
        environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        self._process = subprocess.Popen(
            [*entering, sys.executable, "-m", "tests.charts.helm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**environment, "HELM_DRIVER": storage, "GOGC": "800"},  # a quarter of its time went to the collector
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, work: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The answer to each step, within ``DEADLINE_S``. ``HelmError``."""
        assert self._process.stdin
        assert self._process.stdout
        deadline = threading.Timer(DEADLINE_S, self._process.kill)
        deadline.start()
        try:
            self._process.stdin.write(json.dumps(work) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            deadline.cancel()
        if not line:
            self._process.wait(DEADLINE_S)
            raise HelmError(f"Helm's process ended, or took more than {DEADLINE_S} s")
        answer = json.loads(line)
        if "error" in answer:
            raise HelmError(answer["error"])
        answers: list[dict[str, Any]] = answer["answers"]
        return answers

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """Let it end."""
        try:
            self._process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


@cache
def _kept() -> _Process:
    """One for all renderings of this process: starting it takes as long as a rendering."""
    process = _Process()
    atexit.register(process.close)
    return process


class _Library:
    def __init__(self, file: str, config: Path) -> None:
        self._code = ctypes.CDLL(file)
        self._code.helm_sdkpy_last_error.restype = ctypes.c_char_p
        self._handle = ctypes.c_ulonglong()
        create = self._code.helm_sdkpy_config_create
        self._check(create(NAMESPACE.encode(), str(config).encode(), None, b"{}", ctypes.byref(self._handle)))

    def _check(self, status: int) -> None:
        if status:
            raise HelmError((self._code.helm_sdkpy_last_error() or b"").decode())

    def _ask(self, function: str, *arguments: str | int) -> Any:
        answer = ctypes.c_char_p()
        given = (one.encode() if isinstance(one, str) else ctypes.c_int(one) for one in arguments)
        self._check(getattr(self._code, function)(self._handle, *given, ctypes.byref(answer)))
        return json.loads(answer.value or b"null")

    def close(self) -> None:
        self._code.helm_sdkpy_config_destroy(self._handle)

    def step(self, verb: str, release: str, values: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        match verb:
            case "lint":
                return self._ask("helm_sdkpy_lint", str(CHART))
            case "uninstall":
                return self._ask("helm_sdkpy_uninstall", release, int(True), WITHIN_S)
        given = (json.dumps(values), "", json.dumps({**OPTIONS, **options}))
        return self._ask(f"helm_sdkpy_{verb}", release, str(CHART), *given)


def _answer(code: _Library, release: str, step: Mapping[str, Any]) -> Any:
    try:
        return code.step(step["verb"], release, step.get("values", {}), step.get("options", {}))
    except HelmError as error:
        if not step.get("may_fail"):
            raise
        return {"refused": str(error)}


def _answers(work: Mapping[str, Any]) -> dict[str, Any]:
    try:
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "kubeconfig"
            config.write_text(work["kubeconfig"], encoding="utf-8")
            with closing(_Library(work["library"], config)) as code:
                return {"answers": [_answer(code, work["release"], step) for step in work["steps"]]}
    except HelmError as error:
        return {"error": str(error)}


def main() -> None:
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_answers(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
