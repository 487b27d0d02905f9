"""The commands themselves: whose options they take, what they print, and how they end."""

import json

import click
import pytest
from click.testing import CliRunner

from hami_plugin.cli.doctor import as_the_daemon, command_line, daemons_arguments, doctor
from hami_plugin.cli.main import main


@pytest.mark.parametrize(
    ("line", "own"),
    [
        ("/usr/bin/python3 /opt/bin/hami-plugin run --config=/etc/c.yaml", ["--config=/etc/c.yaml"]),
        ("python -m hami_plugin run", []),
        ("python -m hami_plugin scheduler --config=/c", None),
        ("/sbin/init", None),
        ("", None),
    ],
)
def test_the_daemons_arguments_are_found_in_its_command_line(line, own):
    assert daemons_arguments(line.split(" ")) == own


def chosen(*arguments, first):
    context = doctor.make_context("doctor", list(arguments))
    return as_the_daemon(context, first)


def test_in_the_daemons_pod_the_daemons_options_count(tmp_path):
    first = ["hami-plugin", "run", f"--config={tmp_path / 'c.yaml'}", "--http=127.0.0.1:9000"]

    options, origin = chosen("--json", first=first)

    assert (options["config"], options["http"], options["as_json"]) == (tmp_path / "c.yaml", "127.0.0.1:9000", True)
    assert origin.startswith("as process 1 runs: run --config=")


def test_options_of_its_own_count_before_the_daemons():
    options, origin = chosen("--http=127.0.0.1:9001", first=["hami-plugin", "run", "--http=127.0.0.1:9000"])

    assert (options["http"], origin) == ("127.0.0.1:9001", "")


def test_a_command_line_is_read_up_to_a_bound(tmp_path):
    file = tmp_path / "cmdline"
    file.write_bytes(b"hami-plugin\0run\0--config=/c\0")

    assert command_line(file) == ["hami-plugin", "run", "--config=/c"]
    assert command_line(tmp_path / "none") == ()


def test_a_pod_and_the_cluster_at_once_is_a_wrong_command():
    assert CliRunner().invoke(main, ["doctor", "p", "--cluster"]).exit_code == 2


def test_a_configuration_that_the_daemon_refuses_is_a_finding(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("logLevl: info\n")

    answer = CliRunner().invoke(main, ["doctor", "--json", "--config", str(file), "--node-name", "n1"])

    document = json.loads(answer.stdout)
    assert (answer.exit_code, document["cause"]) == (1, "configuration")
    assert "c.yaml:1" in document["findings"][0]["text"]


def test_lines_have_signs_and_remedies(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("logLevl: info\n")

    answer = CliRunner().invoke(main, ["doctor", "--config", str(file), "--node-name", "n1"])

    first, second, third = answer.stdout.splitlines()
    assert first.startswith("node ")
    assert click.unstyle(second).startswith("✗ configuration: ")
    assert third.startswith("    → ")
