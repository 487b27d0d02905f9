"""What a real node consists of, from Debian's packages: root file systems, and Kubernetes built from its source.

Nothing is installed on the machine. Each part is kept in the user's cache and made again only when its recipe changes.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.debian import telling
from tests.debian.apt import Apt, Packages
from tests.debian.keeping import once
from tests.debian.telling import Say
from tests.debian.tree import Tree
from tests.realnode import build, interpreter
from tests.runtimes import lacking

PACKAGES = Packages(
    base=(
        *("etcd-server", "runc", "containernetworking-plugins"),
        *("busybox-static", "dash", "coreutils", "findutils", "grep", "sed"),
        *("iproute2", "mount", "util-linux", "openssl"),
        *("golang-go", "golang-github-modern-go-reflect2-dev", "golang-github-json-iterator-go-dev"),
    ),
    later=("containerd",),  # bookworm's does not know CDI; trixie's runs with bookworm's libraries
)
SOURCE = "kubernetes=1.20.5+really1.20.2-1.1+deb12u1"
VERSION = build.VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """``tree`` is a root file system with every program but Kubernetes' own, which are in ``programs``.

    ``image`` is another one, with Python and all that the daemon imports: its container's, but for the project's wheel.
    """

    tree: Path
    programs: Path
    image: Path


def cache() -> Path:
    """Return the folder of all that is downloaded and built; ``CLUSTER_CACHE`` overrides it."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("CLUSTER_CACHE") or home / "hami-plugin" / "cluster")


def install(say: Say = telling.silence) -> Stack:
    """Return what a node needs, made now where it is not there yet. ``LackingError`` where that cannot be."""
    lacking.check()
    folder, told = cache(), telling.timed(say)
    tree = Tree(packages=PACKAGES).kept_in(folder / "node", told)
    once(folder, build.recipe(), lambda: _build(folder, tree, told), wait_s=3 * build.BUILD_S)
    image = interpreter.kept_in(folder / "image", told)
    return Stack(tree=tree, programs=folder / "bin", image=image)


def _build(folder: Path, tree: Path, say: Say) -> Mapping[str, object]:
    source, apt = folder / "source", folder / "apt"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    Apt(folder=apt).source(SOURCE, source)
    (archive,) = source.glob("kubernetes_*.orig.tar.gz")
    say(f"the source of Kubernetes, {archive.stat().st_size / 1e6:.0f} MB")
    build.programs(tree, archive, folder / "bin", say)
    for used in (source, apt):
        shutil.rmtree(used)
    return {}


def main() -> int:
    return telling.main(
        lambda say: f"Kubernetes {VERSION} is in {install(say).programs}",
        absent="No real node here",
    )


if __name__ == "__main__":
    sys.exit(main())
