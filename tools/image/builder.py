"""Who builds the Dockerfile: buildah or podman where one is installed, else Debian's buildah, without installing it."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tools.debian.apt import Packages
from tools.debian.commands import LackingError, output
from tools.debian.telling import Say
from tools.debian.tree import Tree

TOOLS: Final = ("buildah", "podman")
DEBIANS: Final = "debian"
"""Stands for Debian's buildah among the names of tools."""
BUILDAH: Final = Packages(
    alone=("buildah", "libassuan0", "libdevmapper1.02.1", "libgpg-error0", "libgpgme11", "libseccomp2")
)
"""buildah, and the libraries of it that a small Debian lacks. It runs no program, since the Dockerfile has no RUN."""
POLICY: Final = {"default": [{"type": "insecureAcceptAnything"}]}
"""The policy of signatures, as containers' tools are installed with."""
DEADLINE_S: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """A tool that builds Dockerfiles: ``command`` with its general options, and the ``options`` of build and push."""

    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return Path(self.command[0]).name

    def build(
        self,
        context: Path,
        dockerfile: Path,
        name: str,
        archive: Path,
        *,
        labels: Mapping[str, str],
        arguments: Mapping[str, str],
    ) -> None:
        """Build an image and write it to an archive. ``LackingError`` has the tool's last words.

        All files are of one time, so that a layer whose files are the same is the same. docker has no such option.
        """
        args = [part for one in arguments.items() for part in ("--build-arg", "=".join(one))]
        tags = [part for one in labels.items() for part in ("--label", "=".join(one))]
        same = ("--layers", "--timestamp", "0", "--identity-label=false", *self.options)
        self._run(
            *("build", *(() if self.name == "docker" else same), *args, *tags),
            *("--file", str(dockerfile), "--tag", name, str(context)),
        )
        archive.unlink(missing_ok=True)
        if self.name == "docker":
            self._run("save", "--output", str(archive), name)
        else:
            self._run("push", "--quiet", *self.options, name, f"oci-archive:{archive}:{name}")

    def _run(self, *arguments: str) -> None:
        environment = {**os.environ, **self.environment}
        output([*self.command, *arguments], deadline_s=DEADLINE_S, environment=environment)


@contextmanager
def builder(folder: Path, say: Say, *, wanted: str = "") -> Iterator[Builder]:
    """Give the tool of the name that is ``wanted``, or the first of ``TOOLS`` that is installed, or Debian's buildah.

    This one comes out of a folder, and its storage goes afterwards: what it built is in the archive only.
    """
    if wanted != DEBIANS:
        found = next((path for name in ((wanted,) if wanted else TOOLS) if (path := shutil.which(name))), None)
        if found:
            yield Builder(command=(found,))
            return
        if wanted:
            raise LackingError(f"{wanted} is not installed (try: apt-get install {wanted})")
    if os.geteuid():
        raise LackingError(
            "neither buildah nor podman is installed, and only root can run Debian's buildah without installing it "
            "(try: apt-get install buildah; or, with docker's daemon up: make image BUILDER=docker)"
        )
    tree = Tree(packages=BUILDAH).kept_in(folder, say)
    libraries = {str(path.parent) for path in tree.glob("*/**/*.so.*")}
    with TemporaryDirectory(prefix="buildah-") as scratch:
        policy = Path(scratch) / "policy.json"
        policy.write_text(json.dumps(POLICY))
        yield Builder(
            command=(
                *(str(tree / "usr/bin/buildah"), "--storage-driver", "vfs"),  # which leaves nothing mounted
                *("--root", f"{scratch}/root", "--runroot", f"{scratch}/run"),
            ),
            options=("--signature-policy", str(policy)),
            environment={"LD_LIBRARY_PATH": ":".join(sorted(libraries)), "TMPDIR": scratch},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """An image in an archive: its digest, and each layer's size in bytes as it is sent."""

    digest: str
    layers: tuple[int, ...]


def packed(archive: Path) -> Packed | None:
    """Read an OCI archive; ``None`` if it is docker's, which has no digest before it is pushed."""
    with tarfile.open(archive) as opened:

        def read(name: str) -> bytes:
            member = opened.extractfile(name)
            assert member is not None
            return member.read()

        try:
            (entry,) = json.loads(read("index.json"))["manifests"]
        except KeyError:
            return None
        manifest = json.loads(read(f"blobs/{entry['digest'].replace(':', '/')}"))
        return Packed(digest=entry["digest"], layers=tuple(layer["size"] for layer in manifest["layers"]))
