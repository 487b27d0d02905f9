"""Helm as a shared library, from a wheel of the Python package index, kept in a folder outside the repository."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tools.debian.commands import LackingError, output
from tools.debian.keeping import once

LOCK = Path(__file__).parent / "helm.lock"
DEADLINE_S = 240
NAME, WHEEL = "libhelm_sdkpy.so", "helm_sdkpy-*.whl"


def library() -> Path:
    """Return the library's file, fetched now if it is not there yet. ``LackingError`` says what is missing."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("HELM_CACHE") or home / "hami-plugin" / "helm")
    recipe = f"{machine} {LOCK.read_text(encoding='utf-8')}"
    once(folder, recipe, lambda: _fetch(folder, f"helm_sdkpy/_lib/linux-{machine}/{NAME}"), wait_s=2 * DEADLINE_S)
    return folder / NAME


def _fetch(folder: Path, member: str) -> Mapping[str, object]:
    for earlier in folder.glob(WHEEL):
        earlier.unlink()
    command = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
    options = ("--only-binary=:all:", "--python-version=3.12", "--require-hashes", "--requirement", str(LOCK))
    output([*command, *options, "--dest", str(folder)], deadline_s=DEADLINE_S, remedy="set PIP_INDEX_URL")
    (wheel,) = folder.glob(WHEEL)
    with zipfile.ZipFile(wheel) as archive:
        if member not in archive.namelist():
            raise LackingError(f"the wheel has no Helm for this machine ({member})")
        with archive.open(member) as source, (folder / NAME).open("wb") as target:
            shutil.copyfileobj(source, target)
    wheel.unlink()
    return {}
