from __future__ import annotations

from pathlib import Path

import pytest

from vendors.nvidia.driver_files import driver_places, find_driver_files
from vendors.nvidia.simulation.files import loader_cache

ELF_64, ELF_32 = b"\x7fELF\x02", b"\x7fELF\x01"
VERSION = "570.124.06"


def install(root: Path, folder: str, version: str = VERSION, content: bytes = ELF_64) -> None:
    """The libraries without which there is no driver, and their links."""
    where = root / folder.lstrip("/")
    where.mkdir(parents=True, exist_ok=True)
    for stem in ("libcuda", "libnvidia-ml"):
        (where / f"{stem}.so.{version}").write_bytes(content)
        (where / f"{stem}.so.1").unlink(missing_ok=True)
        (where / f"{stem}.so.1").symlink_to(f"{stem}.so.{version}")


def program(root: Path, path: str) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("#!/bin/sh\n")


@pytest.mark.parametrize(
    ("name", "host", "libraries", "binary"),
    [
        ("usual folders", "/", "/usr/lib64", "/usr/bin"),
        ("usual folders", "/", "/usr/lib/x86_64-linux-gnu", "/usr/bin"),
        ("usual folders", "/", "/usr/lib/aarch64-linux-gnu", "/usr/bin"),
        ("usual folders", "/", "/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/bin"),
        ("driver container", "/run/nvidia/driver", "/usr/lib/x86_64-linux-gnu", "/usr/bin"),
        ("GKE", "/", "/home/kubernetes/bin/nvidia/lib64", "/home/kubernetes/bin/nvidia/bin"),
        ("Talos", "/", "/usr/local/glibc/usr/lib", "/usr/local/bin"),
        ("NixOS", "/", "/run/opengl-driver/lib", "/run/current-system/sw/bin"),
        ("Bottlerocket", "/", "/usr/lib/nvidia/tesla", "/usr/libexec/nvidia/tesla/bin"),
        (
            "Bottlerocket",
            "/",
            "/x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
            "/x86_64-bottlerocket-linux-gnu/sys-root/usr/libexec/nvidia/tesla/bin",
        ),
    ],
)
def test_each_kind_of_host_is_recognised(tmp_path: Path, name: str, host: str, libraries: str, binary: str) -> None:
    root = tmp_path / host.lstrip("/")
    install(root, libraries)
    program(root, f"{binary}/nvidia-smi")

    files = find_driver_files(driver_places(Path("/"), tmp_path), VERSION)

    assert files.place is not None
    assert (files.place.layout.name, str(files.place.tree.host)) == (name, host)
    assert [library.path for library in files.libraries] == [
        f"{libraries}/libcuda.so.{VERSION}",
        f"{libraries}/libnvidia-ml.so.{VERSION}",
    ]
    assert [one.path for one in files.binaries] == [f"{binary}/nvidia-smi"]
    assert f"driver {VERSION} at {host} ({name})" in files.report()


def test_the_loaders_cache_finds_what_is_in_no_usual_folder(tmp_path: Path) -> None:
    install(tmp_path, "/opt/nvidia/lib")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(loader_cache({"libcuda.so.1": "/opt/nvidia/lib/libcuda.so.1"}))

    files = find_driver_files(driver_places(Path("/"), tmp_path), VERSION)

    assert {library.folder for library in files.libraries} == {"/opt/nvidia/lib"}


def test_a_damaged_cache_is_told_and_the_folders_are_searched(tmp_path: Path) -> None:
    install(tmp_path, "/usr/lib64")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(b"nonsense")

    files = find_driver_files(driver_places(Path("/"), tmp_path), VERSION)

    assert files.place is not None
    assert any("ld.so.cache is not readable: it has no list" in line for line in files.report())


def test_links_into_a_store_are_followed_and_the_names_stay(tmp_path: Path) -> None:
    install(tmp_path, "/nix/store/abc-nvidia/lib")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/opengl-driver").mkdir()
    (tmp_path / "run/opengl-driver/lib").mkdir()
    for name in (f"libcuda.so.{VERSION}", "libcuda.so.1", f"libnvidia-ml.so.{VERSION}"):
        (tmp_path / "run/opengl-driver/lib" / name).symlink_to(f"/nix/store/abc-nvidia/lib/{name}")

    cuda = find_driver_files(driver_places(Path("/"), tmp_path), VERSION).libraries[0]

    assert (cuda.name, cuda.folder) == (f"libcuda.so.{VERSION}", "/run/opengl-driver/lib")
    assert (cuda.path, cuda.links) == (f"/nix/store/abc-nvidia/lib/libcuda.so.{VERSION}", ("libcuda.so.1",))


def test_another_drivers_libraries_are_passed_over_and_named(tmp_path: Path) -> None:
    install(tmp_path, "/usr/lib64", "535.54.03")
    install(tmp_path / "run/nvidia/driver", "/usr/lib64")

    files = find_driver_files(driver_places(Path("/"), tmp_path), VERSION)

    assert files.place is not None
    assert files.place.layout.name == "driver container"
    assert f"libraries of driver 535.54.03, but the kernel runs {VERSION}" in files.report()[0]


def test_32_bit_libraries_of_the_same_name_are_no_driver(tmp_path: Path) -> None:
    install(tmp_path, "/usr/lib", content=ELF_32)

    files = find_driver_files(driver_places(Path("/"), tmp_path), VERSION)

    assert files.place is None
    assert "without libcuda and libnvidia-ml for 64 bits" in files.report()[0]


def test_without_the_kernels_version_the_newest_driver_is_taken(tmp_path: Path) -> None:
    install(tmp_path, "/usr/lib64", "99.1")
    install(tmp_path, "/usr/lib64", "535.54.03")
    install(tmp_path, "/usr/lib64", "1000.2")

    files = find_driver_files(driver_places(Path("/"), tmp_path), "")

    assert files.version == "1000.2"


def test_a_host_without_a_driver_is_told_place_by_place(tmp_path: Path) -> None:
    files = find_driver_files(driver_places(Path("/"), tmp_path), VERSION)

    assert files.place is None
    assert [line.split(": ")[0] for line in files.report()[:-1]] == [
        "looked in / (usual folders)",
        "looked in /run/nvidia/driver (driver container)",
        "looked in / (GKE)",
        "looked in / (Talos)",
        "looked in / (NixOS)",
        "looked in / (Bottlerocket)",
    ]
    assert "no driver files found" in files.report()[-1]


def test_what_a_driver_lacks_is_told_with_its_consequence(tmp_path: Path) -> None:
    install(tmp_path, "/usr/lib64")

    report = find_driver_files(driver_places(Path("/"), tmp_path), VERSION).report()

    assert f"no libnvcuvid.so.{VERSION}: video cannot be decoded" in report


def test_below_another_root_paths_are_the_hosts(tmp_path: Path) -> None:
    install(tmp_path, "/lib64")

    files = find_driver_files(driver_places(Path("/home/kubernetes/bin/nvidia"), tmp_path), VERSION)

    assert files.place is not None
    assert files.place.tree.named(files.libraries[0].path) == f"/home/kubernetes/bin/nvidia/lib64/libcuda.so.{VERSION}"
    assert not any("driver container" in str(place) for place in driver_places(Path("/opt"), tmp_path))
