"""The images that ``daemonset.yaml`` names, made here: the daemon in the machine's Python, and HAMi-core's files."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from hami_plugin.host.compiling import _caches
from tests.runtimes import image

ROOT = Path(__file__).parents[2]
DAEMON, CORE = "docker.io/library/hami-plugin:0.1.0", "docker.io/projecthami/hami:v2.10.0"
LIBRARY = b"stands for HAMi-core's library"
FOLDERS = ("dev", "etc", "proc", "run", "sys", "tmp", "usr", "var")
LINKS: Mapping[str, str] = MappingProxyType({name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")})


def directories() -> tuple[Path, ...]:
    """What of the machine the daemon's image stands on: Python, its packages, the source, and compiled stand-ins."""
    python = {Path(top) / part for top in ("/usr", sys.base_prefix) for part in ("bin", "lib", "lib64")}
    wanted = {p for p in python if p.is_dir()} | {Path(sys.prefix).resolve(), ROOT, libraries()}
    return tuple(sorted(p for p in wanted if not any(o != p and p.is_relative_to(o) for o in wanted)))


def libraries() -> Path:
    """The user's cache of compiled stand-ins for vendors' libraries."""
    return _caches()[0]


def daemon() -> bytes:
    """Return the daemon's image. The directories of the machine are mounted over it."""
    settings = {
        "Env": [
            f"PATH={Path(sys.prefix).resolve()}/bin:/usr/bin:/bin",
            f"PYTHONPATH={ROOT}",
            "PYTHONDONTWRITEBYTECODE=1",
            f"XDG_CACHE_HOME={libraries().parent}",
            f"CC={os.environ.get('CC', '')}",
        ],
        "Entrypoint": [str(Path(sys.prefix).resolve() / "bin" / "python"), "-m", "hami_plugin"],
        "Cmd": ["run"],
        "WorkingDir": "/",
    }
    passwd = {"etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n"}
    return image.packed(DAEMON, image.tar(passwd, folders=FOLDERS, links=dict(LINKS)), settings)


def core(busybox: Path) -> bytes:
    """Return an image that has what the manifest's init container copies from HAMi's."""
    layer = image.busybox_layer(busybox, {"k8s-vgpu/lib/nvidia/libvgpu.so": LIBRARY})
    return image.packed(CORE, layer, {"Env": ["PATH=/bin"], "Cmd": list(image.COMMAND), "WorkingDir": "/"})
