from __future__ import annotations

from pathlib import Path

import pytest

from vendors.nvidia.driver_files import RootedTree


@pytest.fixture
def tree(tmp_path: Path) -> RootedTree:
    for name in ("usr/lib/x86_64-linux-gnu/libcuda.so.570.1", "nix/store/abc/lib/a.so", "opt/old/file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return RootedTree(host=Path("/run/nvidia/driver"), view=tmp_path)


def link(tree: RootedTree, path: str, target: str) -> None:
    place = tree.view / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def test_an_absolute_link_leads_within_the_tree_and_not_to_this_process_own_files(tree: RootedTree) -> None:
    link(tree, "/run/opengl-driver", "/nix/store/abc")

    assert tree.real("/run/opengl-driver/lib/a.so") == "/nix/store/abc/lib/a.so"
    assert tree.is_file("/run/opengl-driver/lib/a.so")


def test_a_relative_link_may_climb_and_never_leaves_the_tree(tree: RootedTree) -> None:
    link(tree, "/usr/lib64", "../../../../../usr/lib/x86_64-linux-gnu")

    assert tree.real("/usr/lib64/libcuda.so.570.1") == "/usr/lib/x86_64-linux-gnu/libcuda.so.570.1"


def test_a_loop_of_links_leads_nowhere(tree: RootedTree) -> None:
    link(tree, "/a", "/b")
    link(tree, "/b", "a")

    assert tree.real("/a/x") is None
    assert not tree.is_file("/a")


@pytest.mark.parametrize("path", ["/none", "/usr/lib/none/x", "/opt/old/file/below"])
def test_what_is_not_there_leads_nowhere(tree: RootedTree, path: str) -> None:
    assert tree.real(path) is None
    assert tree.names(path) == ()


def test_patterns_find_folders_through_links(tree: RootedTree) -> None:
    link(tree, "/lib", "usr/lib")

    assert list(tree.folders("/lib/*-linux-gnu")) == ["/lib/x86_64-linux-gnu"]
    assert list(tree.folders("/usr/lib/*-linux-gnu/nvidia")) == []
    assert list(tree.folders("/opt/*")) == ["/opt/old"]
    assert list(tree.folders("/opt/old/*")) == []


def test_the_host_calls_files_by_its_own_name_for_the_tree(tree: RootedTree) -> None:
    assert tree.named("/usr/bin/nvidia-smi") == "/run/nvidia/driver/usr/bin/nvidia-smi"
    assert RootedTree(host=Path("/"), view=tree.view).named("/usr/bin/nvidia-smi") == "/usr/bin/nvidia-smi"
