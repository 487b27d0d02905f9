"""What a real node consists of, from Debian's packages: a small root file system, and Kubernetes built from its source.

Nothing is installed on the machine, as in ``tests.runtimes.install``, whose ways these are. Both parts are kept in the
user's cache and made again only when their recipe changes.
"""

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.realnode import build
from tests.runtimes import install as runtimes
from tests.runtimes import lacking
from tests.runtimes.lacking import LackingError, tool

PACKAGES = (
    *("etcd-server", "runc", "containernetworking-plugins"),
    *("busybox-static", "dash", "coreutils", "findutils", "grep", "sed"),
    *("iproute2", "mount", "util-linux", "openssl"),
    *("golang-go", "golang-github-modern-go-reflect2-dev", "golang-github-json-iterator-go-dev"),
)
LATER_PACKAGES = ("containerd",)  # trixie's knows CDI; bookworm's does not. It runs with bookworm's libraries
SOURCE = "kubernetes=1.20.5+really1.20.2-1.1+deb12u1"
VERSION = build.VERSION
SHORT_S, LONG_S = 60, 300
TREE_DONE, DONE = "tree.json", "complete.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """``tree`` is a root file system with every program but Kubernetes' own, which are in ``programs``."""

    tree: Path
    programs: Path
    image: Path


def cache() -> Path:
    """Return the folder of all that is downloaded and built; ``CLUSTER_CACHE`` overrides it."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("CLUSTER_CACHE") or home / "hami-plugin" / "cluster")


def install(say: Callable[[str], None] = lambda _: None) -> Stack:
    """Return the node's programs, made now if they are not there yet. ``LackingError`` where that cannot be."""
    lacking.check()
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    with runtimes._alone(folder):
        work = _Installation(folder=folder, say=say, start=time.monotonic())
        if not is_done(folder / TREE_DONE, tree_recipe()):
            work.make_tree()
        if not is_done(folder / DONE, build.recipe()):
            work.make_programs()
    return Stack(tree=folder / "root", programs=folder / "bin", image=Path("/tmp/imgtree/root"))


def tree_recipe() -> str:
    return hashlib.sha256(" ".join((*PACKAGES, *LATER_PACKAGES)).encode()).hexdigest()


def is_done(mark: Path, recipe: str) -> bool:
    return mark.exists() and json.loads(mark.read_text())["recipe"] == recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class _Installation:
    folder: Path
    say: Callable[[str], None]
    start: float

    def make_tree(self) -> None:
        self._configure()
        archives = self.folder / "apt" / "cache" / "archives"
        self._apt("autoclean", "--quiet")
        self._apt("install", "--quiet", "--yes", "--no-install-recommends", "--download-only", *PACKAGES)
        self._apt("download", "--quiet", *(f"{name}/{runtimes.LATER}" for name in LATER_PACKAGES), cwd=archives)
        debs = sorted(archives.glob("*.deb"))
        self._tell(f"{len(debs)} packages, {sum(deb.stat().st_size for deb in debs) / 1e6:.0f} MB downloaded")
        self._unpack(debs)
        (self.folder / TREE_DONE).write_text(json.dumps({"recipe": tree_recipe()}))
        shutil.rmtree(self.folder / "apt")
        self._tell("packages unpacked")

    def make_programs(self) -> None:
        source = self.folder / "source"
        (self.folder / DONE).unlink(missing_ok=True)
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        self._configure()
        self._apt("source", "--quiet", "--download-only", SOURCE, cwd=source)
        (archive,) = source.glob("kubernetes_*.orig.tar.gz")
        self._tell(f"the source of Kubernetes, {archive.stat().st_size / 1e6:.0f} MB")
        build.programs(self.folder / "root", archive, self.folder / "bin", self._tell)
        (self.folder / DONE).write_text(json.dumps({"recipe": build.recipe()}))
        for used in ("source", "apt"):
            shutil.rmtree(self.folder / used, ignore_errors=True)

    def _tell(self, what: str) -> None:
        self.say(f"{time.monotonic() - self.start:6.1f} s  {what}")

    def _configure(self) -> None:
        apt = self.folder / "apt"
        for part in ("lists/partial", "cache/archives/partial"):
            (apt / part).mkdir(parents=True, exist_ok=True)
        (apt / "status").write_text("")  # nothing is installed: so apt names every dependency
        (apt / "sources.list").touch(mode=0o600)
        (apt / "sources.list").write_text(sources(runtimes.mirror()))
        (apt / "apt.conf").write_text(runtimes.configuration(apt))
        self._apt("update", "--quiet", "--error-on=any")
        self._tell("package lists read")

    def _apt(self, *arguments: str, cwd: Path | None = None) -> str:
        configuration = f"--config-file={self.folder / 'apt' / 'apt.conf'}"
        return runtimes.output([tool("apt-get"), configuration, *arguments], deadline_s=LONG_S, cwd=cwd)

    def _unpack(self, debs: Sequence[Path]) -> None:
        partial, root = self.folder / "root.partial", self.folder / "root"
        for old in (partial, root):
            shutil.rmtree(old, ignore_errors=True)
        partial.mkdir(mode=0o755)
        for deb in debs:
            runtimes.output([tool("dpkg-deb"), "--extract", str(deb), str(partial)], deadline_s=SHORT_S)
        partial.rename(root)


def sources(mirror: str) -> str:
    """Return apt's sources: the packages of both suites, and the base's source packages."""
    packages = runtimes.sources(mirror)
    return packages + packages.splitlines()[0].replace("deb ", "deb-src ", 1) + "\n"


def main() -> int:
    try:
        stack = install(runtimes._print)
    except LackingError as error:
        runtimes._print(f"No real node here: {error}")
        return 1 if os.environ.get("REQUIRE_CLUSTER") else 0
    runtimes._print(f"Kubernetes {VERSION} is in {stack.programs}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
