"""Machines as their vendors' documents describe them: which nodes there are, and what a container is to receive.

Written by hand, apart from the code that generates specs. Adding a machine is one entry in ``MACHINES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Numbers = tuple[int, int]
MEMORY, CORES = 3000, 30
UVM, CAPABILITIES = 508, 237
"""Majors that the kernel hands out anew at each start; these are as good as any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """``nodes`` are all of the host's by path, with major and minor; ``devices`` the own ones of each CDI name.

    Every container with any device receives ``shared`` and ``env``, and ``mounts``: path inside to the path below
    the simulated machine's folder. ``asked`` are the combinations to try. ``links`` are made by a hook.

    A share of ``MEMORY`` MiB and ``CORES`` percent adds variables, whose values are patterns, and mounts: path inside,
    where ``{hook}`` is the host's directory of HAMi's files, to whether it is read only.
    """

    profile: str
    vendor: str
    kind: str
    nodes: Mapping[str, Numbers]
    devices: Mapping[str, frozenset[str]]
    asked: tuple[tuple[str, ...], ...]
    shared: frozenset[str] = frozenset()
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    limit_mounts: Mapping[str, bool] = field(default_factory=dict)

    def received(self, names: tuple[str, ...]) -> dict[str, Numbers]:
        """Return the nodes that a container with these devices has, and no other."""
        return {path: self.nodes[path] for path in self.shared.union(*(self.devices[name] for name in names))}


NVIDIA_KIND = "k8s.device-plugin.nvidia.com/gpu"
NVIDIA_CONTROL = {
    "/dev/nvidiactl": (195, 255),
    "/dev/nvidia-modeset": (195, 254),
    "/dev/nvidia-uvm": (UVM, 0),
    "/dev/nvidia-uvm-tools": (UVM, 1),
}
NVIDIA_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
NVIDIA_FILES = (
    *(
        f"{NVIDIA_LIBRARIES}/{name}.so.570.124.06"
        for name in (
            *("libcuda", "libcudadebugger", "libnvcuvid", "libnvidia-allocator", "libnvidia-cfg", "libnvidia-encode"),
            *("libnvidia-gpucomp", "libnvidia-ml", "libnvidia-nvvm", "libnvidia-opencl", "libnvidia-opticalflow"),
            "libnvidia-ptxjitcompiler",
        )
    ),
    *("/usr/bin/nvidia-smi", "/usr/bin/nvidia-debugdump", "/usr/bin/nvidia-persistenced"),
    *("/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-server"),
)


def nvidia_card(minor: int) -> dict[str, Numbers]:
    return {
        f"/dev/nvidia{minor}": (195, minor),
        f"/dev/dri/card{minor}": (226, minor),
        f"/dev/dri/renderD{128 + minor}": (226, 128 + minor),
    }


def nvidia(
    profile: str,
    uuids: Mapping[int, str],
    slices: Mapping[str, tuple[int, frozenset[int]]],
    asked: tuple[tuple[str, ...], ...],
) -> Machine:
    """``uuids`` stand by minor number, which is the index here; ``slices`` are a card and its capabilities' minors."""
    cards = {minor: frozenset(nvidia_card(minor)) for minor in uuids}
    capabilities = {
        f"/dev/nvidia-caps/nvidia-cap{minor}": (CAPABILITIES, minor) for _, own in slices.values() for minor in own
    }
    return Machine(
        profile=profile,
        vendor="nvidia",
        kind=NVIDIA_KIND,
        nodes={**NVIDIA_CONTROL, **capabilities, **{k: v for minor in uuids for k, v in nvidia_card(minor).items()}},
        shared=frozenset(NVIDIA_CONTROL),
        devices={
            **{str(minor): nodes for minor, nodes in cards.items()},
            **{uuid: cards[minor] for minor, uuid in uuids.items()},
            **{
                name: frozenset({f"/dev/nvidia{card}", *(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in own)})
                for name, (card, own) in slices.items()
            },
            "all": frozenset().union(*cards.values()),
        },
        env={"NVIDIA_VISIBLE_DEVICES": "void"},
        mounts={path: f"driver-root{path}" for path in NVIDIA_FILES},
        links=tuple(f"{NVIDIA_LIBRARIES}/{name}" for name in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")),
        asked=asked,
        limits={
            "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
            "CUDA_DEVICE_SM_LIMIT": "30",
            "LIBCUDA_LOG_LEVEL": "1",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": "{hook}/vgpu/[0-9a-f-]{{36}}.cache",
        },
        limit_mounts={
            "{hook}/vgpu": False,
            "{hook}/vgpu/libvgpu.so": True,
            "/tmp/vgpulock": False,
            "/etc/ld.so.preload": True,
        },
    )


H100 = {n: f"GPU-0000000{n}-5150-4ccd-8a11-f2a0380b000{n}" for n in range(8)}
A100 = {n: f"GPU-0000000{n}-5150-4ccd-8a11-667bc5cd000{n}" for n in range(2)}
MIG_3G = (0, frozenset({12, 13}))
MIG_2G = (0, frozenset({30, 31}))

MACHINES = (
    nvidia("dgx-h100", H100, {}, ((H100[5],), ("0",), (H100[0], "7"), ("all",))),
    nvidia(
        "a100-pcie-2-mig",
        A100,
        {
            "MIG-443a0e4b-2332-50a4-aa1b-85847d5f7a1c": MIG_3G,
            "0:0": MIG_3G,
            "MIG-675fd6c9-10a3-5317-ba0f-daf833f78756": MIG_2G,
            "0:1": MIG_2G,
            "0:2": (0, frozenset({84, 85})),
            "0:3": (0, frozenset({93, 94})),
        },
        (
            ("0:0",),
            ("MIG-675fd6c9-10a3-5317-ba0f-daf833f78756",),
            ("0:1", "0:3", "1"),
            (A100[1],),
            ("all",),
        ),
    ),
)
