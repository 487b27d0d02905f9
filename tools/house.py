"""Measure the structure: the path of a request, the coupling of modules, and the lines per room.

    .venv/bin/python tools/house.py                                  the table, with the targets
    .venv/bin/python tools/house.py --json > figures.json            the same for a program
    .venv/bin/python tools/house.py --against tools/house-before.json    before and after
    .venv/bin/python tools/house.py --still                          without the traced requests, in a second

The modules are those of ``cdi``, ``hami_plugin`` and ``vendors``, without generated code. What is counted:

- an importer is another of these modules that imports the module by an ``import`` statement anywhere in it; a name
  from a package counts for the package's ``__init__``, unless it is a module itself. Imports by string do not count.
  Modules of a single importer that the program also loads by name, as it does commands and vendors, have a row;
- a loose module lies directly in ``hami_plugin``, and is neither ``__init__`` nor ``__main__``;
- what a vendor must know are the distinct names that its modules import from ``cdi`` and ``hami_plugin``, and the
  modules with these names; files and directories named ``simulation`` are left out;
- a reused class name is defined in more than one place;
- words are the parts of identifiers, however they are joined: ``told`` is in ``told``, ``_told_by`` and ``ToldEarly``.
  If an own word is also an everyday word, only a class of that name counts;
- lines are all lines of ``*.py``.

``ways.py`` says how the traced requests are counted.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cdi", "hami_plugin", "vendors")
BESIDE = ("bench", "tests", "tools")
GENERATED = ("_pb2.py", "_pb2_grpc.py")
SMALL = 40
FIELD_WORDS = ("informer", "resync", "reconcile", "assume", "forget")
OWN_WORDS = (
    *("word", "told", "said", "looked", "fell", "farewell", "breath", "patience", "promise", "withdraw"),
    *("stranger", "strangers", "heir", "heirs", "keeper", "keepers", "company", "equipment", "desk"),
)
OWN_CLASSES = ("Own", "Line", "Stage", "Again")
OWN_PREFIXES = ("MOST_", "LEAST_")

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: its key in the file, its title in the table, and the target's maximum."""

    key: str
    title: str
    most: float | None = None


ROWS = (
    Row("single importers", "modules with exactly one importer", 39),
    Row("single importers: lines", "  their lines"),
    Row("single importers: same folder", "  of them in the importer's own folder"),
    Row("single importers: named", "  of them loaded by name as well (commands, vendors)"),
    Row("small modules", f"modules of at most {SMALL} lines", 29),
    Row("small modules: __init__", "  of them __init__.py"),
    Row("allocate: files", "one Allocate: files", 12),
    Row("allocate: functions", "  functions"),
    Row("allocate: calls", "  calls", 90),
    Row("allocate: changes", "  changes of file"),
    Row("fault: files", "one fault, from the driver to the kubelet and the annotation: files", 12),
    Row("fault: calls", "  calls"),
    Row("filter: files", "one filter: files", 15),
    Row("filter: calls", "  calls"),
    Row("bind: files", "one bind: files", 12),
    Row("bind: calls", "  calls"),
    Row("loose modules", "loose modules in hami_plugin", 1),
    Row("vendor: names", "names that the vendor with the fewest must know", 20),
    Row("vendor: modules", "  from so many modules", 6),
    Row("vendors: median of names", "  median of all vendors"),
    Row("family: fields", "fields of Family", 3),
    Row("reused class names", "class names that are defined more than once"),
    Row("words: field", f"words of the field ({', '.join(FIELD_WORDS)})"),
    Row("words: own", "words of our own"),
    Row("modules", "modules"),
)


@dataclass(frozen=True)
class Module:
    """One file. ``name`` is its import name."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def imports(self) -> Iterator[tuple[str, str]]:
        """Each imported name with its origin; a plain ``import`` has no name."""
        package = self.name if self.is_package else self.name.rpartition(".")[0]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                origin = ".".join([*above, *([node.module] if node.module else [])])
                yield from ((origin, alias.name) for alias in node.names)


class House:
    """The modules below ``root``, by name."""

    def __init__(self, root: Path) -> None:
        self._root = root
        found = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
        modules = (Module(_dotted(path.relative_to(root)), path) for path in found if not path.name.endswith(GENERATED))
        self.modules = {module.name: module for module in modules}

    def figures(self) -> Figures:
        """All figures that are read from the files."""
        single = self._single_importers()
        small = [module for module in self.modules.values() if module.lines <= SMALL]
        return {
            "modules": len(self.modules),
            "single importers": len(single),
            "single importers: lines": sum(module.lines for module, _ in single),
            "single importers: same folder": sum(one.path.parent == by.path.parent for one, by in single),
            "single importers: named": len({module.name for module, _ in single} & self._named()),
            "small modules": len(small),
            "small modules: __init__": sum(module.is_package for module in small),
            "loose modules": len([p for p in (self._root / "hami_plugin").glob("*.py") if not p.stem.startswith("__")]),
            "reused class names": sum(n > 1 for n in Counter(node.name for _, node in self._classes()).values()),
            "family: fields": self._family_fields(),
            **self._vendors(),
            **self._words(),
            **{f"lines: {room}": lines for room, lines in self._rooms().items()},
        }

    def imported(self) -> Mapping[str, frozenset[str]]:
        """Of each module the others that it imports, also those of which it imports types alone."""
        found: dict[str, frozenset[str]] = {}
        for module in self.modules.values():
            pairs = [(f"{origin}.{name}", origin) for origin, name in module.imports()]
            targets = (whole if whole in self.modules else origin for whole, origin in pairs)
            found[module.name] = frozenset(one for one in targets if one in self.modules and one != module.name)
        return found

    def _single_importers(self) -> list[tuple[Module, Module]]:
        """Modules with a single importer, and the importer."""
        importers: defaultdict[str, set[str]] = defaultdict(set)
        for name, targets in self.imported().items():
            for target in targets:
                importers[target].add(name)
        return [(self.modules[one], self.modules[by]) for one, (by, *more) in importers.items() if not more]

    def _named(self) -> set[str]:
        """Modules that are loaded by name: in a string, alone or before a colon, or as a vendor in ``vendors``."""
        strings = {
            node.value.partition(":")[0]
            for module in self.modules.values()
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        return {name for name in self.modules if name in strings or name.rpartition(".")[0] == "vendors"}

    def _classes(self) -> Iterator[tuple[Module, ast.ClassDef]]:
        for module in self.modules.values():
            yield from ((module, node) for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))

    def _family_fields(self) -> int:
        counts = [
            sum(isinstance(line, ast.AnnAssign) for line in node.body)
            for module, node in self._classes()
            if node.name == "Family" and module.name.startswith("hami_plugin")
        ]
        return max(counts, default=0)

    def _vendors(self) -> Figures:
        """What each vendor imports from the project, without its simulation."""
        known: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
        for module in self.modules.values():
            package, _, rest = module.name.partition(".")
            parts = rest.split(".")
            if package != "vendors" or not rest or "simulation" in parts:
                continue
            known[parts[0]] |= {pair for pair in module.imports() if pair[0].split(".")[0] in ("cdi", "hami_plugin")}
        names = {vendor: len(pairs) for vendor, pairs in known.items() if pairs}
        least = min(names, key=lambda vendor: names[vendor])
        return {
            "vendor: names": names[least],
            "vendor: modules": len({origin for origin, _ in known[least]}),
            "vendors: median of names": median(names.values()),
            **{f"names: {vendor}": count for vendor, count in sorted(names.items())},
        }

    def _words(self) -> Figures:
        parts: Counter[str] = Counter()
        prefixed = 0
        for module in self.modules.values():
            for name in _identifiers(module.text):
                parts.update(part.lower() for part in _parts(name))
                prefixed += name.startswith(OWN_PREFIXES)
        classes = Counter(node.name for _, node in self._classes())
        own = {word: parts[word] for word in OWN_WORDS} | {name: classes[name] for name in OWN_CLASSES}
        return {
            "words: field": sum(parts[word] for word in FIELD_WORDS),
            "words: own": sum(own.values()) + prefixed,
            **{f"word: {word}": parts[word] for word in FIELD_WORDS},
            **{f"word: {word}": count for word, count in own.items()},
            "word: MOST_ and LEAST_": prefixed,
        }

    def _rooms(self) -> Mapping[str, int]:
        """Lines of each room of ``hami_plugin``, of its top level, of each vendor, and of the other directories."""
        rooms: Counter[str] = Counter()
        for module in self.modules.values():
            parts = module.path.relative_to(self._root).with_suffix("").parts
            alone = parts[0] == "cdi" or (parts[0] == "hami_plugin" and len(parts) == 2)
            rooms[parts[0] if alone else "/".join(parts[:2])] += module.lines
        for folder in BESIDE:
            rooms[folder] = sum(_lines(path) for path in (self._root / folder).rglob("*.py"))
        outside = sum(lines for room, lines in rooms.items() if room not in ("tests", "tools"))
        return {**dict(sorted(rooms.items())), "all but tests and tools": outside}


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _identifiers(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.string


def _parts(name: str) -> list[str]:
    return re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)


def traced() -> Figures:
    """The figures of ``ways.py``, which runs the daemon and the scheduler."""
    command = [sys.executable, str(Path(__file__).with_name("ways.py"))]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=300)
    ways = json.loads(done.stdout)
    return {f"{way}: {what}": ways[way][what] for way in ways for what in ("files", "functions", "calls", "changes")}


def commit() -> str:
    """The measured commit, marked if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    return done.stdout.strip() or "no commit"


def rows(figures: Iterable[str]) -> list[Row]:
    """The rows of the table: those with a title, then rooms, vendors and words."""
    known = {row.key for row in ROWS}
    counted = [key for key in figures if key.startswith(("lines: ", "names: ", "word: "))]
    return [*ROWS, *(Row(key, key) for key in counted if key not in known)]


def table(now: Figures, before: Figures | None, heads: tuple[str, ...]) -> str:
    """The figures in columns; those above the target are marked."""
    lines = [("", *heads, "wanted")]
    for row in rows({**(before or {}), **now}):
        old = [_text(before.get(row.key))] if before is not None else []
        value = now.get(row.key)
        over = " !" if row.most is not None and value is not None and value > row.most else ""
        lines.append((row.title, *old, _text(value) + over, "" if row.most is None else f"at most {row.most:g}"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:,g}" if value < 1e6 else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the house.", epilog="What is counted is in the file's head.")
    parser.add_argument("--json", action="store_true", help="print JSON: the commit and the figures")
    parser.add_argument("--still", action="store_true", help="leave out the traced ways: nothing is run")
    parser.add_argument("--against", type=Path, metavar="FILE", help="show what an earlier --json said beside it")
    options = parser.parse_args()
    figures = House(ROOT).figures() | ({} if options.still else traced())
    if options.json:
        print(json.dumps({"commit": commit(), "figures": figures}, indent=1))
        return
    earlier: dict[str, Any] = json.loads(options.against.read_text(encoding="utf-8")) if options.against else {}
    heads = (*([earlier["commit"]] if earlier else []), commit())
    print(table(figures, earlier.get("figures"), heads))


if __name__ == "__main__":
    main()
