"""What does a runtime make of several specs: which device counts, which does not, and what does it add?"""

import os

import pytest
import yaml

from cdi.documents import to_json, write
from cdi.errors import UnresolvableError
from cdi.inject import HostNode
from cdi.names import QualifiedName
from cdi.registry import SpecFile, registry
from cdi.spec import ContainerEdits, Hook
from cdi.store import DIRECTORIES, host_node, load, read_directories
from tests.support.specs import spec

ETC, RUN = 0, 1
GPU0 = QualifiedName.parse("example.com/gpu=gpu0")


def file(path, made, priority=ETC):
    return SpecFile(path=path, priority=priority, text=to_json(made))


def test_the_directory_that_is_written_at_run_time_counts_more():
    static, dynamic = spec("gpu0", "gpu1", env={"FROM": "etc"}), spec("gpu0", env={"FROM": "run"})

    view = registry([file("/etc/cdi/a.json", static), file("/run/cdi/b.json", dynamic, RUN)])

    assert view.problems == ()
    assert view.conflicts == {}
    assert view.resolve([GPU0]).env == {"FROM": "run", "GPU": "gpu0"}
    assert view.resolve(["example.com/gpu=gpu1"]).env == {"FROM": "etc", "GPU": "gpu1"}
    assert view.files(GPU0) == ("/etc/cdi/a.json", "/run/cdi/b.json")


def test_two_specs_of_one_directory_that_define_a_device_make_it_unresolvable_and_are_both_named():
    view = registry([file("/etc/cdi/a.json", spec("gpu0", "gpu1")), file("/etc/cdi/b.json", spec("gpu0", "gpu2"))])

    assert view.conflicts == {GPU0: ("/etc/cdi/a.json", "/etc/cdi/b.json")}
    assert [str(name) for name in view.names] == ["example.com/gpu=gpu1", "example.com/gpu=gpu2"]
    assert view.definition(GPU0) is None
    with pytest.raises(UnresolvableError) as refused:
        view.resolve([GPU0])
    assert refused.value.reasons == {
        str(GPU0): "defined by /etc/cdi/a.json and /etc/cdi/b.json; a runtime takes neither"
    }


def test_a_conflict_is_not_healed_by_a_directory_that_counts_more():
    made = spec("gpu0")

    view = registry([file("/e/a.json", made), file("/e/b.json", made), file("/r/c.json", made, RUN)])

    assert view.conflicts == {GPU0: ("/e/a.json", "/e/b.json")}
    assert view.names == ()


def test_devices_of_one_name_and_of_two_kinds_do_not_conflict():
    view = registry([file("/e/a.json", spec("gpu0")), file("/e/b.json", spec("gpu0", kind="example.com/npu"))])

    assert view.conflicts == {}
    assert len(view.names) == 2


def test_a_bad_file_is_a_problem_of_its_own_and_hides_nothing():
    bad = SpecFile(path="/etc/cdi/bad.json", priority=ETC, text='{"kind": "example.com/gpu"}')
    gone = SpecFile(path="/etc/cdi/gone.json", priority=ETC, unreadable="cannot be read: Permission denied")

    view = registry([bad, gone, file("/etc/cdi/good.json", spec("gpu0"))])

    assert [str(problem) for problem in view.problems] == [
        "/etc/cdi/bad.json: cdiVersion: is missing",
        "/etc/cdi/bad.json: devices: is missing",
        "/etc/cdi/gone.json: cannot be read: Permission denied",
    ]
    assert view.names == (GPU0,)
    with pytest.raises(UnresolvableError) as refused:
        view.resolve(["example.com/gpu=gpu7"])
    assert refused.value.reasons == {
        "example.com/gpu=gpu7": "no spec defines it; not usable: /etc/cdi/bad.json, /etc/cdi/gone.json"
    }


def test_a_specs_own_edits_come_once_and_before_its_first_device():
    own = Hook(name="createContainer", path="/own")
    view = registry(
        [
            file("/e/gpu.json", spec("gpu0", "gpu1", env={"GPU": "none", "ALL": "gpu"}, hooks=(own,))),
            file("/e/npu.json", spec("npu0", kind="example.com/npu", env={"ALL": "npu"})),
        ]
    )

    edits = view.resolve(["example.com/gpu=gpu1", "example.com/npu=npu0", "example.com/gpu=gpu0"])

    assert edits == ContainerEdits(env={"GPU": "gpu0", "ALL": "npu"}, hooks=(own,))


def test_nothing_asked_is_nothing_added():
    assert registry([file("/e/a.json", spec("gpu0", env={"A": "1"}))]).resolve([]) == ContainerEdits()


def test_all_that_does_not_resolve_is_said_at_once_as_containerd_says_it():
    view = registry([file("/e/a.json", spec("gpu0"))])

    with pytest.raises(UnresolvableError) as refused:
        view.resolve(["example.com/gpu=7", GPU0, "gpu0"])

    assert str(refused.value) == "unresolvable CDI devices example.com/gpu=7, gpu0"
    assert list(refused.value.reasons) == ["example.com/gpu=7", "gpu0"]
    assert "not of the form vendor/class=device" in refused.value.reasons["gpu0"]


def test_directories_are_read_as_a_runtime_reads_them(tmp_path):
    etc, run = tmp_path / "etc", tmp_path / "run"
    for folder in (etc, run):
        folder.mkdir()
    (etc / "b.json").write_text(to_json(spec("gpu0")), encoding="utf-8")
    (etc / "a.yaml").write_text(write(spec("gpu1"), "a.yaml"), encoding="utf-8")
    (etc / "c.yml").write_text("not a spec for any runtime", encoding="utf-8")
    (etc / ".b.json.writing").write_text("{", encoding="utf-8")
    (etc / "folder.json").mkdir()
    (run / "linked.json").symlink_to(etc / "b.json")

    found = read_directories([etc, tmp_path / "absent", run])

    assert [(os.path.relpath(entry.path, tmp_path), entry.priority) for entry in found] == [
        ("etc/a.yaml", 0),
        ("etc/b.json", 0),
        ("run/linked.json", 2),
    ]
    assert len(load([etc, run], yaml=yaml.safe_load).names) == 2
    assert [str(path) for path in DIRECTORIES] == ["/etc/cdi", "/var/run/cdi"]


def test_a_directory_that_is_a_link_has_nothing_for_a_runtime(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.json").write_text(to_json(spec("gpu0")), encoding="utf-8")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "run").symlink_to(tmp_path)

    assert load([tmp_path / "run" / "real"]).names == (GPU0,)
    assert load([tmp_path / "link"]).names == ()
    assert [str(problem) for problem in load([tmp_path / "link"]).problems] == [
        f"{tmp_path}/link: is a link, which runtimes do not follow"
    ]


def test_a_file_that_cannot_be_read_says_why(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xff\xfe")
    (tmp_path / "dangling.json").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.json")
    with (tmp_path / "vast.json").open("wb") as vast:
        vast.truncate(5 * 1024 * 1024)
    (tmp_path / "file").write_text("")

    view = load([tmp_path, tmp_path / "file"])

    first, *others = [str(problem) for problem in view.problems]
    assert first.startswith(f"{tmp_path}/a.json: cannot be read: 'utf-8' codec")
    assert others == [
        f"{tmp_path}/dangling.json: cannot be read: No such file or directory",
        f"{tmp_path}/pipe.json: cannot be read: not a regular file",
        f"{tmp_path}/vast.json: cannot be read: larger than 4194304 bytes",
        f"{tmp_path}/file: cannot be listed: Not a directory",
    ]


def test_a_node_of_the_host_is_described(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    assert host_node("/dev/null") == HostNode(type="c", major=1, minor=3)
    assert host_node(str(tmp_path / "pipe")).type == "p"
    with pytest.raises(ValueError, match="is not a device node"):
        host_node(str(tmp_path))
