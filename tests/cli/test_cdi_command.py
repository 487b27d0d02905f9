"""``hami-plugin cdi``: specs of a simulated machine, and what a runtime makes of files, each with its exit status."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from cdi.documents import read
from hami_plugin.cli import main
from hami_plugin.inventory.cdi_specs import file_name

KIND = "k8s.device-plugin.nvidia.com/gpu"
MACHINE = ("--simulate", "dgx-h100")
GROUP = main.commands["cdi"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def cdi(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["cdi", *arguments])


def refused(*arguments: str) -> str:
    result = cdi(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    return result.stderr


def spec(folder: str, name: str, *devices: str, env: str = "A=1", kind: str = "acme.com/gpu") -> Path:
    path = Path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    listed = [{"name": device, "containerEdits": {"env": [env]}} for device in devices]
    path.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": listed}))
    return path


# What helps before anything is known


def test_each_subcommand_says_in_one_line_what_it_is_for() -> None:
    listed = cdi("--help").output

    assert isinstance(GROUP, click.Group)
    for name, command in GROUP.commands.items():
        assert f"{name:8}  {command.get_short_help_str(limit=80)}" in listed
        assert "..." not in command.get_short_help_str(limit=60)


@pytest.mark.parametrize("name", ["generate", "list", "resolve"])
def test_the_example_in_the_help_works_as_it_stands(name: str) -> None:
    assert isinstance(GROUP, click.Group)
    example = (GROUP.commands[name].epilog or "").removeprefix("Example: hami-plugin cdi ")
    Path("specs").mkdir()

    result = cdi(*shlex.split(example.replace("/var/run/cdi", "specs")))

    assert result.exit_code == 0, result.stderr


# generate


def test_a_simulated_machine_is_described_by_uuid_by_index_and_as_a_whole() -> None:
    result = cdi("generate", *MACHINE)

    assert result.exit_code == 0, result.stderr
    found = read(result.stdout, "stdout.json")
    names = [device.name for device in found.devices]
    assert str(found.kind) == KIND
    assert {"0", "7", "all"} < set(names)
    assert len([name for name in names if name.startswith("GPU-")]) == 8


def test_yaml_says_the_same_as_json(tmp_path: Path) -> None:
    # One directory for both: its paths stand in the spec.
    both = {
        form: cdi("generate", *MACHINE, "--simulation-dir", "machine", "--format", form) for form in ("json", "yaml")
    }

    assert yaml.safe_load(both["yaml"].stdout) == json.loads(both["json"].stdout)


def test_mig_instances_have_names_of_their_own() -> None:
    names = [
        device["name"] for device in json.loads(cdi("generate", "--simulate", "a100-pcie-2-mig").stdout)["devices"]
    ]

    assert "0:0" in names
    assert any(name.startswith("MIG-") for name in names)


def test_the_explanation_stands_beside_the_spec_and_not_in_it() -> None:
    result = cdi("generate", *MACHINE, "--explain")

    assert json.loads(result.stdout)["kind"] == KIND
    assert "libraries in" in result.stderr
    assert "hook " in result.stderr
    assert cdi("generate", *MACHINE).stderr == ""


def test_files_get_the_daemons_names_in_a_directory_that_is_made() -> None:
    result = cdi("generate", *MACHINE, "--output", "specs")

    path = Path("specs") / file_name(KIND)
    assert result.exit_code == 0
    assert result.stdout == f"{path}: 17 names of kind {KIND}\n"
    assert [entry.name for entry in Path("specs").iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_place_that_cannot_be_written_to_is_named_with_the_cause_and_a_remedy() -> None:
    Path("file").touch()

    words = refused("generate", *MACHINE, "--output", "file/specs")

    assert words.startswith(f"Error: cannot write file/specs/{file_name(KIND)}: Not a directory; remove the file")


def test_a_parent_that_is_missing_is_named() -> None:
    assert "No such file or directory; create absent" in refused("generate", *MACHINE, "--output", "absent/specs")


def test_a_machine_without_devices_is_told_what_else_can_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_DRIVER_ROOT", str(Path.cwd()))

    words = refused("generate")

    assert "no devices to describe" in words
    assert "--simulate dgx-h100" in words


def test_a_profile_that_is_not_there_is_answered_with_those_that_are() -> None:
    words = cdi("generate", "--simulate", "dgx-h1000").stderr

    assert "'dgx-h1000'" in words
    assert "dgx-h100," in words


# list


def test_names_are_listed_with_their_files() -> None:
    path = spec("a", "one.json", "0", "1")

    result = cdi("list", "--dir", "a")

    assert result.exit_code == 0
    assert result.stdout == f"acme.com/gpu=0  {path}\nacme.com/gpu=1  {path}\n"
    assert result.stderr == ""


def test_the_names_of_a_simulated_machine_are_those_that_generate_writes() -> None:
    cdi("generate", *MACHINE, "--output", "specs")

    simulated = json.loads(cdi("list", *MACHINE, "--json").stdout)["devices"]

    assert list(simulated) == list(json.loads(cdi("list", "--dir", "specs", "--json").stdout)["devices"])
    assert set(simulated.values()) == {file_name(KIND)}


def test_a_later_directory_wins_and_what_it_outranks_is_named() -> None:
    first, second = spec("a", "one.json", "0"), spec("b", "two.json", "0")

    text = cdi("list", "--dir", "a", "--dir", "b")
    answer = json.loads(cdi("list", "--dir", "a", "--dir", "b", "--json").stdout)

    assert text.exit_code == 0
    assert text.stdout == f"acme.com/gpu=0  {second}  (overrides {first})\n"
    assert answer["devices"] == {"acme.com/gpu=0": str(second)}
    assert answer["outranked"] == {"acme.com/gpu=0": [str(first)]}


def test_a_conflict_names_the_device_and_both_files() -> None:
    files = [spec("a", name, "0", env=env) for name, env in (("one.json", "A=1"), ("two.json", "A=2"))]

    words = refused("list", "--dir", "a")
    answer = json.loads(cdi("list", "--dir", "a", "--json").stdout)

    assert words.startswith(f"acme.com/gpu=0 is defined by {files[0]} and {files[1]};")
    assert "remove one" in words
    assert answer["conflicts"] == {"acme.com/gpu=0": [str(file) for file in files]}
    assert answer["devices"] == {}


def test_a_broken_file_is_told_and_hides_no_other() -> None:
    spec("a", "good.json", "0")
    Path("a/bad.json").write_text('{"cdiVersion": "0.5.0"')
    Path("a/bytes.yaml").write_bytes(b"\xff\xfe")

    result = cdi("list", "--dir", "a")
    problems = json.loads(cdi("list", "--dir", "a", "--json").stdout)["problems"]

    assert result.exit_code == 1
    assert result.stdout.startswith("acme.com/gpu=0")
    assert "a/bad.json: is not readable: " in result.stderr
    assert "a/bytes.yaml: cannot be read: " in result.stderr
    assert len(problems) == 2


def test_a_directory_that_is_not_there_is_told_since_it_may_be_a_slip() -> None:
    spec("a", "good.json", "0")

    result = cdi("list", "--dir", "a", "--dir", "b")

    assert result.exit_code == 0
    assert result.stderr == "b does not exist; runtimes find nothing in it\n"


def test_without_directories_those_of_the_configuration_are_looked_at() -> None:
    path = spec("etc", "one.json", "0").absolute()
    Path("config.yaml").write_text(yaml.safe_dump({"nodeName": "n", "cdiDirs": [str(path.parent)]}))

    assert cdi("list", "--config", "config.yaml").stdout == f"acme.com/gpu=0  {path}\n"


def test_files_and_a_simulated_machine_are_not_mixed() -> None:
    result = cdi("list", *MACHINE, "--dir", "a")

    assert result.exit_code == 2
    assert "--dir and --simulate exclude each other" in result.stderr


# validate


def test_a_good_spec_is_said_to_be_in_order() -> None:
    path = spec("a", "one.json", "0", "1")

    result = cdi("validate", str(path))

    assert result.exit_code == 0
    assert result.stdout == f"{path}: valid, 2 names of kind acme.com/gpu\n"


def test_what_generate_writes_is_in_order_in_both_forms() -> None:
    for form in ("json", "yaml"):
        cdi("generate", *MACHINE, "--output", f"as-{form}", "--format", form)
    files = [str(path) for path in sorted(Path().glob("as-*/*"))]

    assert len(files) == 2
    assert cdi("validate", *files).exit_code == 0


def test_everything_that_is_wrong_is_told_with_file_device_and_field() -> None:
    bad: dict[str, Any] = {"cdiVersion": "0.5.0", "kind": "acme.com/gpu"}
    bad["devices"] = [{"name": "a b", "containerEdits": {"env": ["DEBUG"]}}]
    Path("bad.json").write_text(json.dumps(bad))
    Path("bytes.json").write_bytes(b"\xff")
    good = spec("a", "good.json", "0")

    result = cdi("validate", "bad.json", "bytes.json", str(good))

    assert result.exit_code == 1
    assert result.stdout.startswith(f"{good}: valid")
    assert 'containerEdits.env[0]: must be NAME=value, is "DEBUG"' in result.stderr
    assert 'bad.json: device "a b": name' in result.stderr
    assert "bytes.json: is not UTF-8 text: invalid start byte at byte 0" in result.stderr


def test_a_file_that_is_not_there_is_named() -> None:
    result = cdi("validate", "absent.json")

    assert result.exit_code == 2
    assert "'absent.json' does not exist" in result.stderr


# resolve


def test_what_a_container_receives_is_that_device_and_what_all_need() -> None:
    result = cdi("resolve", f"{KIND}=3", *MACHINE)

    edits = yaml.safe_load(result.stdout)
    nodes = {node["path"] for node in edits["deviceNodes"]}
    assert result.exit_code == 0
    assert {node for node in nodes if node.removeprefix("/dev/nvidia").isdecimal()} == {"/dev/nvidia3"}
    assert "/dev/nvidiactl" in nodes
    assert "NVIDIA_VISIBLE_DEVICES=void" in edits["env"]


def test_a_device_alone_is_a_name_where_one_kind_has_it() -> None:
    spec("a", "one.json", "0", "1")
    spec("a", "two.json", "0", kind="acme.com/nic")

    assert cdi("resolve", "1", "--dir", "a").stdout == "env:\n  - A=1\n"
    assert "0 does not resolve" in refused("resolve", "0", "--dir", "a")


def test_a_name_that_nobody_defines_is_told_with_the_command_that_lists_the_others() -> None:
    spec("a", "one.json", "0")

    words = refused("resolve", "acme.com/gpu=7", "--dir", "a")

    assert words.startswith("Error: acme.com/gpu=7 does not resolve: no spec defines it; ")
    assert "`hami-plugin cdi list --dir a`" in words


def test_a_name_that_is_none_is_told_with_one_that_is() -> None:
    assert "not of the form vendor/class=device" in refused("resolve", "gpu", *MACHINE)


def test_a_name_in_conflict_does_not_resolve_and_both_files_are_named() -> None:
    files = [spec("a", name, "0") for name in ("one.json", "two.json")]

    words = refused("resolve", "0", "--dir", "a")

    assert all(str(file) in words for file in files)
    assert words.startswith("Error: acme.com/gpu=0 does not resolve")
