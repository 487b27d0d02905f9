"""``hami-plugin new-vendor``: what it writes is found, tested and served as it is, and no other file is edited."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vendors
from hami_plugin.cli.main import main
from hami_plugin.scheduler.engine.devices import idle_state
from hami_plugin.sdk import Vendor, load_vendor, vendor_names
from tests.support import contract
from tests.support.described import described
from tests.support.scale import examples
from tools.house import House

ROOT = Path(__file__).parents[2]
NAME = "acme"
WRITTEN = {
    "vendors/acme/__init__.py",
    "vendors/acme/simulation.py",
    "vendors/acme/profiles/acme-4.yaml",
    "tests/vendors/acme/test_driver.py",
    "tests/vendors/acme/golden/discovered.json",
}


@dataclass(frozen=True, kw_only=True)
class New:
    """A folder with the new vendor, and what the command printed."""

    folder: Path
    printed: str

    def tested(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``python -m pytest`` in the checkout, which finds the new vendor too.

        In a folder of its own: pytest would remove what earlier runs left behind, at its end, for minutes.
        """
        quietly = ("-q", "-p", "no:cacheprovider", "--basetemp", str(self.folder.with_name("tested")))
        return self.run("pytest", *arguments, *quietly)

    def run(self, *command: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """A command of Python's in the checkout, which finds the new vendor too."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def sources() -> dict[str, int]:
    """When each file of the checkout's vendors and of their tests was last written."""
    found = (path for name in ("vendors", "tests/vendors") for path in (ROOT / name).rglob("*"))
    return {str(path): path.stat().st_mtime_ns for path in found if path.is_file() and "__pycache__" not in path.parts}


@pytest.fixture(scope="module", params=["--tool", "--sysfs"])
def new(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> New:
    folder = tmp_path_factory.mktemp("new")
    before = sources()
    result = CliRunner().invoke(main, ["new-vendor", NAME, request.param, "--to", str(folder)])
    assert result.exit_code == 0, result.output
    assert sources() == before
    return New(folder=folder, printed=result.output)


@pytest.fixture
def acme(new: New) -> Iterator[Vendor]:
    """The new vendor, in this process."""
    known = list(vendors.__path__)
    vendors.__path__ = [*known, str(new.folder / "vendors")]
    importlib.invalidate_caches()
    yield load_vendor(NAME)
    vendors.__path__ = known
    for name in [name for name in sys.modules if name.startswith(f"vendors.{NAME}")]:
        del sys.modules[name]


def test_it_writes_a_driver_what_simulates_it_a_profile_a_test_and_what_the_test_expects(new: New) -> None:
    assert files(new.folder) == WRITTEN
    assert all(f"wrote {new.folder / path}" in new.printed for path in WRITTEN)


@pytest.mark.parametrize("new", ["--tool", pytest.param("--sysfs", marks=pytest.mark.full)], indirect=True)
def test_the_test_that_it_writes_passes_by_the_command_that_it_prints(new: New) -> None:
    (line,) = [line for line in new.printed.splitlines() if line.startswith("Test it: ")]
    path, *command = line.removeprefix("Test it: ").split()
    assert (path, *command[:3]) == (f"PYTHONPATH={new.folder}", "python", "-m", "pytest")

    result = new.tested(*command[3:])

    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout


@pytest.mark.parametrize("new", ["--tool", pytest.param("--sysfs", marks=pytest.mark.full)], indirect=True)
def test_its_test_fails_where_the_vendor_is_broken(new: New) -> None:
    driver = new.folder / "vendors/acme/__init__.py"
    text = driver.read_text(encoding="utf-8")
    driver.write_text(text.replace('device_nodes=("acme{}",)', "device_nodes=()"), encoding="utf-8")
    try:
        result = new.tested(str(new.folder / "tests/vendors/acme/test_driver.py"))
    finally:
        driver.write_text(text, encoding="utf-8")

    assert result.returncode == 1
    assert "test_two_cards_are_of_one_numa_node" in result.stdout


def test_its_simulated_machine_is_discovered_by_name(acme: Vendor) -> None:
    listed = CliRunner().invoke(main, ["discover", "--list-profiles"])
    found = CliRunner().invoke(main, ["discover", "--simulate", "acme-4", "--json"])

    assert "acme-4" in listed.stdout.splitlines()
    assert [device["uuid"] for device in json.loads(found.stdout)["devices"]] == [f"Acme-0{n}" for n in range(4)]


@pytest.mark.e2e
@pytest.mark.full
def test_the_daemon_serves_it_in_the_demo(new: New) -> None:
    result = new.run("hami_plugin", "demo", "--profile", "acme-4", "--json", seconds=300)

    assert result.returncode == 0, result.stdout + result.stderr


def test_its_names_are_nobody_elses(acme: Vendor) -> None:
    contract.check_names(acme, [load_vendor(name) for name in vendor_names() if name != NAME])


@pytest.mark.parametrize("law", contract.LAWS, ids=lambda law: law.__name__)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_its_policy_keeps_the_laws(law: contract.Law, acme: Vendor, data: st.DataObject) -> None:
    (family,) = contract.families(acme)
    devices = [idle_state(info) for info in described(acme, family, contract.machine(NAME, ["Acme One"]))]
    situation = data.draw(contract.situations(family, devices))
    if situation is not None:
        law(situation)


@pytest.mark.parametrize("check", [("check", "--ignore", "INP001"), ("format", "--check")], ids=lambda check: check[0])
def test_its_code_passes_the_checks_of_this_project(check: tuple[str, ...], new: New) -> None:
    """INP001 is about the folder, which is a package in this project; so is what counts as the project's own."""
    own = 'lint.isort.known-first-party = ["hami_plugin", "tests", "vendors"]'

    result = new.run("ruff", *check, "--config", str(ROOT / "pyproject.toml"), "--config", own, str(new.folder))

    assert result.returncode == 0, result.stdout + result.stderr


def test_it_needs_few_names_from_few_modules(new: New) -> None:
    figures = House(new.folder).figures()

    assert figures["names: acme"] <= 20
    assert figures["vendor: modules"] <= 6


@pytest.mark.parametrize("name", ["Acme", "2cards", "a-b", "a_b", "class", "", "a" * 31, "../acme", "acmé"])
def test_a_name_that_no_vendor_may_have_is_refused(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["new-vendor", "--tool", "--to", str(tmp_path), "--", name])

    assert result.exit_code == 1
    assert repr(name) in result.output
    assert "lower-case letters and digits" in result.output
    assert files(tmp_path) == set()


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["new-vendor", "gaudi", "--tool", "--to", str(tmp_path)])

    assert result.exit_code == 1
    assert "a vendor named 'gaudi' already" in result.output
    assert files(tmp_path) == set()


def test_where_cards_are_listed_must_be_said(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["new-vendor", NAME, "--to", str(tmp_path)])

    assert result.exit_code == 2
    assert "--tool or --sysfs" in result.output


def test_a_file_that_is_there_stays_and_nothing_is_written(tmp_path: Path) -> None:
    mine = tmp_path / "tests/vendors/acme/test_driver.py"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine", encoding="utf-8")

    result = CliRunner().invoke(main, ["new-vendor", NAME, "--tool", "--to", str(tmp_path)])

    assert result.exit_code == 1
    assert f"{mine} already exists" in result.output
    assert files(tmp_path) == {"tests/vendors/acme/test_driver.py"}
    assert mine.read_text(encoding="utf-8") == "mine"


@pytest.mark.full
def test_what_cannot_be_written_whole_is_not_written_at_all(tmp_path: Path) -> None:
    (tmp_path / "tests").write_text("a file where a folder should be", encoding="utf-8")

    result = CliRunner().invoke(main, ["new-vendor", NAME, "--tool", "--to", str(tmp_path)])

    assert result.exit_code == 1
    assert str(tmp_path / "tests") in result.output
    assert [path.name for path in tmp_path.rglob("*")] == ["tests"]


def test_a_vendor_that_does_not_run_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    result = CliRunner().invoke(main, ["new-vendor", NAME, "--sysfs", "--to", str(tmp_path)])

    assert result.exit_code == 1
    assert "'acme' does not run; nothing was written" in result.output
    assert files(tmp_path) == set()
