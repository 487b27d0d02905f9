"""`hami-plugin values convert` as a user calls it: streams, exit statuses, and input that is no use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from hami_plugin.cli import main
from hami_plugin.config.documents import MAX_BYTES
from hami_plugin.config.hami_values import rules

DRA = next(rule.refuse for rule in rules() if rule.key == "dra.enabled")
SEED = Path(__file__).parents[1] / "seeds/003_values.yaml"


def run(*arguments, text: str | bytes | None = None):
    return CliRunner().invoke(main, ["values", "convert", *map(str, arguments)], input=text)


def test_the_process_reads_a_pipe_and_prints_values_that_helm_can_read():
    command = [sys.executable, "-m", "hami_plugin", "values", "convert"]
    text = "devicePlugin: {deviceSplitCount: 4, hostPID: true}\ndra: {enabled: true}\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert yaml.safe_load(done.stdout) == {"devicePlugin": {"nvidia": {"splitCount": 4}}}
    assert done.stderr.splitlines() == [
        "becomes  devicePlugin.deviceSplitCount: devicePlugin.nvidia.splitCount=4",
        "dropped  devicePlugin.hostPID: nvidia.processUsage sets it; nothing else needs the host's process ids",
        f"refused  dra.enabled: {DRA}",
        "3 keys: 1 becomes, 1 dropped, 1 refused",
    ]


def test_the_values_of_hamis_documentation_are_taken_over_but_for_its_image_and_its_socket():
    done = run(SEED)
    dropped = [line.split(":")[0].split()[1] for line in done.stderr.splitlines() if line.startswith("dropped")]

    assert done.exit_code == 0
    assert dropped == ["devicePlugin.livenessProbe"]
    assert "repository" not in done.stdout
    assert yaml.safe_load(done.stdout)["devicePlugin"]["nvidia"]["driverRoot"] == "/run/nvidia/driver"


def test_json_has_the_values_and_each_key(tmp_path):
    (tmp_path / "v.yaml").write_text("resourceName: a.b/c\nnobody: 1\n")
    done = run("--json", tmp_path / "v.yaml")
    told = json.loads(done.stdout)

    assert (done.exit_code, done.stderr) == (1, "")
    assert told["values"] == {"deviceConfig": {"nvidia": {"resourceCountName": "a.b/c"}}}
    assert [(key["key"], key["outcome"]) for key in told["keys"]] == [
        ("resourceName", "becomes"),
        ("nobody", "unknown"),
    ]


def test_quiet_prints_what_needs_a_decision_only():
    done = run("--quiet", text="resourceName: a.b/c\nnobody: 1\n")

    assert [line.split()[0] for line in done.stderr.splitlines()] == ["unknown", "2"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}\n"])
def test_no_values_are_no_values(text):
    done = run(text=text)

    assert (done.exit_code, done.stdout) == (0, "{}\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "standard input:1:5: is not YAML"),
        ("- a\n", "must hold keys at the top, not list"),
        ("a: 1\na: 2\n", "is set twice"),
        (b"a: \xff\n", "is not UTF-8 text"),
        ("a: &x [1, *x]\n", "nested more than"),
        ("a: !!python/object:os.system {}\n", "is not YAML"),
        ("a: " + "[" * 500, "nested more than"),
        ("a: " + "x" * MAX_BYTES, "has more than 1024 KiB"),
    ],
)
def test_what_cannot_be_read_ends_with_2_and_the_place(text, said):
    done = run(text=text)

    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_file_that_is_missing_is_named(tmp_path):
    done = run(tmp_path / "none.yaml")

    assert done.exit_code == 2
    assert "none.yaml: does not exist" in done.stderr
