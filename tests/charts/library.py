"""Helm as a shared library, from a wheel of the Python package index, kept in a folder outside the repository."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

LOCK = Path(__file__).parent / "helm.lock"
DEADLINE_S = 240


class LackingError(Exception):
    """Why Helm is not to be had here."""


def library() -> Path:
    """Return the library's file, fetched now if it is not there yet. ``LackingError`` says what is missing."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    (pin,) = (line.split()[0] for line in LOCK.read_text(encoding="utf-8").splitlines() if "==" in line)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("HELM_CACHE") or home / "hami-plugin" / "helm")
    file = folder / f"{pin}-{machine}.so"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the holder has a deadline
        if not file.exists():
            _fetch(folder, file, machine)
    return file


def _fetch(folder: Path, file: Path, machine: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    options = ["--only-binary=:all:", "--python-version=3.12", "--require-hashes"]
    try:
        done = subprocess.run(
            [*command, *options, "--requirement", str(LOCK), "--dest", str(folder)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LackingError(f"pip did not fetch Helm's library within {DEADLINE_S} s") from error
    wheels = list(folder.glob("helm_sdkpy-*.whl"))
    if done.returncode or not wheels:
        raise LackingError(f"pip cannot fetch Helm's library ({LOCK.name}): {done.stderr.strip()[-400:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = f"helm_sdkpy/_lib/linux-{machine}/libhelm_sdkpy.so"
        if member not in wheel.namelist():
            raise LackingError(f"the wheel has no Helm for this machine ({machine})")
        partial = file.with_suffix(".partial")
        with wheel.open(member) as source, partial.open("wb") as target:
            shutil.copyfileobj(source, target)
        partial.rename(file)
    for each in wheels:
        each.unlink()
