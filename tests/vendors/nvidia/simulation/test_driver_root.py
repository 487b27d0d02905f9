"""The simulated driver's files: what a container runtime is given has to be there, and the hook has to work."""

import json
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def root(simulated):
    return Path(simulated("t4-4-pcie").settings()["nvidiaDriverRoot"])


def test_each_library_is_reached_by_its_links(root):
    folder = root / "usr/lib/x86_64-linux-gnu"

    for link, target in (("libcuda.so", "libcuda.so.1"), ("libnvidia-nvvm.so", "libnvidia-nvvm.so.4")):
        assert (folder / link).readlink() == Path(target)
        assert (folder / link).resolve().name.startswith(f"{link}.570.")


def test_another_driver_takes_the_old_ones_place(simulated, root):
    simulator = simulated("t4-4-pcie")
    before = {path.name for path in (root / "usr/lib/x86_64-linux-gnu").iterdir()}

    simulator.inject("driver-back", value="580.65.06")

    after = {path.name for path in (root / "usr/lib/x86_64-linux-gnu").iterdir()}
    assert len(before) == len(after)
    assert "libcuda.so.580.65.06" in after - before


def run_hook(root, bundle, *arguments):
    state = json.dumps({"ociVersion": "1.0.2", "id": "x", "bundle": str(bundle)})
    subprocess.run(
        [root / "usr/bin/nvidia-cdi-hook", *arguments], input=state, text=True, env={}, timeout=60, check=True
    )


def test_the_hook_makes_links_in_the_container_that_its_state_names(root, tmp_path):
    libraries = tmp_path / "bundle/rootfs/usr/lib64"
    libraries.mkdir(parents=True)
    (libraries / "libcuda.so.570.124.06").touch()
    (libraries / "libnvidia-nvvm.so.570.124.06").touch()
    (tmp_path / "bundle/config.json").write_text(json.dumps({"root": {"path": "rootfs"}}))

    run_hook(root, tmp_path / "bundle", "create-symlinks", "--link", "libcuda.so.1::/usr/lib64/libcuda.so")
    run_hook(root, tmp_path / "bundle", "update-ldcache", "--folder", "/usr/lib64")
    run_hook(root, tmp_path / "bundle", "update-ldcache", "--folder", "/usr/lib64")

    assert (libraries / "libcuda.so").resolve() == libraries / "libcuda.so.570.124.06"
    assert (libraries / "libnvidia-nvvm.so.4").readlink() == Path("libnvidia-nvvm.so.570.124.06")
