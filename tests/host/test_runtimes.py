"""What a runtime's configuration says of CDI is read as the runtime itself would."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.host.runtimes import read_runtime

CRI_2 = '[plugins."io.containerd.grpc.v1.cri"]\n'
CRI_3 = "[plugins.'io.containerd.cri.v1.runtime']\n"


def configured(folder, text, name="config.toml"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return read_runtime([folder / name])


@pytest.mark.parametrize(
    ("text", "cdi"),
    [
        (f"version = 2\n{CRI_2}enable_cdi = true\n", True),
        (f"version = 2\n{CRI_2}enable_cdi = false\n", False),
        (f"version = 2\n{CRI_2}sandbox_image = 'pause'\n", False),
        ("version = 2\n", False),
        ("", False),
        ("[plugins.cri]\nenable_cdi = true\n", True),
        ("version = 3\n", True),
        (f"version = 3\n{CRI_3}enable_cdi = false\n", False),
    ],
)
def test_containerd_before_2_needs_the_switch_and_later_ones_need_none(tmp_path, text, cdi):
    runtime = configured(tmp_path, text)

    assert runtime.cdi is cdi
    assert str(tmp_path / "config.toml") in runtime.why


def test_an_imported_file_outranks_the_one_that_imports_it(tmp_path):
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/99-cdi.toml").write_text(f"version = 2\n{CRI_2}enable_cdi = true\n")
    head = f'version = 2\nimports = ["{tmp_path}/conf.d/*.toml"]\n{CRI_2}enable_cdi = false\n'

    assert configured(tmp_path, head).cdi


def test_a_relative_import_is_relative_to_the_file(tmp_path):
    (tmp_path / "cdi.toml").write_text(f"version = 2\n{CRI_2}enable_cdi = true\n")

    assert configured(tmp_path, 'version = 2\nimports = ["cdi.toml"]\n').cdi


def test_crio_always_reads_specs_and_its_drop_ins_are_read_by_name(tmp_path):
    (tmp_path / "crio.conf.d").mkdir()
    (tmp_path / "crio.conf.d/10-a.conf").write_text('[crio.runtime]\ncdi_spec_dirs = ["/a"]\n')
    (tmp_path / "crio.conf.d/20-b.conf").write_text('[crio.runtime]\ncdi_spec_dirs = ["/b"]\n')

    runtime = configured(tmp_path, "[crio]\n", "crio.conf")

    assert runtime.cdi
    assert runtime.directories == (Path("/b"),)


def test_crio_with_no_directory_reads_nothing(tmp_path):
    assert not configured(tmp_path, "[crio.runtime]\ncdi_spec_dirs = []\n", "crio.conf").cdi


def test_only_directories_that_the_runtime_reads_count(tmp_path):
    text = f'version = 2\n{CRI_2}enable_cdi = true\ncdi_spec_dirs = ["/etc/cdi", "/run/cdi"]\n'

    runtime = configured(tmp_path, text)

    assert runtime.reads(Path("/var/run/cdi"))
    assert not runtime.reads(Path("/opt/cdi"))


def test_a_runtime_that_is_not_known_counts_as_one_without_cdi(tmp_path):
    runtime = read_runtime([tmp_path / "absent.toml"])

    assert not runtime.cdi
    assert str(tmp_path / "absent.toml") in runtime.why


@pytest.mark.parametrize("text", ["not toml [", "plugins = 3\n", 'version = 2\nplugins = ["x"]\n'])
def test_a_file_that_cannot_be_understood_counts_as_a_runtime_without_cdi(tmp_path, text):
    runtime = configured(tmp_path, text)

    assert not runtime.cdi
    assert "cannot be read" in runtime.why


def test_an_import_that_leads_nowhere_is_what_is_told(tmp_path):
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "gone.toml").symlink_to(tmp_path / "nowhere")

    runtime = configured(tmp_path, 'version = 3\nimports = ["conf.d/*.toml"]\n')

    assert not runtime.cdi
    assert runtime.why.startswith(f"{tmp_path / 'config.toml'} cannot be read: ")
    assert "gone.toml" in runtime.why


def test_an_import_without_a_name_takes_nothing_in(tmp_path):
    runtime = configured(tmp_path, f'version = 2\nimports = [""]\n{CRI_2}enable_cdi = true\n')

    assert runtime.cdi


def test_directories_that_are_no_list_are_not_taken_apart(tmp_path):
    runtime = configured(tmp_path, f'version = 2\n{CRI_2}enable_cdi = true\ncdi_spec_dirs = "/etc/cdi"\n')

    assert not runtime.cdi
    assert "cdi_spec_dirs must be a list, and is '/etc/cdi'" in runtime.why
