"""Container images made by hand: a static busybox, in OCI archives that podman and containerd both load."""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tools.debian.commands import tool

PLAIN, GREEDY = "localhost/inside:1", "localhost/greedy:1"
VARIABLES = {PLAIN: ("PATH=/bin",), GREEDY: ("PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all")}
"""The images, and the environment of each. Many images for NVIDIA's cards ask for all of them, as the second does."""
COMMAND = ("/bin/busybox", "sleep", "2147483647")  # what the pod's sandbox does
_FOLDERS = ("bin", "dev", "etc", "mnt", "proc", "root", "run", "sys", "tmp", "usr", "var")
_FILES = {"etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n", "etc/group": b"root:x:0:\n"}
_OCI = "application/vnd.oci.image"


def archive(busybox: Path, name: str = PLAIN) -> bytes:
    """Return one of the images: ``busybox`` with a link for each of its commands."""
    settings = {"Env": VARIABLES[name], "Cmd": list(COMMAND), "WorkingDir": "/"}
    return packed(name, busybox_layer(busybox), settings)


def packed(name: str, layer: bytes, settings: Mapping[str, object]) -> bytes:
    """Return an image of one layer, a tar, with these settings for its containers."""
    blobs: dict[str, bytes] = {}

    def blob(kind: str, content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"{_OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    only = blob("layer.v1.tar", layer)
    platform = {"architecture": _architecture(), "os": "linux"}
    history = [{"created_by": "tests"}]  # buildah counts the layers of a base by it
    config = {
        **platform,
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [only["digest"]]},
        "history": history,
    }
    manifest = {"schemaVersion": 2, "config": blob("config.v1+json", _json(config)), "layers": [only]}
    entry = {
        **blob("manifest.v1+json", _json(manifest)),
        "platform": platform,
        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name},
    }
    return tar(
        {
            "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
            "index.json": _json({"schemaVersion": 2, "manifests": [entry]}),
            **blobs,
        }
    )


def busybox_layer(busybox: Path, more: Mapping[str, bytes] = MappingProxyType({})) -> bytes:
    """Return a layer with busybox, its links, and ``more`` files by their paths."""
    listing = subprocess.run([busybox, "--list"], capture_output=True, text=True, timeout=20, check=True)
    links = {f"bin/{name}": "busybox" for name in listing.stdout.split() if name != "busybox"}
    return tar({**_FILES, "bin/busybox": busybox.read_bytes(), **more}, folders=_FOLDERS, links=links, mode=0o755)


def tar(files: dict[str, bytes], *, folders=(), links: dict[str, str] | None = None, mode: int = 0o644) -> bytes:
    """Return a tar of files by their paths, folders, and links with what they point to."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for folder in folders:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            made.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            made.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            made.addfile(entry)
    return out.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _architecture() -> str:
    """Return the machine's, in Debian's words, which are OCI's for those that matter: amd64, arm64."""
    said = subprocess.run(
        [tool("dpkg"), "--print-architecture"], capture_output=True, text=True, timeout=20, check=True
    )
    return said.stdout.strip()
