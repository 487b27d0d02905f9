"""The bench itself: are its figures what they say, and does it run the daemon as it ships?"""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bench
from bench import imports
from bench.figures import Figure, Spread, median, percentile
from bench.machines import write_profile
from bench.shipped import FLAGS, OWN, packages
from bench.soak import measure
from bench.testbed import Node, open_testbed
from hami_plugin.simulation.machines import load_machine


def test_a_figure_holds_up_to_its_limit_and_not_beyond():
    assert Figure(name="p50", value=4.0, limit=4.0).verdict == "PASS"
    assert Figure(name="p50", value=4.01, limit=4.0).verdict == "FAIL"
    assert Figure(name="rate", value=0.49, limit=0.5, floor=True).verdict == "FAIL"
    assert Figure(name="rate", value=0.5, limit=0.5, floor=True).verdict == "PASS"


def test_a_figure_without_a_limit_cannot_fail():
    assert Figure(name="share", value=1e9).holds
    assert Figure(name="share", value=1e9).as_json()["verdict"] == "INFO"


def test_percentiles_are_values_that_were_measured():
    values = [float(value) for value in range(1, 101)]

    assert [percentile(values, share) for share in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert percentile([7.0], 0.99) == 7
    assert median([3.0, 1.0, 2.0]) == 2


def test_a_spread_is_in_milliseconds():
    spread = Spread.of([0.001, 0.002, 0.003])

    assert (spread.p50, spread.most, spread.count) == (2.0, 3.0, 3)


def test_the_large_machine_is_one_that_the_simulation_takes(tmp_path):
    machine = load_machine(write_profile(tmp_path / "machine.yaml", 64))

    assert len({device.uuid for device in machine.devices}) == 64
    assert len({device.pci for device in machine.devices}) == 64
    assert machine.lanes[0][63] == 18


def test_the_daemon_sees_what_the_image_has_and_nothing_that_developers_installed(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(packages(tmp_path / "packages"))}
    program = (
        "from importlib.util import find_spec; from importlib.metadata import version;"
        "import hami_plugin.daemon.app, pynvml;"
        "print(version('hami-plugin') != '', find_spec('pytest'), find_spec('hypothesis'))"
    )

    words = [sys.executable, *FLAGS, "-c", program]
    done = subprocess.run(words, check=False, env=environment, cwd=tmp_path, capture_output=True, text=True)

    assert done.stdout.strip() == "True None None", done.stderr


@pytest.mark.full
@pytest.mark.e2e
def test_a_part_prints_each_figure_beside_its_limit_and_writes_all_of_them(tmp_path):
    report = tmp_path / "bench.json"
    words = [sys.executable, "-m", "bench", "--quick", "--part", "register", "--json", str(report)]

    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)

    found = json.loads(report.read_text())
    figures = found["parts"]["register"]
    assert [figure["name"] for figure in figures][::2] == [
        "Start to Register / baseline",
        "Kubelet restart to Register / baseline",
    ]
    assert all(figure["value"] > 0 and figure["limit"] and figure["name"] in done.stdout for figure in figures)
    assert done.returncode == (0 if found["holds"] else 1)


@pytest.mark.full
@pytest.mark.scenario("H13")
async def test_a_short_soak_leaves_the_daemon_as_it_was():
    figures = {figure.name: figure for figure in await measure(allocates=160, minutes=5)}

    assert figures["Allocates"].value >= 160
    assert figures["Containers with another share's limits"].value == 0
    assert figures["Pods refused without a reason of theirs"].value == 0
    assert figures["Files of the state directory: growth"].holds


def test_no_limit_of_the_bench_is_a_time():
    """A slower machine fails nothing: what takes time is compared with a baseline of the same run."""
    calls = [
        {one.arg: ast.unparse(one.value) for one in node.keywords}
        for path in Path(bench.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Figure"
    ]

    assert len(calls) > 20
    assert [call["name"] for call in calls if "limit" in call and call.get("unit") in ("'s'", "'ms'", "'%'")] == []


LIBRARIES = {
    *("aiohappyeyeballs", "aiohttp", "aiosignal", "annotated_types", "attr", "click", "frozenlist", "google", "grpc"),
    *(
        "idna",
        "msgspec",
        "multidict",
        "prometheus_client",
        "propcache",
        "pydantic",
        "pydantic_core",
        "pynvml",
        "structlog",
    ),
    *("typing_extensions", "typing_inspection", "watchdog", "yaml", "yarl"),
}
"""What a daemon with NVIDIA GPUs needs. Each costs every node time and memory: add one for a strong reason only."""
NAMES_AT_THE_END = """
import atexit, runpy, sys
atexit.register(lambda: print("loaded:", *(name for name, module in sys.modules.items() if module), flush=True))
runpy.run_module("hami_plugin", run_name="__main__", alter_sys=True)
"""


@pytest.mark.full
@pytest.mark.e2e
async def test_the_running_daemon_loads_these_libraries_and_nothing_of_commands_and_simulation():
    async with open_testbed(Node()) as stage:
        stage.command = ("-c", NAMES_AT_THE_END, *stage.command[2:])
        await stage.start_daemon()
        await stage.published()
        await stage.stop_daemon()
        log = (stage.directory / "daemon.log").read_text(encoding="utf-8")
        shipped = {path.name.partition(".")[0] for path in stage.packages.iterdir()}

    modules = set(log.partition("loaded: ")[2].split())
    own = {name for name in modules if name.split(".")[0] in OWN}

    assert {name.split(".")[0] for name in modules} & (shipped - set(OWN)) == LIBRARIES
    assert {name for name in own if name.startswith("hami_plugin.cli.")} == {
        f"hami_plugin.cli.{name}" for name in ("daemon", "main", "options")
    }
    assert [name for name in own if re.match(r"hami_plugin\.(demo|render|scheduler\.(extender|webhook))\b", name)] == []
    assert {name for name in own if "simulation" in name} == {
        f"hami_plugin.simulation{name}" for name in ("", ".hardware", ".machines")
    }
    assert {"multiprocessing", "hami_plugin.vendor_boundary.isolated_driver"}.isdisjoint(modules)
    assert [name for name in own if name.startswith("hami_plugin.kubelet.") and "dra" in name] == []
    assert {name for name in own if name.startswith("hami_plugin.partitions.")} == {
        f"hami_plugin.partitions.{name}" for name in ("life", "reconciliation")
    }
    absent = ("amd", "ascend", "cambricon", "enflame", "hygon", "metax")
    assert {name for name in own if name.startswith(tuple(f"vendors.{vendor}." for vendor in absent))} == {
        f"vendors.{vendor}.settings" for vendor in absent
    }
    assert {name for name in own if name.startswith("hami_plugin.dra.")} == {
        f"hami_plugin.dra.{name}" for name in ("claims", "prepared", "slices")
    }


def test_the_baseline_of_a_start_imports_the_daemons_libraries_and_nothing_of_this_project(tmp_path):
    shipped = packages(tmp_path / "packages")
    program = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__'); print(*sorted(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(shipped)}

    words = [sys.executable, *FLAGS, "-c", program, imports.__file__, imports.LIBRARIES]
    done = subprocess.run(words, check=True, env=environment, cwd=tmp_path, capture_output=True, text=True)
    seconds, modules = done.stdout.splitlines()

    assert float(seconds) > 0
    assert {"grpc", "aiohttp", "pydantic", "structlog", "watchdog"} <= set(modules.split())
    assert {"rich", "vendors.nvidia", "hami_plugin.daemon.app", "hami_plugin.cli"}.isdisjoint(modules.split())
