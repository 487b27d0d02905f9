from __future__ import annotations

from pathlib import Path

import pytest

from cdi.spec import Hook, Mount
from vendors.nvidia.driver_files import (
    DriverFiles,
    HookProgram,
    RootedTree,
    driver_mounts,
    driver_places,
    find_driver_files,
    find_hook,
)

VERSION = "570.124.06"
NO_HOOK = HookProgram(remark="")


@pytest.fixture
def gke(tmp_path: Path) -> DriverFiles:
    folder = tmp_path / "home/kubernetes/bin/nvidia/lib64"
    folder.mkdir(parents=True)
    for stem in ("libcuda", "libnvidia-ml"):
        (folder / f"{stem}.so.{VERSION}").write_bytes(b"\x7fELF\x02")
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{VERSION}")
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    program = tmp_path / "home/kubernetes/bin/nvidia/bin/nvidia-smi"
    program.parent.mkdir()
    program.touch()
    return find_driver_files(driver_places(Path("/"), tmp_path), VERSION)


def test_without_a_hook_a_library_is_mounted_under_each_name_that_programs_load(gke: DriverFiles) -> None:
    edits = driver_mounts(gke, NO_HOOK)

    cuda = f"/home/kubernetes/bin/nvidia/lib64/libcuda.so.{VERSION}"
    inside = "/usr/local/nvidia/lib64"
    assert edits.mounts == (
        Mount(host_path=cuda, container_path=f"{inside}/libcuda.so.{VERSION}"),
        Mount(host_path=cuda, container_path=f"{inside}/libcuda.so.1"),
        Mount(host_path=cuda, container_path=f"{inside}/libcuda.so"),
        Mount(
            host_path=f"/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.{VERSION}",
            container_path=f"{inside}/libnvidia-ml.so.{VERSION}",
        ),
        Mount(
            host_path="/home/kubernetes/bin/nvidia/bin/nvidia-smi",
            container_path="/usr/local/nvidia/bin/nvidia-smi",
        ),
    )
    assert edits.hooks == ()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/usr/bin/nvidia-cdi-hook", ("nvidia-cdi-hook",)),
        ("/usr/bin/nvidia-ctk", ("nvidia-ctk", "hook")),
    ],
)
def test_a_hook_makes_the_links_and_tells_the_loader(gke: DriverFiles, path: str, words: tuple[str, ...]) -> None:
    edits = driver_mounts(gke, HookProgram(path=path, remark=""))

    inside = "/usr/local/nvidia/lib64"
    link = f"libcuda.so.1::{inside}/libcuda.so"
    assert edits.hooks == (
        Hook(name="createContainer", path=path, args=(*words, "create-symlinks", "--link", link)),
        Hook(name="createContainer", path=path, args=(*words, "update-ldcache", "--folder", inside)),
    )
    assert len(edits.mounts) == 3


def test_without_a_driver_nothing_is_mounted() -> None:
    edits = driver_mounts(DriverFiles(), HookProgram(path="/usr/bin/nvidia-ctk", remark=""))

    assert (edits.mounts, edits.hooks) == ((), ())


def host_with(root: Path, *programs: str) -> RootedTree:
    for path in programs:
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    return RootedTree(host=Path("/"), view=root)


def test_the_program_that_only_has_hooks_is_preferred(tmp_path: Path) -> None:
    host = host_with(tmp_path, "/usr/bin/nvidia-ctk", "/usr/local/nvidia/toolkit/nvidia-cdi-hook")

    assert find_hook("", host).path == "/usr/local/nvidia/toolkit/nvidia-cdi-hook"


@pytest.mark.parametrize(
    ("configured", "seen", "path", "remark"),
    [
        ("", True, "", "neither nvidia-cdi-hook nor nvidia-ctk is in the usual places"),
        ("", False, "", "set nvidiaCdiHookPath"),
        ("/opt/hook", True, "", "nvidiaCdiHookPath is /opt/hook, and the host has no such file"),
        ("/opt/hook", False, "/opt/hook", "this process cannot look there"),
    ],
)
def test_a_hook_that_would_fail_every_container_is_not_used(
    tmp_path: Path, configured: str, seen: bool, path: str, remark: str
) -> None:
    program = find_hook(configured, RootedTree(host=Path("/"), view=tmp_path) if seen else None)

    assert program.path == path
    assert remark in program.remark
