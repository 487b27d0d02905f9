"""Where hosts keep the driver's files: a short list, in order. ``docs/reference/driver-files.md`` shows the same."""

from __future__ import annotations

from dataclasses import dataclass

_USUAL_LIBRARIES = (
    *("/usr/lib64", "/usr/lib/*-linux-gnu", "/usr/lib/*-linux-gnu/nvidia/current"),
    *("/lib64", "/lib/*-linux-gnu", "/usr/lib", "/lib"),
)
_USUAL_BINARIES = ("/usr/bin", "/usr/sbin", "/bin", "/usr/local/bin")
_CACHE = "/etc/ld.so.cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One kind of host. Folders are patterns, below ``root``.

    ``cache`` is what the host's dynamic loader goes by, where it knows of the driver. ``inside`` is the folder in a
    container below which the files are mounted; without it they are where they are below ``root``, since a
    container's own loader and shell look there too.
    """

    name: str
    libraries: tuple[str, ...]
    binaries: tuple[str, ...]
    root: str = "/"
    cache: str = ""
    inside: str = ""


# Images made for GPUs have this folder's bin and lib64 in PATH and in LD_LIBRARY_PATH.
_INSIDE = "/usr/local/nvidia"

LAYOUTS = (
    Layout(name="usual folders", libraries=_USUAL_LIBRARIES, binaries=_USUAL_BINARIES, cache=_CACHE),
    Layout(
        name="driver container",
        root="/run/nvidia/driver",
        libraries=_USUAL_LIBRARIES,
        binaries=_USUAL_BINARIES,
        cache=_CACHE,
    ),
    Layout(
        name="GKE",
        libraries=("/home/kubernetes/bin/nvidia/lib64",),
        binaries=("/home/kubernetes/bin/nvidia/bin",),
        inside=_INSIDE,
    ),
    Layout(
        name="Talos",
        libraries=("/usr/local/glibc/usr/lib", "/usr/local/glibc/lib64", "/usr/local/glibc/lib", "/usr/local/lib"),
        binaries=("/usr/local/bin",),
        cache="/usr/local/glibc/etc/ld.so.cache",
        inside=_INSIDE,
    ),
    Layout(
        name="NixOS",
        libraries=("/run/opengl-driver/lib",),
        binaries=("/run/opengl-driver/bin", "/run/current-system/sw/bin"),
        inside=_INSIDE,
    ),
    Layout(
        name="Bottlerocket",
        libraries=("/usr/lib/nvidia/tesla", "/*-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla"),
        binaries=(
            "/usr/libexec/nvidia/tesla/bin",
            "/*-bottlerocket-linux-gnu/sys-root/usr/libexec/nvidia/tesla/bin",
        ),
        inside=_INSIDE,
    ),
)
"""In the order in which they are tried."""
