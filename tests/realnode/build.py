"""Kubernetes 1.20.2 built from Debian's source package with Debian's Go, in an enclosure without any network."""

import hashlib
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

from tests.runtimes.enclosure import Enclosure, enclosed
from tests.runtimes.lacking import LackingError

VERSION = "v1.20.2"
NAMES = ("kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl")
REPLACED = ("modern-go/reflect2", "json-iterator/go")
"""Libraries that come with the source and are too old for this Go: with them the API server reads wild memory at the
first object that has more than eight annotations. Debian has newer ones."""
WORK = "/build"
SCRIPT = Path(__file__).with_name("build.sh")
BUILD_S = 1500


def recipe() -> str:
    """Return a mark of everything that decides what is built."""
    parts = (SCRIPT.read_bytes(), Path(__file__).read_bytes())
    return hashlib.sha256(b"".join(parts)).hexdigest()


def programs(tree: Path, archive: Path, target: Path, say: Callable[[str], None]) -> None:
    """Build all programs into ``target``. ``LackingError`` with the compiler's last words when that fails."""
    work = archive.parent
    source = work / "go" / "src" / "k8s.io" / "kubernetes"
    source.mkdir(parents=True)
    _unpack(archive, source)
    say("source unpacked")
    with enclosed(tree, machine={work: WORK}) as enclosure:
        _run(enclosure, "describe")
        say("the description of the API is generated")
        _run(enclosure, "build")
        say(f"{', '.join(NAMES)} built")
    shutil.rmtree(target, ignore_errors=True)
    (work / "bin").rename(target)


def _unpack(archive: Path, source: Path) -> None:
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        for member in members:
            member.name = member.name.partition("/")[2] or "."
        tar.extractall(source, members=members, filter="tar")


def _run(enclosure: Enclosure, part: str) -> None:
    arguments = (part, WORK, VERSION, ",".join(REPLACED), ",".join(NAMES))
    enclosure.write("/build.sh", SCRIPT.read_bytes())
    done = enclosure.run("sh", "/build.sh", *arguments, deadline_s=BUILD_S)
    if done.returncode:
        raise LackingError(f"Kubernetes could not be built ({part}): {(done.stderr or done.stdout)[-800:]}")
