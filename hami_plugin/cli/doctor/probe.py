"""A proof of isolation: an allocation beyond the limit, tried in a running container, and what that shows.

The probe is a script for the container's own Python, handed over by ``kubectl exec`` with the asker's rights. So
nothing is installed, no image is needed, and who may not exec into the pod proves nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from hami_plugin.cli.doctor.findings import Finding, Unavailable, failed, items, ok, warning

PYTHONS = ("python3", "python")
PROBE_S = 60.0
"""How long the probe may take: a first context of CUDA's takes seconds."""
MAX_OUTPUT = 1 << 16
MARK = "hami-plugin-probe "
OUT_OF_MEMORY = 2
TOLERANCE = 1.05
"""A limiter shows the limit as the device's memory, about."""
MIB = 1 << 20
ABSENT = ("executable file not found", "no such file or directory", "not found in $PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """One container, the limits of its devices in bytes, and what the probe has printed, or why there is nothing."""

    container: str
    limits: tuple[int, ...]
    answer: Mapping[str, Any] | Unavailable


async def probed(namespace: str, pod: str, container: str, limits: Sequence[int], *, kubeconfig: Path | None) -> Probed:
    """Run the probe in a container."""
    script = files("hami_plugin.cli.doctor").joinpath("probe_script.py").read_text(encoding="utf-8")
    answer: Mapping[str, Any] | Unavailable = Unavailable(text="not tried")
    for python in PYTHONS:
        command = [python, "-c", script, *map(str, limits)]
        answer = await _executed(namespace, pod, container, command, kubeconfig)
        if not (isinstance(answer, Unavailable) and any(message in answer.text for message in ABSENT)):
            break
    else:
        answer = Unavailable(
            text="the container has no Python, so the probe cannot run in it",
            remedy="run it in another container of the same limits that has Python 3",
        )
    return Probed(container=container, limits=tuple(limits), answer=answer)


async def _executed(
    namespace: str, pod: str, container: str, command: Sequence[str], kubeconfig: Path | None
) -> Mapping[str, Any] | Unavailable:
    config = ["--kubeconfig", str(kubeconfig)] if kubeconfig else []
    call = ["kubectl", *config, "exec", "-n", namespace, pod, "-c", container, "--", *command]
    try:
        process = await asyncio.create_subprocess_exec(
            *call,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=MAX_OUTPUT,
        )
    except OSError as error:
        return Unavailable(
            text=f"kubectl cannot be run: {error.strerror}", remedy="run it where kubectl is, with your kubeconfig"
        )
    try:
        async with asyncio.timeout(PROBE_S):
            out, err = await process.communicate()
    except TimeoutError:
        return Unavailable(text=f"the probe has not ended within {PROBE_S:g} s", remedy="look at the container's dmesg")
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return _read(out[:MAX_OUTPUT].decode(errors="replace"), err[:MAX_OUTPUT].decode(errors="replace"))


def _read(out: str, err: str) -> Mapping[str, Any] | Unavailable:
    """The line that the probe has printed. What the container prints beside it is of no account."""
    for line in out.splitlines():
        if line.startswith(MARK):
            try:
                found = json.loads(line.removeprefix(MARK))
            except ValueError:
                break
            if isinstance(found, dict):
                return found
    printed = " ".join(err.split())[-400:] or "nothing was printed"
    return Unavailable(text=f"the probe has told nothing: {printed}", remedy="you need the right to exec into the pod")


def isolation(one: Probed) -> Iterator[Finding]:
    """What the probe shows of one container."""
    check = f"isolation of {one.container}"
    if isinstance(one.answer, Unavailable):
        yield warning(check, one.answer.text, one.answer.remedy)
        return
    if problem := one.answer.get("problem"):
        yield warning(check, f"was not tried: {str(problem)[:200]}", "a container without the driver has no device")
        return
    preloaded = bool(one.answer.get("preload"))
    for device in items(one.answer, "devices"):
        yield _device(check, device, preloaded=preloaded)


def _device(check: str, device: Mapping[str, Any], *, preloaded: bool) -> Finding:
    number, limit, code = device.get("device"), _whole(device, "limit"), device.get("code")
    what = f"device {number}: {_whole(device, 'asked') // MIB} MiB, where {limit // MIB} MiB are allowed"
    if step := device.get("failed"):
        text = f"device {number} was not tried: {str(step)[:60]} answers {code}"
        return warning(check, text, "the container may have used up its share; try again when it is idle")
    if code == 0:
        why = "the limiter is loaded and has not refused it" if preloaded else "no limiter is loaded in its programs"
        remedy = "look for a removed /etc/ld.so.preload, and for CUDA_DISABLE_CONTROL in the container"
        return failed(check, f"{what}, were allocated: {why}", remedy)
    shown = _whole(device, "total")
    if code == OUT_OF_MEMORY and preloaded and shown <= limit * TOLERANCE:
        text = f"{what}, were refused by the limiter; a static program, or a removed preload, would go round it"
        return ok(check, text)
    text = f"{what}, were refused ({code}), but not by a limiter: the program sees {shown // MIB} MiB"
    remedy = "look for a removed /etc/ld.so.preload: only the card was full"
    return failed(check, text, remedy)


def _whole(device: Mapping[str, Any], name: str) -> int:
    value = device.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
