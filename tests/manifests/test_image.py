"""The Dockerfile against the project; tests/runtimes builds and runs what it makes."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

from bench.shipped import ENVIRONMENT
from hami_plugin import __version__
from hami_plugin.cli import main
from tools.image import application, build, python

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def instructions():
    """Instruction and arguments of each line; continued lines are one."""
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#")))
    return [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]


def test_the_file_runs_nothing_so_that_its_builder_needs_neither_a_shell_nor_a_network():
    names = {name for name, _ in instructions()}

    assert names == {"ARG", "FROM", "COPY", "ENV", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
    assert [rest for name, rest in instructions() if name == "FROM"] == ["${BASE}"]
    assert [rest for name, rest in instructions() if name == "ARG"] == ["BASE=scratch"]


def test_the_entry_point_is_the_projects_command_and_does_what_the_manifest_says():
    last = {name: rest for name, rest in instructions() if name in ("ENTRYPOINT", "CMD")}
    (command,) = json.loads(last["ENTRYPOINT"])

    assert list(PROJECT["project"]["scripts"]) == [command, "kubectl-hami"]
    assert application.COMMAND.count(PROJECT["project"]["scripts"][command].partition(":")[0]) == 1
    assert json.loads(last["CMD"])[0] in main.commands


def test_each_folder_that_is_laid_out_is_a_layer_and_nothing_else_comes_in():
    assert [rest for name, rest in instructions() if name == "COPY"] == ["base/ /", "requirements/ /", "project/ /"]


def test_its_variables_find_what_is_laid_out():
    (env,) = (rest for name, rest in instructions() if name == "ENV")

    assert f"PATH=/{application.HOME}/bin:" in env
    assert f"XDG_CACHE_HOME=/{application.CACHE}" in env


def test_the_bench_measures_the_daemon_with_the_images_variables():
    (env,) = (rest for name, rest in instructions() if name == "ENV")

    assert {"MALLOC_ARENA_MAX", "PYTHONNODEBUGRANGES"} <= ENVIRONMENT.keys()
    assert ENVIRONMENT.items() <= {tuple(word.split("=", 1)) for word in env.split()}


def test_no_secret_can_come_in():
    assert re.search(r"(?i)token|passw|secret|credential|://|--mount", DOCKERFILE) is None


@pytest.mark.full
def test_the_wheel_runs_from_an_empty_folder_with_the_entry_point_of_the_image(tmp_path):
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    root, empty = tmp_path / "root", tmp_path / "empty"
    empty.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", str(root), wheel], check=True, timeout=90)
    environment = {"PATH": f"{root / 'bin'}:/usr/bin:/bin", "PYTHONPATH": str(root), "HOME": str(empty)}

    def run(*command):
        done = subprocess.run(
            command, cwd=empty, env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout.strip()

    where = "import hami_plugin, vendors, cdi; print(hami_plugin.__file__, vendors.__path__, cdi.__file__)"

    assert run("hami-plugin", "version").startswith(f"hami-plugin {__version__} ")
    assert run(sys.executable, "-c", where).count(str(root)) == 3
    assert "nvidia.com/gpu" in run("hami-plugin", "vendors")
    assert list(empty.iterdir()) == []


def test_the_build_tool_is_the_one_that_the_project_pins():
    (pin,) = PROJECT["build-system"]["requires"]
    lock = (ROOT / "requirements-build.lock").read_text(encoding="utf-8")

    assert any(line.startswith(f"{pin} ") for line in lock.splitlines())


def test_the_image_has_a_python_that_the_project_supports():
    assert PROJECT["project"]["requires-python"] == f">={python.VERSION}"


def test_a_change_of_what_the_wheel_is_built_from_builds_the_image_anew():
    needed = {
        *PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"],
        *PROJECT["project"]["license-files"],
        PROJECT["project"]["readme"],
        "pyproject.toml",
        "requirements.lock",
    }

    assert needed == set(build.SOURCES)


def test_the_image_of_another_base_says_where_its_python_is(tmp_path):
    application.environment(tmp_path, "/usr/local/bin/python3.11")

    assert (tmp_path / application.HOME / "bin/python").readlink() == Path("/usr/local/bin/python3.11")
    assert "home = /usr/local/bin\n" in (tmp_path / application.HOME / "pyvenv.cfg").read_text()


def test_the_manifest_names_the_image_of_this_version():
    documents = yaml.safe_load_all((ROOT / "daemonset.yaml").read_text(encoding="utf-8"))
    pods = [d["spec"]["template"]["spec"] for d in documents if d["kind"] == "DaemonSet"]

    assert [pod["containers"][0]["image"] for pod in pods] == [f"hami-plugin:{__version__}"]
    assert f"hami-plugin:{__version__}" in DOCKERFILE


@pytest.mark.full
def test_machines_whose_libraries_the_build_compiled_are_simulated_without_a_compiler(tmp_path):
    compiled = application.SIMULATED
    assert len(compiled) == len(list(ROOT.glob("vendors/**/simulation/native")))
    (tmp_path / "empty").mkdir()
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}

    for machine in compiled:
        for path in (os.environ["PATH"], str(tmp_path / "empty")):
            command = [sys.executable, "-m", "hami_plugin", "discover", "--simulate", machine]
            subprocess.run(command, env={**variables, "PATH": path}, check=True, timeout=90, stdout=subprocess.DEVNULL)
