"""``discover``, ``topology``, ``vendors`` and ``--version`` as a user has them: in a pipe, on a terminal, as JSON."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from hami_plugin.cli import main
from hami_plugin.sdk import load_vendor, vendor_names
from hami_plugin.simulation.machines import machine_names
from tests.support.terminal import environment, on_terminal, piped

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*\b(3[0-7]|4[0-7]|[34]8|9[0-7]|10[0-7])\b[0-9;]*m")
LAZY = "import sys, hami_plugin.cli, hami_plugin.daemon.app, hami_plugin.daemon.startup, hami_plugin.telemetry.logs; "


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.mark.parametrize(
    ("profile", "first"),
    [("aws-trn1-2xlarge", "NEURON0"), ("ascend-910b3-8", "NPU0"), ("cambricon-mlu590-8", "MLU0"), ("dgx-1v", "GPU0")],
)
def test_topology_names_devices_by_their_vendors_noun(profile: str, first: str):
    header, row = run("topology", "--simulate", profile).output.splitlines()[:2]

    assert header.split()[0] == row.split()[0] == first


def test_every_vendor_has_a_noun_for_its_devices():
    nouns = {name: load_vendor(name).noun for name in vendor_names()}

    assert all(re.fullmatch("[A-Z]{2,8}", noun) and noun != "DEV" for noun in nouns.values()), nouns


def test_topology_as_json_has_each_vendor_its_devices_and_every_pair():
    told = json.loads(run("topology", "--simulate", "dgx-1v,ascend-910b3-8", "--json").stdout)

    assert [one["vendor"] for one in told] == ["ascend", "nvidia"]
    assert [device["name"] for device in told[0]["devices"]] == [f"NPU{index}" for index in range(8)]
    assert len(told[1]["links"]) == 28
    pairs = {(link["a"], link["b"]): link for link in told[1]["links"]}
    assert pairs["GPU2", "GPU3"] == {
        "a": "GPU2",
        "b": "GPU3",
        "label": "NV2",
        "score": 250,
        "level": "PIX",
        "lanes": 2,
        "asymmetric": False,
    }


def test_pictures_beside_json_do_not_disturb_it(tmp_path: Path):
    picture = tmp_path / "graph.svg"

    done = run("topology", "--simulate", "ascend-910b3-8", "--json", "--graph", str(picture))

    assert json.loads(done.stdout)[0]["vendor"] == "ascend"
    assert done.stderr == f"Wrote {picture}\n"
    assert "NPU7" in {text.text for text in ET.parse(picture).iter("{http://www.w3.org/2000/svg}text")}


def test_topology_fits_a_terminal_and_is_whole_in_a_pipe():
    status, printed = on_terminal("topology", "--simulate", "aws-trn1-32xlarge", columns=80)
    whole = run("topology", "--simulate", "aws-trn1-32xlarge").stdout

    assert status == 0
    assert max(map(len, printed.splitlines())) <= 80
    assert whole.splitlines()[0].split() == [f"NEURON{index}" for index in range(16)] + ["NUMA"]


def test_vendors_are_a_table_of_one_device_type_a_line():
    header, *rows = run("vendors").stdout.splitlines()
    facts = json.loads(run("vendors", "--json").stdout)

    assert re.split(r"  +", header) == ["VENDOR", "DEVICE TYPE", "DEVICES", "MEMORY", "MEMORY IN PERCENT", "CORES"]
    cells = [re.split(r"  +", row) for row in rows]
    assert {len(row) for row in cells} == {6}, "every line has every column"
    assert [row[:3] for row in cells] == [
        [fact["vendor"], device_type, names["count"]]
        for fact in facts
        for device_type, names in fact["families"].items()
    ]


@pytest.mark.parametrize(
    ("words", "types"),
    [
        (["cambricon"], ["MLU"]),
        (["CAMBRICON"], ["MLU"]),
        (["910b4"], ["Ascend910B4-1", "Ascend910B4"]),
        (["neuroncore"], ["AWSNeuron"]),
        (["enflame", "vgcu"], ["vGCU"]),
    ],
)
def test_vendors_can_be_filtered(words: list[str], types: list[str]):
    rows = run("vendors", *words).output.splitlines()[1:]

    assert [row.split()[1] for row in rows] == types
    assert [
        device_type for fact in json.loads(run("vendors", *words, "--json").stdout) for device_type in fact["families"]
    ] == types


def test_a_filter_that_nothing_has_names_the_nearest_vendor():
    done = run("vendors", "asend")

    assert done.exit_code == 1
    assert done.stderr == "Error: no vendor, device type or resource matches 'asend'; did you mean ascend?\n"


def test_vendors_show_the_nodes_annotations_when_asked():
    (header, row) = run("vendors", "nvidia", "--annotations").output.splitlines()

    assert header.split() == ["VENDOR", "DEVICE", "TYPE", "REGISTER", "HANDSHAKE", "SCORE"]
    assert "hami.io/node-nvidia-register" in row


@pytest.mark.parametrize(
    "words", [("vendors",), pytest.param(("discover", "--simulate", "dgx-1v"), marks=pytest.mark.full)]
)
def test_a_table_fits_a_terminal_with_every_word_in_it(words: tuple[str, ...]):
    status, printed = on_terminal(*words, columns=70)
    plain = ESCAPE.sub("", printed)

    assert status == 0
    assert max(map(len, plain.splitlines())) <= 70
    assert "…" not in plain, "folded, not cut"


def test_what_is_piped_has_no_colour_and_on_a_terminal_no_color_is_honoured():
    words = ("discover", "--simulate", "dgx-1v")

    assert not ESCAPE.search(piped(*words).stdout)
    assert not COLOUR.search(on_terminal(*words, changes={"NO_COLOR": "1"})[1])


def test_the_version_is_the_packages_own():
    option, command = piped("--version"), piped("version")

    assert option.returncode == command.returncode == 0
    assert option.stdout == command.stdout
    assert option.stdout.startswith(f"hami-plugin {version('hami-plugin')} (Python 3.")


@pytest.mark.parametrize(
    ("line", "device_type", "offered"),
    [
        ("hami-plugin topo", 1, ["topology"]),
        ("hami-plugin demo --profile dgx-h1", 3, ["dgx-h100"]),
        ("hami-plugin topology --simulate mi300x-8,dgx-h1", 3, ["mi300x-8,dgx-h100"]),
        ("hami-plugin discover --simulate gaudi", 3, [name for name in machine_names() if name.startswith("gaudi")]),
    ],
)
def test_a_shell_completes_commands_and_machines(line: str, device_type: int, offered: list[str]):
    asking = {"_HAMI_PLUGIN_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(device_type)}
    program = [sys.executable, "-c", "from hami_plugin.cli import main; main(prog_name='hami-plugin')"]

    done = subprocess.run(
        program, capture_output=True, text=True, check=True, env=environment(**asking), timeout=60, cwd=Path.cwd()
    )

    assert done.stdout.split() == [f"plain,{name}" for name in offered]


def test_the_daemon_loads_no_library_that_draws():
    """The import of it costs each daemon some 3 MiB; structlog takes it along where it is installed."""
    drawing = "print(sorted(name for name in sys.modules if name.split('.')[0] in ('rich', 'pygments')))"

    done = subprocess.run(
        [sys.executable, "-c", LAZY + drawing], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout == "[]\n"


def test_the_daemon_loads_no_other_command_and_builds_no_validator_of_a_vendor():
    program = (
        "import sys, hami_plugin.cli; from hami_plugin.cli.main import main; main.get_command(None, 'run');"
        "print(sorted(name for name in sys.modules if name.startswith('hami_plugin.cli.')));"
        "from hami_plugin.config.load import load; from hami_plugin.sdk import load_vendor, vendor_names;"
        "models = {name: load_vendor(name).settings for name in vendor_names()};"
        "load(config=None, device_config=None, node_config=None, overrides={'nodeName': 'n'}, environment={},"
        " vendor_settings=models.get, vendor_names=vendor_names());"
        "print([name for name, model in models.items() if model.__pydantic_complete__])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    expected = [f"hami_plugin.cli.{name}" for name in ("daemon", "main", "options")]
    assert done.stdout.splitlines() == [str(expected), "[]"]


def test_a_daemon_that_cannot_start_collects_garbage_again(tmp_path):
    done = CliRunner().invoke(main, ["run", "--config", str(tmp_path / "none.yaml")])

    assert done.exit_code == 2
    assert gc.isenabled()


def test_mig_instances_are_listed_under_their_card_with_numbers_of_their_own(tmp_path: Path):
    config = tmp_path / "config.yaml"
    config.write_text('{"vendors": {"nvidia": {"migStrategy": "mixed"}}}')

    rows = run("discover", "--simulate", "a100-pcie-2-mig", "--config", str(config)).output.splitlines()[1:]

    assert [row.split()[0] for row in rows] == ["0:0", "0:1", "0:2", "0:3", "1"]
    assert "NVIDIA A100 80GB PCIe MIG 3g.40gb  40192 MiB" in rows[0]
