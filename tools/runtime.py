"""Install what a run needs, run a command, and print the time of each part.

It uses the standard library only, because it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
WHEELS = Path("build/wheels")
TIMES = ".setup-times"
LOCKS = ("requirements.lock", "requirements-build.lock")
"""The packages of a run, and those that build the project's own package, which are removed afterwards."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=Path(".venv"))
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="make the virtual environment, download, and install")
    run = commands.add_parser("run", help="run hami-plugin, and show the time of each part")
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    chosen = parser.parse_args()
    os.chdir(ROOT)
    if chosen.command == "install":
        install(chosen.venv)
        return 0
    return timed_run(chosen.venv, chosen.arguments)


def install(venv: Path) -> None:
    """Install requirements.lock with verified hashes, and the project in editable mode."""
    times: dict[str, float] = {}
    count = sum("==" in line for line in (ROOT / LOCKS[0]).read_text(encoding="utf-8").splitlines())
    start = time.monotonic()
    if not (venv / "bin" / "python").exists():
        say(f"creating {venv} with Python {sys.version.split()[0]}")
        call(sys.executable, "-m", "venv", str(venv), hint="on Debian: apt-get install python3-venv")
    say(f"downloading {count} packages ({LOCKS[0]})")
    WHEELS.mkdir(parents=True, exist_ok=True)
    editables = WHEELS / "editables.lock"
    editables.write_text(pinned("editables", Path("requirements-dev.lock")), encoding="utf-8")
    locks = (*LOCKS, str(editables))
    pip(venv, "download", "--dest", str(WHEELS), *(argument for lock in locks for argument in ("--requirement", lock)))
    times["download"], start = time.monotonic() - start, time.monotonic()
    say(f"installing into {venv}")
    local = ("--no-index", "--find-links", str(WHEELS))
    pip(venv, "install", *local, "--no-compile", "--requirement", LOCKS[0])
    pip(venv, "install", *local, "--no-deps", "--editable", ".")
    times["install"] = time.monotonic() - start
    (venv / TIMES).write_text(json.dumps(times), encoding="utf-8")


def pinned(package: str, lock: Path) -> str:
    """The lines of one package in a file of pins: its version and its hashes."""
    found = re.search(rf"^{package}==.*?(?=^\S|\Z)", lock.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if not found:
        sys.exit(f"{lock} does not pin {package}; run: make lock")
    return found[0]


def timed_run(venv: Path, arguments: Sequence[str]) -> int:
    """Run ``hami-plugin``, forward signals to it, and return its exit status."""
    say(f"running hami-plugin {' '.join(arguments)}\n")
    start = time.monotonic()
    running: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, _frame: object) -> None:
        running[0].send_signal(number) if running else early.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    running.append(subprocess.Popen([venv / "bin" / "hami-plugin", *arguments]))
    for caught in early:  # those that came before there was somebody to forward them to
        running[0].send_signal(caught)
    status = running[0].wait()
    times = installed_before(venv) | {"run": time.monotonic() - start}
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in times.items())
    print(f"\nTime: {parts}" + ("." if len(times) > 1 else " (what it needs was installed before)."), flush=True)
    return status if status >= 0 else 128 - status


def installed_before(venv: Path) -> dict[str, float]:
    """The times of an installation that are not printed yet."""
    file = venv / TIMES
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
    finally:
        file.unlink(missing_ok=True)


def pip(venv: Path, *arguments: str) -> None:
    command = (str(venv / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)
    call(*command, hint="check that pip can reach a package index")


def call(*arguments: str, hint: str) -> None:
    done = subprocess.run(arguments, check=False)
    if done.returncode:
        sys.exit(f"failed: {' '.join(arguments)}\n{hint}")


def say(text: str) -> None:
    print(f"== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
