"""The daemon's packages as in the image, without those that developers install.

Some libraries import optional packages, which a linter or a test may have installed.
"""

from __future__ import annotations

import re
from compileall import compile_dir, compile_file
from importlib.metadata import Distribution, distribution
from pathlib import Path

import hami_plugin

ROOT = Path(hami_plugin.__file__).parents[1]
LOCK = ROOT / "requirements.lock"
OWN = ("cdi", "hami_plugin", "vendors")
FLAGS = ("-S", "-P")
"""No site-packages, and nothing of the working directory."""
_VARIABLE = re.compile(r"\b((?:MALLOC|PYTHON)_?[A-Z_]+)=(\S+)")
ENVIRONMENT = dict(_VARIABLE.findall((ROOT / "Dockerfile").read_text(encoding="utf-8")))
"""What the image sets for Python and for glibc's memory."""
UNUSED = ("kubernetes",)
"""Loaded for a kubeconfig's credential plug-in only, and large."""


def packages(folder: Path) -> Path:
    """Fill ``folder`` with links to what ``requirements.lock`` names, and to this project; for PYTHONPATH."""
    folder.mkdir()
    names = re.findall(r"^([A-Za-z0-9_.-]+)==", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    for found in (distribution("hami-plugin"), *map(distribution, names)):
        for path in _top_level(found):
            _link(folder / path.name, path)
    for name in OWN:
        _link(folder / name, ROOT / name)
    _compile(folder)
    return folder


def _compile(folder: Path) -> None:
    """As in an image, where pip compiles what it installs; the first setup of a checkout leaves that out."""
    for path in [*folder.iterdir()]:
        if path.is_dir() and path.name not in UNUSED:
            compile_dir(path.resolve(), quiet=2)
        elif path.suffix == ".py":
            compile_file(path.resolve(), quiet=2)
            _link(folder / "__pycache__", path.resolve().parent / "__pycache__")


def _top_level(found: Distribution) -> set[Path]:
    """A distribution's entries in site-packages. ``__pycache__`` is among them: the compiled forms of single files."""
    inside = [file for file in found.files or () if file.parts[0] not in ("..", "/") and file.suffix != ".pth"]
    return {Path(str(found.locate_file(file.parts[0]))) for file in inside}


def _link(link: Path, target: Path) -> None:
    if not link.exists():
        link.symlink_to(target)
