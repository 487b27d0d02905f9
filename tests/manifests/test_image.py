"""The Dockerfile against the project: what it pins, what it copies, and that its simulation needs no compiler."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

from hami_plugin import __version__
from hami_plugin.cli import main

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def stages():
    """The Dockerfile's stages, comments left out."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    return ["\n".join(stage.splitlines()) for stage in re.split(r"^FROM ", "\n".join(lines), flags=re.MULTILINE)[1:]]


def instructions():
    """Instruction and arguments of each line; continued lines are one."""
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#")))
    return [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]


def test_the_file_has_known_instructions_and_two_stages_of_one_base():
    names = [name for name, _ in instructions()]

    assert set(names) <= {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "ENTRYPOINT", "CMD"}
    assert [rest for name, rest in instructions() if name == "FROM"] == ["${BASE} AS build", "${BASE}"]


def test_the_entry_point_is_the_projects_command_and_does_what_the_manifest_says():
    last = {name: rest for name, rest in instructions() if name in ("ENTRYPOINT", "CMD")}
    (command,) = json.loads(last["ENTRYPOINT"])

    assert list(PROJECT["project"]["scripts"]) == [command]
    assert json.loads(last["CMD"])[0] in main.commands


def test_no_secret_can_come_in():
    written = [rest for name, rest in instructions() if name in ("ARG", "ENV", "COPY", "RUN")]

    assert [line for line in written if re.search(r"(?i)token|passw|secret|credential|://|--mount", line)] == []
    assert [rest for name, rest in instructions() if name == "COPY"] == [
        "requirements.lock requirements-build.lock .",
        ". .",
        "--from=build /opt/hami-plugin /opt/hami-plugin",
    ]


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


def test_credential_plugins_work_without_what_the_build_leaves_out_of_the_kubernetes_package(tmp_path):
    build, _ = stages()
    (found,) = re.findall(r"&& find /opt/hami-plugin/lib (.*-delete)", build)
    shutil.copytree(
        Path(find_spec("kubernetes").origin).parent,
        tmp_path / "kubernetes",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    (tmp_path / "answer").write_text(json.dumps({**credential, "status": {"token": "from the plugin"}}))
    command = {"command": "cat", "args": [str(tmp_path / "answer")], "interactiveMode": "Never"}
    kubeconfig = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example"}}],
        "users": [{"name": "u", "user": {"exec": {"apiVersion": credential["apiVersion"], **command}}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    program = (
        "import asyncio, sys; from hami_plugin.cluster.access import of_kubeconfig;"
        "print(asyncio.run(of_kubeconfig('kubeconfig')).authorization, sys.modules['kubernetes'].__file__)"
    )

    subprocess.run(["find", str(tmp_path), *shlex.split(found)], check=True)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=90)

    assert done.stdout == f"Bearer from the plugin {tmp_path}/kubernetes/__init__.py\n", done.stderr
    left = [path for path in (tmp_path / "kubernetes").rglob("*.py") if path.parent.name in ("api", "models")]
    assert {path.name for path in left} == {"__init__.py"}
    assert sum(path.stat().st_size for path in (tmp_path / "kubernetes").rglob("*")) < 5_000_000


def test_the_image_has_no_installer_of_its_own():
    build, _ = stages()

    assert "python -m venv --without-pip /opt/hami-plugin" in build
    assert "/opt/hami-plugin/bin/pip" not in build
    assert build.count("--no-cache-dir") == build.count("pip install") + build.count("bin/python install")


def test_the_build_tool_is_the_one_that_the_project_pins():
    (pin,) = PROJECT["build-system"]["requires"]
    lock = (ROOT / "requirements-build.lock").read_text(encoding="utf-8")

    assert any(line.startswith(f"{pin} ") for line in lock.splitlines())
    assert "--require-hashes --only-binary :all: --requirement requirements-build.lock" in stages()[0]


def test_the_image_has_a_python_that_the_project_supports():
    (version,) = re.findall(r"^ARG BASE=python:(\d+\.\d+)-slim$", DOCKERFILE, flags=re.MULTILINE)

    assert PROJECT["project"]["requires-python"] == f">={version}"


def test_the_final_stage_installs_nothing_and_takes_only_what_was_built():
    build, final = stages()

    assert "gcc" in build
    assert not re.search(r"^RUN", final, flags=re.MULTILINE)
    assert re.findall(r"^COPY (.*)$", final, flags=re.MULTILINE) == ["--from=build /opt/hami-plugin /opt/hami-plugin"]


def test_everything_that_the_wheel_needs_is_in_the_build_context_and_tests_are_not():
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    needed = {
        *PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"],
        *PROJECT["project"]["license-files"],
        PROJECT["project"]["readme"],
        "pyproject.toml",
        "requirements.lock",
        "requirements-build.lock",
    }

    assert "*" in rules
    assert kept == needed
    assert any(fnmatch("hami_plugin/__pycache__", rule) for rule in rules if rule != "*")


def test_the_manifest_names_the_image_of_this_version():
    documents = yaml.safe_load_all((ROOT / "daemonset.yaml").read_text(encoding="utf-8"))
    pods = [d["spec"]["template"]["spec"] for d in documents if d["kind"] == "DaemonSet"]

    assert [pod["containers"][0]["image"] for pod in pods] == [f"hami-plugin:{__version__}"]
    assert f"hami-plugin:{__version__}" in DOCKERFILE


@pytest.mark.full
def test_machines_whose_libraries_the_build_compiled_are_simulated_without_a_compiler(tmp_path):
    build, _ = stages()
    compiled = re.findall(r"hami-plugin discover --simulate (\S+)", build)
    assert len(compiled) == len(list(ROOT.glob("vendors/**/simulation/native")))
    (tmp_path / "empty").mkdir()
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}

    for machine in compiled:
        for path in (os.environ["PATH"], str(tmp_path / "empty")):
            command = [sys.executable, "-m", "hami_plugin", "discover", "--simulate", machine]
            subprocess.run(command, env={**variables, "PATH": path}, check=True, timeout=90, stdout=subprocess.DEVNULL)
