"""A bare copy of the tree on a machine where almost nothing is installed."""

import shutil
import sys
from pathlib import Path

import google.protobuf
import grpc
import pynvml
import pytest
import typing_extensions

ROOT = Path(__file__).parents[4]
PACKAGES = {
    "pynvml.py": Path(pynvml.__file__),
    "grpc": Path(grpc.__file__).parent,
    "typing_extensions.py": Path(typing_extensions.__file__),  # what grpcio itself brings
    "google/protobuf": Path(google.protobuf.__file__).parent,
    "google/_upb": Path(google.protobuf.__file__).parents[1] / "_upb",
}


@pytest.fixture
def tree(tmp_path):
    """The three packages, and nothing else of the project."""
    for package in ("cdi", "hami_plugin", "vendors"):
        shutil.copytree(ROOT / package, tmp_path / "tree" / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "tree"


@pytest.fixture
def bare(check, machine, tree, tmp_path):
    """Runs the check with these packages alone, isolated from everything that is installed."""

    def run(*packages):
        site = tmp_path / "site"
        for name in packages:
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).symlink_to(PACKAGES[name])
        return check(
            machine("dgx-h200"),
            python=(sys.executable, "-S"),
            tree=tree,
            environment={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        )

    return run


def test_the_binding_grpc_and_protobuf_are_all_it_needs(bare):
    result = bare(*PACKAGES)

    assert result.status == 0, result.output + result.errors
    assert result.checks("not done") == []
    assert result.checks("same", "kubelet", "the pod is told")
    assert result.errors == ""


def test_without_protobuf_only_the_kubelet_part_is_not_done(bare):
    result = bare("pynvml.py", "grpc", "typing_extensions.py")

    assert result.status == 0, result.output + result.errors
    (missing,) = result.checks("not done")
    assert missing["area"] == "kubelet"
    assert missing["why"] == "protobuf is missing, pip install protobuf"
    assert result.checks("same", "MIG", "profile 7g.141gb", card=7)


def test_without_the_binding_it_says_what_to_install(bare):
    result = bare("grpc", "typing_extensions.py")

    assert result.status == 2
    assert result.errors == "the binding to the driver library is missing; pip install nvidia-ml-py\n"
