"""The ground of the daemon's image: whether it is what the Dockerfile would install."""

import json

import pytest

from tests.debian.commands import output, tool
from tests.realnode.interpreter import HOME, LOCK
from tests.support.locks import named, pins

DISTRIBUTIONS = (
    "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
)
DEADLINE_S = 60


@pytest.fixture(scope="module")
def installed(stack):
    command = [tool("chroot"), str(stack.image), f"{HOME}/bin/python", "-I", "-B", "-c", DISTRIBUTIONS]
    return {named(name): version for name, version in json.loads(output(command, deadline_s=DEADLINE_S)).items()}


def test_it_has_the_versions_of_the_lock(installed):
    wanted = {name: pin.version for name, pin in pins(LOCK).items()}

    assert len(wanted) > 20
    assert {name: installed.get(name) for name in wanted} == wanted


def test_neither_the_project_nor_an_installer_is_in_it(installed):
    assert not installed.keys() & {"hami-plugin", "pip", "setuptools"}


def test_its_commands_start_the_python_that_is_in_it(stack):
    commands = [path for path in (stack.image / HOME[1:] / "bin").iterdir() if not path.is_symlink()]
    firsts = {path.read_bytes().partition(b"\n")[0] for path in commands if path.stat().st_mode & 0o111}

    assert firsts == {f"#!{HOME}/bin/python".encode()}


def test_nothing_is_left_of_the_installation_and_all_may_read(stack):
    closed = [path for path in stack.image.rglob("*") if not path.is_symlink() and not path.stat().st_mode & 0o004]

    assert not (stack.image / "install").exists()
    assert closed == []
