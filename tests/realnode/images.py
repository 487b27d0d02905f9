"""The images of others that the chart and the README name, made here, as no registry is asked."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.runtimes import image

CORE = "docker.io/projecthami/hami:v2.10.0"
SCHEDULER = "registry.k8s.io/kube-scheduler"
CUDA = "docker.io/nvidia/cuda:12.4.1-base-ubuntu22.04"
LIBRARY = b"stands for HAMi-core's library"
SMI = b"#!/bin/sh\necho $CUDA_DEVICE_MEMORY_LIMIT_0 of $NVIDIA_VISIBLE_DEVICES\n"
FOLDERS = ("dev", "etc", "proc", "run", "sys", "tmp", "var")
PASSWD: Mapping[str, bytes] = MappingProxyType({"etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n"})


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
