"""Whose a process is: the forms in which kubelets and runtimes name cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hami_plugin.host.processes import HOSTS_NAMESPACE, MAX_BYTES, hosts_processes_seen, owner_in, owner_of
from hami_plugin.model.usage import ProcessOwner

UID = "0f6d8d2a-54b1-4d34-9c5e-2b8b1f9a7c11"
SLICE = UID.replace("-", "_")
OTHER = "ffffffff-54b1-4d34-9c5e-2b8b1f9a7c11"
ID = "4f" * 32
OURS = ProcessOwner(pod=UID, container=ID)
NOBODYS = ProcessOwner()


@pytest.mark.parametrize(
    ("text", "owner"),
    {
        "v2 systemd containerd": (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
            OURS,
        ),
        "v2 systemd CRI-O": (f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope", OURS),
        "v2 systemd CRI-O with a group of its own inside": (
            f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope/container",
            OURS,
        ),
        "v2 cgroupfs": (f"0::/kubepods/besteffort/pod{UID}/{ID}", OURS),
        "v2 from inside another pod's namespace": (
            f"0::/../../kubepods-besteffort-pod{SLICE}.slice/cri-containerd-{ID}.scope",
            OURS,
        ),
        "v2 cgroupfs from inside another's": (f"0::/../../../burstable/pod{UID}/{ID}", OURS),
        "v1 cgroupfs": (
            f"12:pids:/kubepods/burstable/pod{UID}/{ID}\n1:name=systemd:/kubepods/burstable/pod{UID}/{ID}",
            OURS,
        ),
        "v1 systemd with the runtime's own form": (
            f"4:cpu,cpuacct:/system.slice/containerd.service/kubepods-burstable-pod{SLICE}.slice:cri-containerd:{ID}",
            OURS,
        ),
        "v1 where one controller is not delegated": (f"9:misc:/\n8:memory:/kubepods/pod{UID}/{ID}", OURS),
        "a static pod": (f"0::/kubepods/pod{'ab' * 16}/{ID}", ProcessOwner(pod="ab" * 16, container=ID)),
        "cri-dockerd": (f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/docker-{ID}.scope", OURS),
        "the pod's own group": (f"0::/kubepods.slice/kubepods-pod{SLICE}.slice", ProcessOwner(pod=UID)),
        "a forged group in a container's own": (
            f"0::/kubepods/pod{UID}/{ID}/kubepods/pod{OTHER}/{'ee' * 32}",
            OURS,
        ),
        "a service": ("0::/system.slice/nvidia-persistenced.service", NOBODYS),
        "a user": ("0::/user.slice/user-1000.slice/session-3.scope", NOBODYS),
        "podman": (f"0::/machine.slice/libpod-{ID}.scope", NOBODYS),
        "docker alone": (f"0::/docker/{ID}", NOBODYS),
        "nothing": ("", NOBODYS),
        "nonsense": ("pod\0pod\n::::\n" + "x" * 9000, NOBODYS),
        "longer than a UID": (f"0::/kubepods/pod{UID}0/{ID}", NOBODYS),
    }.values(),
)
def test_a_cgroup_names_the_pod_and_the_container(text: str, owner: ProcessOwner) -> None:
    assert owner_in(text) == owner


def test_a_process_is_read_up_to_a_bound_and_one_that_is_gone_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text("x" * MAX_BYTES + f"/kubepods/pod{UID}/{ID}")

    assert owner_of(tmp_path, 7) == NOBODYS
    assert owner_of(tmp_path, 8) is None
    assert owner_of(Path("/proc"), os.getpid()) == NOBODYS


@pytest.mark.parametrize(("name", "seen"), [(HOSTS_NAMESPACE, True), ("pid:[4026532999]", False), ("", True)])
def test_a_daemon_knows_whether_it_sees_the_hosts_processes(tmp_path: Path, name: str, seen: bool) -> None:
    if name:
        (tmp_path / "self/ns").mkdir(parents=True)
        (tmp_path / "self/ns/pid").symlink_to(name)

    assert hosts_processes_seen(tmp_path) is seen
