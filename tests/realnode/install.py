"""What a real node consists of: root file systems of Debian's packages, Kubernetes and a container runtime.

Nothing is installed on the machine. Each part is kept in the user's cache and made again only when its recipe changes.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.realnode import build, modules, versions
from tests.realnode.versions import Kubernetes
from tests.runtimes import lacking, project_image
from tests.support.required import required
from tools.debian import telling
from tools.debian.apt import Apt, Packages
from tools.debian.keeping import once
from tools.debian.telling import Say
from tools.debian.tree import Tree

EVERY_NODE = (
    *("runc", "containernetworking-plugins"),
    *("busybox-static", "dash", "coreutils", "findutils", "grep", "sed"),
    *("iproute2", "mount", "util-linux", "openssl"),
)
PACKAGES = Packages(
    base=(
        *("etcd-server", *EVERY_NODE),
        *("golang-go", "golang-github-modern-go-reflect2-dev", "golang-github-json-iterator-go-dev"),
    ),
    later=("containerd",),  # bookworm's does not know CDI; trixie's runs with bookworm's libraries
)
"""What Kubernetes 1.20 runs on, and is built with. Its kubelet speaks to containerd 1 only."""
NEWER_PACKAGES = Packages(
    base=EVERY_NODE,
    later=("etcd-server",),  # bookworm's 3.4 is too old; trixie's runs with bookworm's libraries
)
LIBRARIES = Packages(base=("libseccomp-dev",))
"""What programs of modules are linked with."""
CONTAINERD, RUNC = modules.CONTAINERD.pinned("2.2"), modules.RUNC.pinned("1.4")
SOURCE = "kubernetes=1.20.5+really1.20.2-1.1+deb12u1"
PROGRAMS, RUNTIME, STARTER = "/programs", "/usr/local/bin", "/usr/local/sbin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """``tree`` is a root file system with what the ``kubernetes`` stands on, and ``programs`` its own programs.

    ``machine`` are folders that a node sees, and where. ``image`` is the archive that make image makes.
    """

    kubernetes: Kubernetes
    tree: Path
    programs: Path
    machine: Mapping[Path, str]
    image: Path


def cache() -> Path:
    """Return the folder of all that is downloaded and built; ``CLUSTER_CACHE`` overrides it."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("CLUSTER_CACHE") or home / "hami-plugin" / "cluster")


def install(say: Say = telling.silence) -> Stack:
    """Return what a node needs, made now where it is not there yet. ``LackingError`` where that cannot be."""
    kubernetes = versions.chosen()
    tree, machine = servers_of(kubernetes, say)
    image = project_image.archive(telling.timed(say))
    (programs,) = (path for path, seen in machine.items() if seen == PROGRAMS)
    return Stack(kubernetes=kubernetes, tree=tree, programs=programs, machine=machine, image=image)


def servers_of(kubernetes: Kubernetes, say: Say = telling.silence) -> tuple[Path, Mapping[Path, str]]:
    """Return a root file system for its servers, and the folders of the machine that they see, and where."""
    lacking.check()
    make = _of_debian if kubernetes.is_debians else _of_modules
    return make(cache(), kubernetes, telling.timed(say))


def _of_debian(folder: Path, _: Kubernetes, say: Say) -> tuple[Path, Mapping[Path, str]]:
    tree = Tree(packages=PACKAGES).kept_in(folder / "node", say)
    once(folder, build.recipe(), lambda: _build(folder, tree, say), wait_s=3 * build.BUILD_S)
    return tree, {folder / "bin": PROGRAMS}


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


def _of_modules(folder: Path, kubernetes: Kubernetes, say: Say) -> tuple[Path, Mapping[Path, str]]:
    tree = Tree(packages=NEWER_PACKAGES).kept_in(folder / "newer-node", say)
    machine = {}
    libraries = Tree(packages=LIBRARIES).kept_in(folder / "libraries", say)
    servers = modules.KUBERNETES.pinned(f"1.{kubernetes.minor}")
    for pinned, seen in ((CONTAINERD, RUNTIME), (RUNC, STARTER), (servers, PROGRAMS)):
        machine[pinned.kept_in(folder, say, libraries)] = seen
        say(f"{pinned.product.name} {pinned.version}: building it took {pinned.took(folder)}")
    modules.clear(folder)
    return tree, machine


def main() -> int:
    def made(say: Say) -> str:
        stack = install(say)
        return f"Kubernetes {stack.kubernetes.version} is in {stack.programs}"

    return telling.main(made, absent="No real node here", required=required())


if __name__ == "__main__":
    sys.exit(main())
