"""SELinux and the C library, as far as they keep the limiter from containers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hami_plugin.cli.doctor.findings import Mark, Unavailable
from hami_plugin.cli.doctor.gathering import Confinement, confined, confinement
from hami_plugin.cli.doctor.pod import LimitedProcess, PodFacts, pod_findings
from tests.support.builders import FAMILY, container, pod

ENFORCING = {"enforcing": True, "path": "/usr/local/vgpu/libvgpu.so"}


def lines(**facts: object) -> list[tuple[Mark, str, str]]:
    return [(one.mark, one.check, one.text) for one in confined(Confinement(**facts))]  # type: ignore[arg-type]  # its fields


def test_an_ordinary_containers_type_keeps_the_daemon_from_the_kubelet_and_is_the_cause() -> None:
    ((mark, check, text),) = lines(**ENFORCING, own="container_t", library="default_t")

    assert (mark, check) == (Mark.FAILED, "SELinux")
    assert "runs as container_t, which may not use the kubelet's sockets" in text


def test_a_library_that_containers_may_not_read_is_named_with_its_type() -> None:
    ((mark, _check, text),) = lines(**ENFORCING, own="container_device_plugin_t", library="user_home_t")

    assert mark is Mark.WARNING
    assert "/usr/local/vgpu/libvgpu.so is user_home_t" in text


@pytest.mark.parametrize(
    "facts", [{"own": "spc_t", "library": "container_file_t"}, {"own": "unconfined_t", "library": ""}]
)
def test_what_is_let_through_is_well(facts: dict[str, str]) -> None:
    assert [mark for mark, *_ in lines(**ENFORCING, **facts)] == [Mark.OK]


def test_without_selinux_nothing_is_said_of_it() -> None:
    assert lines(own="container_t", library="default_t") == []


def test_the_node_is_read_where_kernel_and_library_say_it(tmp_path: Path) -> None:
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    proc, sysfs, vgpu = tmp_path / "proc", tmp_path / "sys", tmp_path / "hook/vgpu"
    for folder in (proc / "self/attr", sysfs / "fs/selinux", vgpu):
        folder.mkdir(parents=True)
    (proc / "self/attr/current").write_text("system_u:system_r:container_t:s0:c1,c2\0")
    (sysfs / "fs/selinux/enforce").write_text("1")
    stand_in = Path(__file__).parent / "stand_in/limiter.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(vgpu / "libvgpu.so"), str(stand_in)], check=True, timeout=60)

    found = confinement(tmp_path / "hook", proc=proc, sysfs=sysfs, label=lambda _path: "system_u:object_r:default_t:s0")

    assert (found.enforcing, found.own, found.library) == (True, "container_t", "default_t")
    assert 2 <= found.glibc < 100
    assert any("needs glibc 2." in text for _mark, _check, text in lines(path=found.path, glibc=found.glibc))


def test_nothing_at_all_is_nothing_to_say(tmp_path: Path) -> None:
    assert confinement(tmp_path, proc=tmp_path, sysfs=tmp_path) == Confinement()
    (tmp_path / "vgpu").mkdir()
    (tmp_path / "vgpu/libvgpu.so").write_bytes(b"\x7fELF no library at all")
    assert list(confined(confinement(tmp_path, proc=tmp_path, sysfs=tmp_path))) == []


def test_a_container_with_musl_is_told_so() -> None:
    owner = pod("one", [container(count=1)], node="n1")
    process = LimitedProcess(pid=7, name="train", container="main", limited=False, musl=True)
    facts = PodFacts(
        name="default/one", raw={}, view=owner, families=(FAMILY,), events=Unavailable(text="-"), processes=(process,)
    )

    (line,) = [one for one in pod_findings(facts) if one.check == "processes"]

    assert "its C library is musl" in line.text
    assert "glibc" in line.remedy
