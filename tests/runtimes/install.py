"""Real container runtimes from Debian's packages, in a folder of their own: the system's packages stay as they are."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.runtimes import lacking
from tests.support.required import required
from tools.debian import telling
from tools.debian.apt import Packages
from tools.debian.commands import LackingError, output, tool
from tools.debian.telling import Say
from tools.debian.tree import Tree

PACKAGES = Packages(
    base=("podman", "runc", "conmon", "busybox-static"),
    later=("containerd",),  # bookworm's does not know CDI; trixie's runs with bookworm's libraries
)
VERSIONS = {"podman": "4.3.", "runc": "1.1.", "conmon": "2.1.", "containerd": "1.7."}
SHORT_S = 60


def cache() -> Path:
    """Return the folder of all that is downloaded; ``RUNTIMES_CACHE`` overrides it."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("RUNTIMES_CACHE") or home / "hami-plugin" / "runtimes")


def install(say: Say = telling.silence) -> Path:
    """Return the root file system, made now if it is not there yet. ``LackingError`` where that cannot be."""
    lacking.check()
    tree = Tree(
        packages=PACKAGES,
        finish=lambda root: {"versions": versions(root)},
        decided_by=[f"{name} {version}" for name, version in VERSIONS.items()],
    )
    return tree.kept_in(cache(), telling.timed(say))


def versions(root: Path) -> Mapping[str, str]:
    """Run each program in ``root``, so that a missing library shows here. ``LackingError`` for another version."""
    found = {}
    for name, wanted in VERSIONS.items():
        said = output([tool("chroot"), str(root), name, "--version"], deadline_s=SHORT_S)
        number = re.search(r"\d+\.\d+\.\d+\S*", said)
        if number is None or not number[0].startswith(wanted):
            raise LackingError(f"{name} says {said.strip()!r}, wanted is {wanted}x: the mirror has another version")
        found[name] = number[0]
    return found


def main() -> int:
    from tests.runtimes import browser  # noqa: PLC0415  # it uses this module

    def made(say: Say) -> str:
        return f"The runtimes are in {install(say)}, and a browser in {browser.install(say)}"

    return telling.main(made, absent="No real runtimes here", required=required())


if __name__ == "__main__":
    sys.exit(main())
