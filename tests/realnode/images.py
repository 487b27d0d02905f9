"""The images that the chart and the README name, made here, as no registry is asked."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from hatchling.builders.wheel import WheelBuilder

from hami_plugin import __version__
from tests.realnode import interpreter
from tests.realnode.interpreter import HOME
from tests.runtimes import image

ROOT = Path(__file__).parents[2]
DAEMON, CORE = f"docker.io/library/hami-plugin:{__version__}", "docker.io/projecthami/hami:v2.10.0"
SCHEDULER = "registry.k8s.io/kube-scheduler"
CUDA = "docker.io/nvidia/cuda:12.4.1-base-ubuntu22.04"
LIBRARY = b"stands for HAMi-core's library"
COMPILE_S = 90
SIMULATED = ("dgx-h100", "ascend-910b3-8")  # as in the Dockerfile
SMI = b"#!/bin/sh\necho $CUDA_DEVICE_MEMORY_LIMIT_0 of $NVIDIA_VISIBLE_DEVICES\n"
FOLDERS = ("dev", "etc", "proc", "run", "sys", "tmp", "var")
PASSWD: Mapping[str, bytes] = MappingProxyType({"etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n"})


def daemon(tree: Path) -> bytes:
    """Return what the Dockerfile makes, on Debian's own Python: ``tree`` has it, with the pinned requirements."""
    with TemporaryDirectory(prefix="image-") as scratch:
        root = Path(scratch) / "root"
        shutil.copytree(tree, root, symlinks=True)
        _install(root, Path(scratch))
        settings = {
            "Env": [f"PATH={HOME}/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1", f"XDG_CACHE_HOME={HOME}/cache"],
            "Entrypoint": ["hami-plugin"],
            "Cmd": ["run"],
            "WorkingDir": "/",
        }
        return image.packed(DAEMON, _packed(root), settings)


def core(busybox: Path) -> bytes:
    """Return an image that has what the chart's init container copies from HAMi's."""
    layer = image.busybox_layer(busybox, {"k8s-vgpu/lib/nvidia/libvgpu.so": LIBRARY})
    return image.packed(CORE, layer, {"Env": ["PATH=/bin"], "Cmd": list(image.COMMAND), "WorkingDir": "/"})


def scheduler(program: Path, version: str) -> bytes:
    """Return Kubernetes' own image of kube-scheduler: the program alone."""
    layer = image.tar({**PASSWD, "usr/local/bin/kube-scheduler": program.read_bytes()}, folders=FOLDERS, mode=0o755)
    return image.packed(f"{SCHEDULER}:{version}", layer, {"Env": ["PATH=/usr/local/bin"], "WorkingDir": "/"})


def cuda(busybox: Path) -> bytes:
    """Return the image of the README's pod. Its nvidia-smi tells the limits that it would be held to."""
    layer = image.busybox_layer(busybox, {"bin/nvidia-smi": SMI})
    return image.packed(CUDA, layer, {"Env": ["PATH=/bin"], "WorkingDir": "/"})


def _install(root: Path, scratch: Path) -> None:
    """Put the project's wheel into the environment of ``root``, and the compiled stand-ins beside it."""
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(scratch), versions=["standard"])
    interpreter.add(root, [Path(wheel)], "--no-deps", "hami-plugin")
    for machine in SIMULATED:
        subprocess.run(
            [sys.executable, "-m", "hami_plugin", "discover", "--simulate", machine],
            check=True,
            timeout=COMPILE_S,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "XDG_CACHE_HOME": f"{root}{HOME}/cache"},
        )


def _packed(root: Path) -> bytes:
    """Return all files of ``root`` as a tar."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        made.add(root, arcname=".")
    return out.getvalue()
