"""Programs built from pinned Go modules: Kubernetes of any version since 1.34, containerd 2, and runc.

Each product has a folder with a ``go.mod`` of its own, whose ``go.sum`` says what its sources are, byte by byte.
``python -m tests.realnode.pin`` writes both files.
"""

import hashlib
import json
import os
import re
import resource
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tools.debian.commands import LackingError, output, tool
from tools.debian.keeping import MARK, alone, once
from tools.debian.telling import Say

FOLDER = Path(__file__).with_name("modules")
GO_PLACES = ("/usr/local/go/bin", "/usr/lib/go/bin", "/usr/lib/go-1.26/bin")
CACHES = {"GOCACHE": "cache", "GOMODCACHE": "mod", "GOPATH": "path"}
GO_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-p=2 -trimpath -buildvcs=false -modcacherw",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
)
REMEDY = "set GOPROXY to a Go module proxy that this machine reaches"
SHORT_S, DOWNLOAD_S, BUILD_S = 60, 600, 3600
WAIT_S = 2 * BUILD_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Programs of one Go module. ``commands`` are built in their order: the one that takes longest comes last.

    ``stamps`` are variables of the programs and their values, where ``{version}``, ``{major}`` and ``{minor}`` stand
    for the pinned version's. One with a ``library`` in C needs a C compiler, too, and becomes static all the same.
    """

    name: str
    path: str
    commands: tuple[str, ...]
    below: str = "/cmd/"
    """Where the programs are in the module; a module that is a program has it nowhere."""
    stamps: Mapping[str, str]
    tags: tuple[str, ...] = ()
    library: str = ""

    def package(self, command: str) -> str:
        return f"{self.path}{self.below}{command}" if self.below else self.path

    def pinned(self, minor: str) -> "Pinned":
        return Pinned(product=self, folder=FOLDER / self.name / minor)

    def minors(self) -> list[str]:
        """The pinned ones, the oldest first."""
        found = [path.parent.name for path in (FOLDER / self.name).glob("*/go.mod")]
        return sorted(found, key=lambda minor: [int(number) for number in minor.split(".")])


KUBERNETES = Product(
    name="kubernetes",
    path="k8s.io/kubernetes",
    commands=("kube-scheduler", "kube-apiserver", "kube-controller-manager", "kubectl", "kubelet"),
    stamps={
        "k8s.io/component-base/version.gitVersion": "{version}",
        "k8s.io/component-base/version.gitMajor": "{major}",
        "k8s.io/component-base/version.gitMinor": "{minor}",
    },
)
CONTAINERD = Product(
    name="containerd",
    path="github.com/containerd/containerd/v2",
    commands=("containerd", "containerd-shim-runc-v2", "ctr"),
    stamps={"github.com/containerd/containerd/v2/version.Version": "{version}"},
    tags=("no_btrfs", "no_zfs", "no_devmapper"),
)
RUNC = Product(
    name="runc",
    path="github.com/opencontainers/runc",
    commands=("runc",),
    below="",
    stamps={"main.version": "{major}.{minor}.{patch}"},
    tags=("netgo", "osusergo", "seccomp"),
    library="seccomp",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """A product at the version that the ``go.mod`` in ``folder`` names."""

    product: Product
    folder: Path

    @property
    def version(self) -> str:
        """As in ``v1.37.2``."""
        found = re.search(rf"^(?:require |\t){re.escape(self.product.path)} (v\S+)", self._text("go.mod"), re.MULTILINE)
        assert found, f"{self.folder}/go.mod does not require {self.product.path}"
        return found[1]

    @property
    def go(self) -> str:
        """The oldest Go that builds it, as in ``1.26.0``."""
        found = re.search(r"^go (\S+)$", self._text("go.mod"), re.MULTILINE)
        assert found, f"{self.folder}/go.mod names no Go"
        return found[1]

    def _text(self, file: str) -> str:
        return (self.folder / file).read_text(encoding="utf-8")

    def packages(self) -> Mapping[str, str]:
        """The package of each program."""
        return {name: self.product.package(name) for name in self.product.commands}

    def recipe(self) -> str:
        """Return a mark of everything that decides what is built."""
        how = (*self.packages().values(), *self._how(), *GO_SETTINGS.values())
        return hashlib.sha256("\0".join((self._text("go.mod"), self._text("go.sum"), *how)).encode()).hexdigest()

    def kept_in(self, cache: Path, say: Say, tree: Path = Path("/")) -> Path:
        """Return the folder with the programs, built now where they are not there yet. ``LackingError`` if it fails.

        The ``tree`` is a root file system with the product's ``library``, if it has one, in Debian's places.
        A build that broke off is continued: Go's own cache lies in ``cache/go`` until ``clear`` is called.
        """
        folder = cache / f"{self.product.name}-{self.version}"
        once(folder, self.recipe(), lambda: self._build(folder, cache / "go", say, tree), wait_s=WAIT_S)
        return folder / "bin"

    def took(self, cache: Path) -> str:
        """What building it has taken, when it was built."""
        facts = json.loads((cache / f"{self.product.name}-{self.version}" / MARK).read_text())
        return f"{facts['seconds']} s, {facts['cpu_seconds']} s of CPU"

    def _build(self, folder: Path, work: Path, say: Say, tree: Path) -> Mapping[str, object]:
        work.mkdir(parents=True, exist_ok=True)
        what = f"{self.product.name} {self.version}"
        with alone(work, WAIT_S):
            go = Go.found(self.go, what, work=work)
            start, cpu = time.monotonic(), _cpu_s()
            go.run("list", "-deps", *self.packages().values(), cwd=self.folder, deadline_s=DOWNLOAD_S, remedy=REMEDY)
            say(f"the sources of {what}")
            partial, target = folder / "partial", folder / "bin"
            shutil.rmtree(partial, ignore_errors=True)
            for name, package in self.packages().items():
                wanted = ("build", *self._how(), "-o", str(partial / name), package)
                go.run(*wanted, cwd=self.folder, deadline_s=BUILD_S, settings=self._c(tree))
                say(f"{name} {self.version}")
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
            return {"seconds": round(time.monotonic() - start), "cpu_seconds": round(_cpu_s() - cpu)}

    def _how(self) -> list[str]:
        major, minor, patch = self.version.removeprefix("v").split(".")
        values = {"version": self.version, "major": major, "minor": minor, "patch": patch}
        stamps = [f"-X {variable}={value.format_map(values)}" for variable, value in self.product.stamps.items()]
        static = ("-linkmode external -extldflags -static",) if self.product.library else ()
        return ["-tags", ",".join(self.product.tags), "-ldflags", " ".join(("-s -w", *stamps, *static))]

    def _c(self, tree: Path) -> Mapping[str, str]:
        """How what is in C is compiled: by paths, as the machine need not have the library, nor pkg-config."""
        if not (library := self.product.library):
            return {}
        folders = " ".join(f"-L{found.parent}" for found in tree.glob(f"usr/lib/*/lib{library}.a"))
        return {
            "CGO_ENABLED": "1",
            "PKG_CONFIG": "true",
            "CGO_CFLAGS": f"-I{tree}/usr/include",
            "CGO_LDFLAGS": f"{folders} -l{library}",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """The machine's Go, and the module proxy that it is set up with. Its caches are the user's, or in ``work``."""

    program: str
    work: Path | None = None

    @classmethod
    def found(cls, oldest: str, what: str, *, work: Path | None = None) -> "Go":
        """Return the machine's Go. ``LackingError`` where there is none, or an older one than ``oldest``."""
        places = os.pathsep.join((os.environ.get("PATH", ""), *GO_PLACES))
        program = shutil.which("go", path=places)
        needs = f"{what} is built from Go modules, which needs Go {oldest} or newer"
        if program is None:
            raise LackingError(f"{needs}; this machine has none (try: install it into /usr/local/go)")
        go = cls(program=program, work=work)
        said = go.run("env", "GOVERSION", cwd=FOLDER, deadline_s=SHORT_S).strip()
        if _numbers(said) < _numbers(oldest):
            raise LackingError(f"{needs}; {program} is {said} (try: install a newer one into /usr/local/go)")
        return go

    def run(
        self,
        *arguments: str,
        cwd: Path,
        deadline_s: float,
        remedy: str = "",
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        caches = {name: self.work / folder for name, folder in CACHES.items()} if self.work else {}
        given = [f"{name}={value}" for name, value in {**GO_SETTINGS, **caches, **settings}.items()]
        command = [tool("env"), *given, self.program, *arguments]
        return output(command, deadline_s=deadline_s, cwd=cwd, remedy=remedy)


def clear(cache: Path) -> None:
    """Remove what Go has kept while it was building, some gigabytes. Another build clears it when it has ended."""
    work = cache / "go"
    if work.exists():
        with suppress(LackingError), alone(work, 0):
            for name in CACHES.values():
                shutil.rmtree(work / name, ignore_errors=True)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _cpu_s() -> float:
    """Seconds of CPU that this process's children have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
