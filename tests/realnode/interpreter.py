"""The ground of the daemon's image: Debian's Python, and what requirements.lock names, as the Dockerfile installs it.

The project's own wheel is not in it.
"""

import importlib.util
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.debian.apt import Packages
from tests.debian.commands import LackingError, output, tool
from tests.debian.telling import Say
from tests.debian.tree import Tree

PACKAGES = Packages(base=("python3", "libstdc++6", "libgcc-s1", "zlib1g"))  # the last three: for compiled wheels
VERSION = "3.11"
LOCK = Path(__file__).parents[2] / "requirements.lock"
HOME = "/opt/hami-plugin"
WORK = "/install"
IMPORTS = ("ctypes", "sqlite3", "ssl", "aiohttp", "grpc", "kubernetes.aio", "prometheus_client", "pydantic", "yaml")
UNUSED = (
    *("usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian", "usr/share/gcc"),
    *("usr/share/gdb", "usr/share/perl5", "usr/lib/python3*/test"),
)
FOLDERS = ("dev", "proc", "root", "run", "sys")
SHORT_S, LONG_S = 60, 300


def kept_in(folder: Path, say: Say) -> Path:
    """Return a root file system whose ``HOME`` is a virtual environment, made now if it is not there yet.

    ``LackingError`` says why that cannot be, and what to do.
    """
    tree = Tree(
        packages=PACKAGES,
        finish=lambda root: _finish(root, say),
        decided_by=(LOCK.read_text(), Path(__file__).read_text()),
    )
    return tree.kept_in(folder, say)


def _finish(root: Path, say: Say) -> Mapping[str, object]:
    for name in FOLDERS:
        (root / name).mkdir()
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    _install(root)
    for pattern in UNUSED:
        for unused in list(root.glob(pattern)):
            shutil.rmtree(unused)
    _python(root, f"{HOME}/bin/python", "-c", f"import {', '.join(IMPORTS)}")
    said = _python(root, f"{HOME}/bin/python", "--version").strip()
    say(f"{said} with what {LOCK.name} names")
    return {"python": said}


def _install(root: Path) -> None:
    """Fetch the wheels from here, and install them there."""
    with TemporaryDirectory(prefix="wheels-") as folder:
        output(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
                *("--only-binary", ":all:", "--python-version", VERSION),
                *("--requirement", str(LOCK), "--dest", folder),
            ],
            deadline_s=LONG_S,
            remedy="set PIP_INDEX_URL to a Python package index that this machine reaches",
        )
        _python(root, "/usr/bin/python3", "-m", "venv", "--without-pip", HOME)
        add(root, [*Path(folder).iterdir(), LOCK], "--requirement", f"{WORK}/{LOCK.name}")


def add(root: Path, files: Iterable[Path], *what: str) -> None:
    """Have pip install ``what`` from wheels among these ``files``, without any network and by the tree's own Python:
    so all paths are the tree's own. The files lie in ``WORK`` meanwhile.
    """
    found = importlib.util.find_spec("pip")
    if found is None or found.origin is None:
        raise LackingError(f"{sys.executable} has no pip (try: {sys.executable} -m ensurepip)")
    work = root / WORK[1:]
    shutil.copytree(Path(found.origin).parent, work / "pip", ignore=shutil.ignore_patterns("__pycache__"))
    for file in files:
        shutil.copy(file, work)
    _python(
        root,
        f"{HOME}/bin/python",
        *(f"{WORK}/pip", "--isolated", "install", "--quiet", "--no-index", "--find-links", WORK),
        *("--no-cache-dir", "--only-binary", ":all:", *what),
    )
    shutil.rmtree(work)


def _python(root: Path, interpreter: str, *arguments: str) -> str:
    """Run Python in the tree, with nothing of this machine's settings, and return what it printed."""
    return output([tool("chroot"), str(root), interpreter, "-I", "-B", *arguments], deadline_s=LONG_S)
