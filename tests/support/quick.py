"""The tests of what has changed since the branch left ``main``: ``python -m tests.support.quick``, or ``make quick``.

A changed module's tests are those at its mirror path and those that import it, the nearest first; a changed test is its
own. So many of them run that it stays a matter of seconds; ``make test`` runs all.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("cdi", "hami_plugin", "vendors", "bench", "tests")
APART = ("tests/realnode/", "tests/runtimes/", "tests/e2e/", "tests/seeds/")
"""Tests that need a machine of their own, or start whole daemons: they run only where they themselves have changed."""
PAGES = {".md": "tests/docs", "charts/": "tests/charts", ".proto": "tests/kubelet"}
"""What is no module, by its end or its folder, and the folder of its tests."""
MOST = 30
"""Test files. What nearly every test imports is left to ``make test``."""
PARALLEL = 8
"""With more files than these it pays to start several processes."""


def main(arguments: list[str]) -> int:
    changed = changes(ROOT)
    wanted = nearest(changed, ROOT)
    chosen = wanted[:MOST]
    left = f"; {len(wanted) - MOST} more are left to make test" if len(wanted) > MOST else ""
    sys.stdout.write(f"{len(changed)} changed files, {len(chosen)} test files{left}\n")
    sys.stdout.flush()
    if not chosen:
        return 0
    workers = ["--numprocesses", "auto", "--maxprocesses", "8", "--dist", "worksteal"] if len(chosen) > PARALLEL else []
    command = [sys.executable, "-m", "pytest", "-q", *workers, *arguments, *chosen]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def changes(root: Path, *, main: str = "main") -> list[str]:
    """Paths that differ from where the branch left ``main``, and those that git does not know yet."""
    base = git(root, "merge-base", "HEAD", main) or git(root, "merge-base", "HEAD", f"origin/{main}") or ["HEAD"]
    differing = git(root, "diff", "--name-only", "--diff-filter=d", base[0])
    return [*differing, *git(root, "ls-files", "--others", "--exclude-standard")]


def git(root: Path, *words: str) -> list[str]:
    """The lines that git answers; none where it refuses."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def nearest(changed: Collection[str], root: Path) -> list[str]:
    """Test files and folders, the nearest first."""
    modules = {name: path for path in changed if (name := module(path))}
    files = sorted(path.relative_to(root).as_posix() for path in (root / "tests").rglob("test_*.py"))
    naming = {file: text for file in files if names_any(text := (root / file).read_text(encoding="utf-8"), modules)}
    importing = {file: imports(text) for file, text in naming.items()}
    own = [file for file in files if file in changed]
    pages = [folder for what, folder in PAGES.items() if any(path.endswith(what) or what in path for path in changed)]
    usual = [file for file in files if not file.startswith(APART)]
    mirrored = [file for file in usual if any(mirrors(file, path) for path in modules.values())]
    beside = [file for file in usual if any(file.startswith(of_vendor(path)) for path in modules.values())]
    users = [file for file in usual if file in importing and importing[file] & modules.keys()]
    users.sort(key=lambda file: len(importing[file]))
    return list(dict.fromkeys([*own, *mirrored, *beside, *pages, *users]))


def module(path: str) -> str:
    """The dotted name of a module of the project; empty for what is none."""
    if not path.endswith(".py") or not path.startswith(tuple(f"{package}/" for package in PACKAGES)):
        return ""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def names_any(source: str, modules: Collection[str]) -> bool:
    """Whether a source has the last name of one of the modules: what imports it has, and little else is parsed."""
    return any(name.rpartition(".")[2] in source for name in modules)


def imports(source: str) -> frozenset[str]:
    """Modules that a source imports, and names in them, which may be modules too."""
    return frozenset(found(ast.walk(ast.parse(source))))


def found(nodes: Iterable[ast.AST]) -> Iterable[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def mirrors(test: str, path: str) -> bool:
    """Whether a test stands where the tests of this module do: ``allocation/ledger.py`` has ``test_ledger.py``."""
    folder, _, name = path.removeprefix("hami_plugin/").removesuffix(".py").rpartition("/")
    return Path(test) == Path("tests", folder, f"test_{name}.py")


def of_vendor(path: str) -> tuple[str, ...]:
    """The folder of the tests of a vendor's module, since a vendor's modules depend on each other."""
    parts = path.split("/")
    return (f"tests/vendors/{parts[1]}/",) if parts[0] == "vendors" and len(parts) > 2 else ()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
