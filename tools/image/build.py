"""From Debian's packages, the locks and the sources to the image: what is made, in which order, and when it is kept."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlsplit

from hami_plugin import __version__
from tools.debian.commands import UMASK
from tools.debian.keeping import MARK, once
from tools.debian.telling import Say
from tools.image import application, debian, sbom
from tools.image.application import HOME, ROOT, SITE
from tools.image.builder import builder, packed
from tools.image.python import PLACE

DOCKERFILE: Final = ROOT / "Dockerfile"
OUTPUT: Final = ROOT / "build/image"
BILL: Final = f"{HOME}/sbom.cdx.json"
SOURCES: Final = ("cdi", "hami_plugin", "vendors", "pyproject.toml", "README.md", "LICENSE", "requirements.lock")
OWN: Final = ("Dockerfile", "tools/debian", "tools/image")
GIT_S: Final = 20
WAIT_S: Final = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Which image: its ``name``, and a ``base`` that a registry has, if it is not to be Debian's packages.

    ``python`` is where Python 3.11 lies in the base.
    """

    name: str
    base: str | None = None
    python: str = f"/{PLACE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that was made: its files here, its digest, and its layers' sizes as they are sent."""

    name: str
    archive: Path
    bill: Path
    digest: str
    layers: tuple[int, ...]


def cache() -> Path:
    """Return the folder of all that is downloaded; ``IMAGE_CACHE`` overrides it."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("IMAGE_CACHE") or home / "hami-plugin" / "image")


def made(kind: Kind, target: Path, cached: Path, say: Say, *, tool: str = "", anew: bool = False) -> Image:
    """Return the image, made now if it is not in the folder ``target``, or its sources have changed.

    ``tool`` names the builder; one that is installed also has the image in its storage. ``anew`` asks for today's
    packages. ``LackingError`` says why it cannot be made.
    """
    archive, bill = (target / f"hami-plugin-{__version__}.{end}" for end in ("oci.tar", "cdx.json"))
    with _readable():
        base = debian.kept_in(cached / "base", say, anew=anew)
        requirements = application.requirements_in(cached / "requirements", base, say)
        epoch, labels = _labels(kind)

        def make() -> Mapping[str, object]:
            with TemporaryDirectory(prefix="image-") as folder:
                context = Path(folder)
                _fill(context, kind, base, requirements, epoch)
                shutil.copyfile(context / "project" / BILL, bill)
                say("the project is compiled")
                with builder(cached / "buildah", say, wanted=tool) as chosen:
                    named = kind.name if "/" in kind.name else f"docker.io/library/{kind.name}"
                    of = {"BASE": kind.base} if kind.base else {}
                    chosen.build(context, DOCKERFILE, named, archive, labels=labels, arguments=of)
            found = packed(archive)
            return {"digest": found.digest if found else "", "layers": found.layers if found else []}

        marks = [(cached / part / MARK).read_text() for part in ("base", "requirements")]
        recipe = json.dumps([asdict(kind), labels, tool, archive.name, *marks, _fingerprint()])
        once(target, hashlib.sha256(recipe.encode()).hexdigest(), make, wait_s=WAIT_S)
    facts = json.loads((target / MARK).read_text())
    return Image(name=kind.name, archive=archive, bill=bill, digest=facts["digest"], layers=tuple(facts["layers"]))


def _fill(context: Path, kind: Kind, base: Path, requirements: Path, epoch: int) -> None:
    """Lay out what the Dockerfile copies, a folder for each layer."""
    folders = {name: context / name for name in ("base", "requirements", "project")}
    if kind.base:
        folders["base"].mkdir()
    else:
        shutil.copytree(base, folders["base"], symlinks=True, copy_function=_same)
    application.environment(folders["base"], kind.python)
    shutil.copytree(requirements, folders["requirements"], symlinks=True, copy_function=_same)
    application.project(folders["project"], base, requirements, epoch)
    found = [
        *(() if kind.base else sbom.of_debian(base)),
        *sbom.of_python(requirements / SITE),
        *sbom.of_python(folders["project"] / SITE),
    ]
    (folders["project"] / BILL).write_text(sbom.document("hami-plugin", __version__, found, epoch))


def _same(source: str, target: str) -> None:
    """Give a file another name, or copy it where the file systems differ."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _labels(kind: Kind) -> tuple[int, Mapping[str, str]]:
    """Return the time of the sources, and the image's labels."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct") or 0)
    changed = "-changed" if _git("status", "--porcelain", "--", *SOURCES, *OWN) else ""
    revision, origin = _git("rev-parse", "HEAD"), urlsplit(_git("remote", "get-url", "origin"))
    source = f"https://{origin.hostname}{origin.path}" if origin.scheme in ("http", "https") else ""
    labels = {
        "title": "hami-plugin",
        "description": "Shares accelerators of every vendor between containers on Kubernetes",
        "version": __version__,
        "licenses": "Apache-2.0",
        "created": datetime.fromtimestamp(epoch, UTC).isoformat(),
        "revision": f"{revision}{changed}" if revision else "",
        "source": os.environ.get("SOURCE") or source,
        "base.name": kind.base or "",
    }
    return epoch, {f"org.opencontainers.image.{name}": text for name, text in labels.items() if text}


def _git(*arguments: str) -> str:
    """Return what git says of this checkout; nothing where there is no git, or no checkout."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=GIT_S, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for file in _files():
        digest.update(f"{file.relative_to(ROOT)} {file.stat().st_mode:o} {file.stat().st_size}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _files() -> Iterator[Path]:
    for place in (*SOURCES, *OWN):
        if (ROOT / place).is_file():
            yield ROOT / place
        for file in sorted((ROOT / place).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file


@contextmanager
def _readable() -> Iterator[None]:
    """Have what is written be for everybody to read, whatever the caller keeps for itself."""
    before = os.umask(UMASK)
    try:
        yield
    finally:
        os.umask(before)
