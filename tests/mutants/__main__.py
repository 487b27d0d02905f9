"""Would a test notice? Each mutant is one change of the code, tried on a copy of the tree with the tests named for it.

``python -m tests.mutants [FILE...] [--only WORDS]``. A file is a list of mutants: ``what`` is changed, in which
``file``, from ``old`` (which stands there once) to ``new``, and the ``tests``, as pytest's arguments. Exit 1 if one
survives, or has no place any more.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
COPIED = ("cdi", "charts", "docs", "hami_plugin", "proto", "tests", "vendors", "pyproject.toml", "daemonset.yaml")
DEADLINE_S = 600
"""For the tests of one mutant, which may run for ever: then too it is caught."""
FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change. ``tests`` are those that ought to notice it."""

    what: str
    file: str
    old: str
    new: str
    tests: Sequence[str]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=sorted(Path(__file__).parent.glob("*.yaml")))
    parser.add_argument("--only", default="", help="mutants with these words in what is changed")
    options = parser.parse_args(arguments)
    mutants = [one for one in read(options.files) if options.only in one.what]
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        for name in COPIED:
            copy(ROOT / name, tree / name)
        for one in mutants:
            began = time.monotonic()
            caught = tried(one, tree)
            survivors += not caught
            tell(
                f"{'caught' if caught else 'SURVIVED'}  {one.what}: {caught} ({time.monotonic() - began:.0f} s)",
            )
    tell(f"{len(mutants)} mutants, {survivors} survived")
    return 1 if survivors else 0


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def read(files: Sequence[Path]) -> Iterator[Mutant]:
    for file in files:
        yield from (Mutant(**one) for one in yaml.safe_load(file.read_text(encoding="utf-8")))


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "build", ".git"))
    else:
        shutil.copy(source, target)


def tried(mutant: Mutant, tree: Path) -> str:
    """The first test that fails with the mutant in the tree; empty if none does. The tree is as before afterwards."""
    file = tree / mutant.file
    whole = file.read_text(encoding="utf-8")
    if whole.count(mutant.old) != 1:
        sys.exit(f"{mutant.file} has {whole.count(mutant.old)} times, not once: {mutant.old!r}. Write the mutant anew.")
    file.write_text(whole.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        return first_failure(mutant.tests, tree)
    finally:
        file.write_text(whole, encoding="utf-8")


def first_failure(tests: Sequence[str], tree: Path) -> str:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        return "the deadline"
    if done.returncode == 0:
        return ""
    found = FIRST_FAILURE.search(done.stdout)
    if done.returncode not in (1, 2) or not found:
        sys.exit(f"pytest {' '.join(tests)} could not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
