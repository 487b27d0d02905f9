"""Debian's Python in a folder, run where it lies: no chroot, so that nobody has to be root."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.debian.commands import LackingError, output

VERSION: Final = "3.11"
PLACE: Final = f"usr/bin/python{VERSION}"
DEADLINE_S: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """The interpreter of the root file system ``root``, on the libraries that are there as well."""

    root: Path

    def run(self, *arguments: str, remedy: str = "", **environment: str) -> str:
        """Run it and return what it printed. What it compiles is the same each time: the seed of hashes is fixed."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        fixed = {"PYTHONHASHSEED": "0", "PYTHONHOME": self.home, "PYTHONUTF8": "1"}
        return output(
            [*self.command, "-B", "-P", "-s", *arguments],
            deadline_s=DEADLINE_S,
            environment={**inherited, **fixed, **environment},
            remedy=remedy,
        )

    @property
    def home(self) -> str:
        """What PYTHONHOME has to be for it."""
        return str(self.root / "usr")

    @property
    def command(self) -> tuple[str, ...]:
        """What starts it, to be followed by its arguments."""
        loader = self._one("lib*/ld-linux*.so.*")
        libraries = ":".join(str(folder.parent) for folder in self._all("lib/*/libc.so.6", "usr/lib/*/libssl.so.3"))
        program = str(self.root / PLACE)
        return (str(loader), "--inhibit-cache", "--library-path", libraries, "--argv0", program, program)

    def compile(self, tree: Path, *folders: str) -> None:
        """Compile all modules below folders of a tree, which name their places as the container sees them.

        Python takes these files without asking when the source was changed: a tar keeps no times worth comparing.
        """
        places = [str(tree / folder) for folder in folders]
        options = ("-q", "-f", "--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", "/")
        self.run("-m", "compileall", *options, *places)

    def _one(self, pattern: str) -> Path:
        return self._all(pattern)[0]

    def _all(self, *patterns: str) -> list[Path]:
        found = [path for pattern in patterns for path in sorted(self.root.glob(pattern))]
        if not found:
            raise LackingError(f"{self.root} has no {' or '.join(patterns)}; remove this folder, and try again")
        return found
