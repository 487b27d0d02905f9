"""Would a test notice? Each mutant is one change of the code, tried on a copy of the tree with the tests named for it.

``python -m tests.mutants [FILE...] [--only WORDS] [--at-once N]``. A file is a list of mutants: ``what`` is changed, in
which ``file``, from ``old`` (which stands there once) to ``new``, and the ``tests``, as pytest's arguments. These run
as in ``make test``; a mutant that survives them is tried with all cases, as in ``make test-all``. What survives that
too has ``survives``, the reason why, or is a failure. At the end stands a table. Exit 1 if a mutant survives that says
nothing of it, if one is caught that says it survives, or if ``make test`` catches less than 95 % of what
``make test-all`` does; 2 if one has no place in the code any more.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import yaml

ROOT = Path(__file__).parents[2]
COPIED = ("cdi", "charts", "docs", "hami_plugin", "proto", "tests", "vendors", "pyproject.toml", "daemonset.yaml")
DEADLINE_S = 600
"""For the tests of one mutant, which may run for ever: then too it is caught."""
FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
LEAST = 0.95
"""Of what all cases catch, so much is caught by a part of them."""
QUIETLY = ("-p", "no:cacheprovider", "--hypothesis-profile", "any failure")
"""Nothing is kept, and no example is made smaller."""
NONE_RUN = 5
"""What pytest ends with where no test is left to run: all are marked for ``make test-all``."""
PART, ALL, NOBODY = "make test", "make test-all", "nobody"


class MisplacedError(Exception):
    """The text that a mutant changes does not stand in its file once, or its tests could not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change. ``tests`` are those that ought to notice it; ``survives`` is why they cannot."""

    what: str
    file: str
    old: str
    new: str
    tests: Sequence[str]
    survives: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Which run caught a mutant of an ``area``, and with which test."""

    area: str
    mutant: Mutant
    caught: str
    test: str
    seconds: float


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=sorted(Path(__file__).parent.glob("*.yaml")))
    parser.add_argument("--only", default="", help="mutants with these words in what is changed")
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)), help="so many mutants at once")
    options = parser.parse_args(arguments)
    mutants = [(area, one) for area, one in read(options.files) if options.only in one.what]
    try:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            outcomes = list(tried_all(mutants, Path(folder), options.at_once))
    except MisplacedError as error:
        tell(str(error))
        return 2
    tell("\n" + table(outcomes))
    mistaken = [one for one in outcomes if (one.caught == NOBODY) != bool(one.mutant.survives)]
    for one in mistaken:
        tell(f"{'survived' if one.caught == NOBODY else 'does not survive'}: {one.mutant.what} ({one.mutant.file})")
    by_all = [one for one in outcomes if one.caught != NOBODY]
    by_part = [one for one in by_all if one.caught == PART]
    return 1 if mistaken or len(by_part) < LEAST * len(by_all) else 0


def table(outcomes: Sequence[Outcome]) -> str:
    """By area: how many mutants, and how many of them each run catches."""
    rows = [("area", "mutants", PART, ALL, "listed as surviving")]
    areas = [*dict.fromkeys(one.area for one in outcomes), "all"]
    for area in areas:
        of_area = [one for one in outcomes if area in (one.area, "all")]
        caught = Counter(one.caught for one in of_area)
        listed = sum(bool(one.mutant.survives) for one in of_area)
        rows.append((area, *map(str, (len(of_area), caught[PART], caught[PART] + caught[ALL], listed))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def read(files: Sequence[Path]) -> Iterator[tuple[str, Mutant]]:
    for file in files:
        yield from ((file.stem, Mutant(**one)) for one in yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader))


def tried_all(mutants: Sequence[tuple[str, Mutant]], folder: Path, at_once: int) -> Iterator[Outcome]:
    """Try them, in their order, each on a copy of the tree that nobody else has meanwhile."""
    trees: SimpleQueue[Path] = SimpleQueue()
    for number in range(at_once):
        tree = folder / str(number)
        tree.mkdir()
        temporary(tree).mkdir()
        for name in COPIED:
            copy(ROOT / name, tree / name)
        trees.put(tree)

    def try_one(area: str, mutant: Mutant) -> Outcome:
        tree, began = trees.get(), time.monotonic()
        try:
            caught, test = tried(mutant, tree)
        finally:
            trees.put(tree)
        return Outcome(area=area, mutant=mutant, caught=caught, test=test, seconds=time.monotonic() - began)

    with ThreadPoolExecutor(at_once) as pool:
        for one in pool.map(try_one, *zip(*mutants, strict=True)):
            tell(f"{one.area}: {one.mutant.what}: caught by {one.caught} {one.test} ({one.seconds:.0f} s)")
            yield one


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "build", ".git"))
    else:
        shutil.copy(source, target)


def temporary(tree: Path) -> Path:
    """Where the tests of a tree have their folders: two runs of pytest would take each other's away. Sockets need a
    short path.
    """
    return tree.parent / f"t{tree.name}"


def tried(mutant: Mutant, tree: Path) -> tuple[str, str]:
    """Which run catches the mutant, and the first test that fails. The tree is as before afterwards."""
    file = tree / mutant.file
    whole = file.read_text(encoding="utf-8") if file.exists() else ""
    if whole.count(mutant.old) != 1:
        raise MisplacedError(
            f"{mutant.file} has {whole.count(mutant.old)} times, not once: {mutant.old!r}. Write the mutant anew."
        )
    file.write_text(whole.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        for run in (PART, ALL):
            if failed := first_failure(mutant.tests, tree, full=run == ALL):
                return run, failed
    finally:
        file.write_text(whole, encoding="utf-8")
    return NOBODY, ""


def first_failure(tests: Sequence[str], tree: Path, *, full: bool) -> str:
    """The first test that fails, empty if none does. Hypothesis makes the same examples each time."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", *QUIETLY, *tests]
    environment = {**os.environ, "TEST_ALL": "1" if full else "", "TMPDIR": str(temporary(tree))}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "the deadline"
    if done.returncode == 0 or (done.returncode == NONE_RUN and not full):
        return ""
    found = FIRST_FAILURE.search(done.stdout)
    if done.returncode not in (1, 2) or not found:
        raise MisplacedError(f"pytest {' '.join(tests)} could not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
