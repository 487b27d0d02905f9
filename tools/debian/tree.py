"""A small root file system of Debian's packages, in a folder of its own: the system's packages stay as they are.

It is the packages with everything that they depend on, unpacked and not installed: no script of a package runs.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.debian.apt import BASE, LATER, LONG_S, SHORT_S, Apt, Packages
from tools.debian.commands import output, tool
from tools.debian.keeping import MARK, once
from tools.debian.telling import Say

STATUS = "var/lib/dpkg/status.d"
WAIT_S = 3 * LONG_S
"""Seconds for which another process may be making the same tree."""


def nothing_more(_root: Path) -> Mapping[str, object]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What a root file system is made of.

    ``finish`` gets the unpacked tree before anybody else sees it: it checks it, or adds to it, and returns facts to
    note. ``decided_by`` names what else than the packages decides about the result.
    """

    packages: Packages
    finish: Callable[[Path], Mapping[str, object]] = nothing_more
    decided_by: Sequence[str] = ()

    def recipe(self) -> str:
        """Return a mark of everything that decides what is made, this module too."""
        named = [BASE, LATER, asdict(self.packages), *self.decided_by, Path(__file__).read_text()]
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()

    def kept_in(self, folder: Path, say: Say, *, anew: bool = False) -> Path:
        """Return the root file system, made now if it is not there yet, or ``anew`` of what the mirror has today.

        A broken-off attempt is continued. ``LackingError`` says why it cannot be made, and what to do.
        """
        if anew:
            (folder / MARK).unlink(missing_ok=True)
        once(folder, self.recipe(), lambda: self._make(folder, say), wait_s=WAIT_S)
        return folder / "root"

    def _make(self, folder: Path, say: Say) -> Mapping[str, object]:
        apt, partial, root = folder / "apt", folder / "root.partial", folder / "root"
        debs = Apt(folder=apt).debs(self.packages)
        say(f"{folder.name}: {len(debs)} packages, {sum(deb.stat().st_size for deb in debs) / 1e6:.0f} MB downloaded")
        for old in (partial, root):
            if old.exists():
                shutil.rmtree(old)
        unpack(debs, partial)
        say(f"{folder.name}: packages unpacked")
        facts = self.finish(partial)
        partial.rename(root)
        shutil.rmtree(apt)
        return facts


def unpack(debs: Sequence[Path], root: Path) -> None:
    """Unpack packages into a new folder. ``STATUS`` in it tells of each, as in images made without dpkg."""
    (root / STATUS).mkdir(parents=True)
    root.chmod(0o755)
    for deb in debs:
        output([tool("dpkg-deb"), "--extract", str(deb), str(root)], deadline_s=SHORT_S)
        control = output([tool("dpkg-deb"), "--field", str(deb)], deadline_s=SHORT_S)
        (root / STATUS / deb.name.partition("_")[0]).write_text(control)
