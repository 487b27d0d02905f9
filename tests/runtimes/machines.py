"""Machines as their vendors' documents describe them: which nodes there are, and what a container is to receive.

Written by hand, apart from the code that generates specs. Adding a machine is one entry in ``MACHINES``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Numbers = tuple[int, int]
NODE = "demo-node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """What a pod asks for, and what one container of it has beside the device's nodes and files.

    The values of ``env`` are patterns, with ``{card}`` for the device's name and ``{hook}`` for the host's directory
    of HAMi's files. ``mounts`` are paths inside, to whether they are read only. ``files`` are HAMi's that must be
    there, below ``{hook}``; ``settings`` are the vendor's, and ``annotations`` the pod's.
    """

    limits: Mapping[str, int]
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, bool] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """``nodes`` are all of the host's by path, with major and minor; ``devices`` the own ones of each CDI name.

    Every container with any device receives ``shared`` and ``env``, and ``mounts``: path inside to the path below
    the simulated machine's folder. It can read the files ``readable``, of which some are links that a hook makes.
    ``asked`` are the combinations of devices to try.
    """

    profile: str
    vendor: str
    kind: str
    nodes: Mapping[str, Numbers]
    devices: Mapping[str, frozenset[str]]
    asked: tuple[tuple[str, ...], ...]
    portion: Portion
    shared: frozenset[str] = frozenset()
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    readable: tuple[str, ...] = ()

    def received(self, names: Iterable[str]) -> dict[str, Numbers]:
        """Return the nodes that a container with these devices has, and no other."""
        return {path: self.nodes[path] for path in self.shared.union(*(self.devices[name] for name in names))}


def named(cards: Mapping[int, frozenset[str]], uuids: Mapping[int, str]) -> dict[str, frozenset[str]]:
    """Each card under its index and its UUID, and all of them."""
    by_name = {name: nodes for index, nodes in cards.items() for name in (str(index), uuids[index])}
    return {**by_name, "all": frozenset().union(*cards.values())}


UVM, CAPABILITIES, KFD, DAVINCI, NEURON_MAJOR = 508, 237, 234, 236, 239
"""Majors that the kernel hands out anew at each start; these are as good as any."""

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


NVIDIA_LINKS = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")  # by the hook
NVIDIA_PORTION = Portion(
    limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30},
    env={
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "LIBCUDA_LOG_LEVEL": "1",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "{hook}/vgpu/[0-9a-f-]{{36}}.cache",
    },
    mounts={
        "{hook}/vgpu": False,
        "{hook}/vgpu/libvgpu.so": True,
        "/tmp/vgpulock": False,
        "/etc/ld.so.preload": True,
    },
    files=("vgpu/libvgpu.so", "vgpu/ld.so.preload"),
)


def rendering(card: int, render: int) -> dict[str, Numbers]:
    return {f"/dev/dri/card{card}": (226, card), f"/dev/dri/renderD{render}": (226, render)}


def nvidia(
    profile: str, uuids: Mapping[int, str], asked: tuple[tuple[str, ...], ...], **slices: tuple[int, int]
) -> Machine:
    """``uuids`` stand by minor number, which is the index here; ``slices`` are two capabilities' minors of card 0."""
    cards = {n: {f"/dev/nvidia{n}": (195, n), **rendering(n, 128 + n)} for n in uuids}
    capabilities = {
        name: {f"/dev/nvidia-caps/nvidia-cap{n}": (CAPABILITIES, n) for n in own} for name, own in slices.items()
    }
    return Machine(
        profile=profile,
        vendor="nvidia",
        kind="k8s.device-plugin.nvidia.com/gpu",
        nodes={
            path: numbers
            for nodes in (NVIDIA_CONTROL, *cards.values(), *capabilities.values())
            for path, numbers in nodes.items()
        },
        shared=frozenset(NVIDIA_CONTROL),
        devices={
            **named({n: frozenset(nodes) for n, nodes in cards.items()}, uuids),
            **{name: frozenset({"/dev/nvidia0", *own}) for name, own in capabilities.items()},
        },
        env={"NVIDIA_VISIBLE_DEVICES": "void"},
        mounts={path: f"driver-root{path}" for path in NVIDIA_FILES},
        readable=(*NVIDIA_FILES, *(f"{NVIDIA_LIBRARIES}/{name}" for name in NVIDIA_LINKS)),
        asked=asked,
        portion=NVIDIA_PORTION,
    )


H100 = {n: f"GPU-0000000{n}-5150-4ccd-8a11-f2a0380b000{n}" for n in range(8)}
A100 = {n: f"GPU-0000000{n}-5150-4ccd-8a11-667bc5cd000{n}" for n in range(2)}
MIG_3G, MIG_2G = "MIG-443a0e4b-2332-50a4-aa1b-85847d5f7a1c", "MIG-675fd6c9-10a3-5317-ba0f-daf833f78756"
A100_SLICES = {"0:0": (21, 22), MIG_3G: (21, 22), "0:1": (30, 31), MIG_2G: (30, 31), "0:2": (84, 85), "0:3": (93, 94)}

NPUS = {n: f"0000000{n}-51504CCD-8A11EF2B-265D000{n}-0000000{n}" for n in range(8)}
ASCEND_CONTROL = {"/dev/davinci_manager": (235, 0), "/dev/devmm_svm": (238, 0), "/dev/hisi_hdc": (240, 0)}
ASCEND_FILES = ("/usr/local/Ascend/driver/version.info", "/usr/local/bin/npu-smi", "/etc/ascend_install.info")
ASCEND = Machine(
    profile="ascend-910b3-8",
    vendor="ascend",
    kind="hami.io/npu-910b3",
    nodes={**ASCEND_CONTROL, **{f"/dev/davinci{n}": (DAVINCI, n) for n in NPUS}},
    shared=frozenset(ASCEND_CONTROL),
    devices=named({n: frozenset({f"/dev/davinci{n}"}) for n in NPUS}, NPUS),
    env={"ASCEND_VISIBLE_DEVICES": "void"},
    mounts={path: f"root{path}" for path in (*ASCEND_FILES, "/usr/local/Ascend/driver/lib64", "/usr/local/dcmi")},
    readable=(*ASCEND_FILES, "/usr/local/dcmi/libdcmi.so"),
    asked=((NPUS[3],), ("7", NPUS[2]), ("all",)),
    portion=Portion(
        limits={
            "huawei.com/Ascend910B3": 1,
            "huawei.com/Ascend910B3-memory": 8000,
            "huawei.com/Ascend910B3-core": 30,
        },
        env={
            "NPU_MEM_QUOTA": "8000",
            "NPU_PRIORITY": "30",
            "NPU_GLOBAL_SHM_PATH": "/hami-shared-region/[0-7]_global_registry",
            "NPU_LOCAL_SHM_PATH": "/hami-vnpu-shmem/vnpu_local_shmem",
        },
        mounts={
            "/hami-vnpu-core": True,
            "/etc/ld.so.preload": True,
            "/hami-shared-region": False,
            "/hami-vnpu-shmem": False,
        },
        files=("hami-vnpu-core/libvnpu.so", "hami-vnpu-core/ld.so.preload"),
        settings={"hamiVnpuCore": True},
        annotations={"huawei.com/vnpu-mode": "hami-core"},
    ),
)

MI300X = {n: f"GPU-1a2b3c4d0000000{n}" for n in range(8)}
AMD_CARDS = {n: rendering(1 + n, 128 + n) for n in MI300X}
AMD = Machine(
    profile="mi300x-8",
    vendor="amd",
    kind="hami.io/amd-gpu",
    nodes={"/dev/kfd": (KFD, 0), **{path: numbers for nodes in AMD_CARDS.values() for path, numbers in nodes.items()}},
    shared=frozenset({"/dev/kfd"}),
    devices=named({n: frozenset(nodes) for n, nodes in AMD_CARDS.items()}, MI300X),
    asked=((MI300X[5],), ("7", MI300X[1]), ("all",)),
    portion=Portion(
        limits={"amd.com/gpu": 1, "amd.com/gpumem": 16384, "amd.com/gpucores": 25},
        env={
            "ROCR_VISIBLE_DEVICES": "{card}",
            "HSA_CU_MASK": "0:0-75",  # a quarter of 304 compute units
            "HIP_DEVICE_MEMORY_LIMIT": "16384m",
            "LD_AUDIT": "/usr/local/vgpu/libamvgpu.so",
        },
        mounts={"/usr/local/vgpu/libamvgpu.so": True},
        files=("vgpu/libamvgpu.so",),
    ),
)

TRAINIUM = {n: f"{NODE}-AWSNeuron-{n}" for n in range(16)}
NEURON = Machine(
    profile="aws-trn1-32xlarge",
    vendor="awsneuron",
    kind="hami.io/neuron",
    nodes={f"/dev/neuron{n}": (NEURON_MAJOR, n) for n in TRAINIUM},
    devices=named({n: frozenset({f"/dev/neuron{n}"}) for n in TRAINIUM}, TRAINIUM),
    asked=((TRAINIUM[5],), ("15", TRAINIUM[1]), ("all",)),
    portion=Portion(
        limits={"aws.amazon.com/neuroncore": 1},
        env={"AWS_NEURON_VISIBLE_DEVICES": "15", "NEURON_RT_VISIBLE_CORES": "30"},  # the last device; each has two
    ),
)

MACHINES = (
    nvidia("dgx-h100", H100, ((H100[5],), ("0",), (H100[0], "7"), ("all",))),
    nvidia("a100-pcie-2-mig", A100, (("0:0",), (MIG_2G,), ("0:1", "0:3", "1"), (A100[1],), ("all",)), **A100_SLICES),
    ASCEND,
    AMD,
    NEURON,
)
