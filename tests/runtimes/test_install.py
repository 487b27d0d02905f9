"""Installing without the system's package state: where packages come from, and that a second time costs nothing."""

import json
import subprocess

import pytest

from tests.runtimes.install import VERSIONS, install
from tools.debian.apt import BASE, LATER, Packages, configuration, mirror, sources
from tools.debian.commands import SYSTEM_PATH, LackingError, tool
from tools.debian.tree import Tree

DEADLINE_S = 60
SMALL = Packages(base=("busybox-static",))  # depends on nothing


@pytest.fixture
def apt_with(tmp_path, monkeypatch):
    """Let the machine's apt have these sources, and no package lists, as a fresh machine may."""

    def configure(text):
        (tmp_path / "sources.list").write_text(text)
        (tmp_path / "lists" / "partial").mkdir(parents=True)
        (tmp_path / "apt.conf").write_text(
            f'Dir::Etc::sourcelist "{tmp_path}/sources.list";\nDir::Etc::sourceparts "/dev/null";\n'
            f'Dir::State::lists "{tmp_path}/lists";\n'
        )
        monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
        monkeypatch.delenv("RUNTIMES_MIRROR", raising=False)

    return configure


@pytest.mark.parametrize("suite", ["bookworm", "trixie", "stable"])
def test_packages_come_from_the_mirror_that_apt_has(apt_with, suite):
    apt_with(f"deb http://other.test/ubuntu jammy main\ndeb http://mirror.test/debian {suite} main\n")

    assert mirror() == "http://mirror.test/debian/"


def test_a_machine_without_a_debian_mirror_says_how_to_name_one(apt_with, monkeypatch):
    apt_with("deb http://other.test/ubuntu jammy main\ndeb http://mirror.test/security bookworm-security main\n")

    with pytest.raises(LackingError, match="set RUNTIMES_MIRROR"):
        mirror()
    monkeypatch.setenv("RUNTIMES_MIRROR", "http://mine.test/debian")
    assert mirror() == "http://mine.test/debian"


def test_apt_works_with_nothing_of_the_systems_state(tmp_path):
    (tmp_path / "apt.conf").write_text(configuration(tmp_path))
    (tmp_path / "sources.list").write_text(sources("http://mirror.test/debian", suites=(BASE, LATER)))

    names = ("Dir::State::status/f", "Dir::State::lists/d", "Dir::Cache::archives/d", "Dir::Etc::sourcelist/f")
    shell = subprocess.run(
        [tool("apt-config"), f"--config-file={tmp_path / 'apt.conf'}", "shell", *_pairs(names)],
        env={"PATH": SYSTEM_PATH, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )

    values = [line.split("=", 1)[1].strip("'") for line in shell.stdout.splitlines()]
    assert len(values) == len(names)
    assert all(value.startswith(str(tmp_path)) for value in values)


def _pairs(names):
    return [word for number, name in enumerate(names) for word in (f"V{number}", name)]


def test_an_attempt_that_broke_off_is_continued_with_what_it_had_downloaded(tmp_path, present):
    files, steps = [], []

    def breaks_off(root):
        files.extend((deb, deb.stat().st_mtime_ns) for deb in (tmp_path / "apt").rglob("*.deb"))
        raise ConnectionError

    def ends(root):
        assert [(deb, deb.stat().st_mtime_ns) for deb in (tmp_path / "apt").rglob("*.deb")] == files
        return {"seen": (root / "bin" / "busybox").exists()}

    with pytest.raises(ConnectionError):
        present(lambda: Tree(packages=SMALL, finish=breaks_off).kept_in(tmp_path, steps.append))
    left = {path.name for path in tmp_path.iterdir()}
    root = present(lambda: Tree(packages=SMALL, finish=ends).kept_in(tmp_path, steps.append))

    assert len(files) == 1
    assert not left & {"root", "complete.json"}
    assert {path.name for path in tmp_path.iterdir()} == {"root", "complete.json", "lock"}
    assert (root / "bin" / "busybox").exists()
    assert json.loads((tmp_path / "complete.json").read_text())["seen"] is True


def test_a_package_that_the_mirror_lacks_is_named_with_what_to_do(tmp_path, present):
    name = "no-package-has-this-name"

    def refused():
        try:
            Tree(packages=Packages(base=(name,))).kept_in(tmp_path, str)
        except LackingError as error:
            if name not in str(error):
                raise  # no mirror answers here
            return str(error)

    assert "set RUNTIMES_MIRROR" in present(refused)
    assert not (tmp_path / "root").exists()


def test_a_second_installation_finds_all_in_place_and_asks_nobody(tree, monkeypatch):
    monkeypatch.setenv("RUNTIMES_MIRROR", "http://127.0.0.1:9/nobody")
    steps = []

    assert install(steps.append) == tree
    assert steps == []


def test_what_is_installed_has_the_versions_that_the_tests_speak_of(tree):
    done = json.loads((tree.parent / "complete.json").read_text())

    for name, start in VERSIONS.items():
        assert done["versions"][name].startswith(start)
