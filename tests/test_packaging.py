"""What a wheel of this project brings along, and what is pinned for it."""

import re
import subprocess
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from hami_plugin import __version__
from tests.support.locks import named, pins

ROOT = Path(__file__).parents[1]
DOCS = [*(ROOT / "docs").glob("*.md")]
ELSEWHERE = re.compile(r"python_(full_)?version\s*<|platform_system|sys_platform|os_name")


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_installs_three_packages_and_nothing_beside_them(contents):
    top = {name.split("/")[0] for name in contents}

    assert {name for name in top if not name.endswith(".dist-info")} == {"cdi", "hami_plugin", "vendors"}


@pytest.mark.parametrize(
    "pattern",
    [
        "hami_plugin/simulation/profiles/*.yaml",
        "vendors/*/simulation/*.yaml",
        "vendors/*/simulation/native/*.c",
        "vendors/*/simulation/native/*.h",
    ],
)
def test_the_wheel_has_what_a_simulation_needs(pattern, contents):
    wanted = {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}

    assert wanted
    assert wanted <= set(contents)


def test_the_wheel_has_no_tests_and_nothing_that_was_built(contents):
    assert [name for name in contents if name.startswith("tests/") or name.endswith((".so", ".o", ".pyc"))] == []


def test_nothing_in_the_wheel_imports_a_test(contents):
    """Neither by a statement nor by a dotted name that is imported later."""
    modules = {name: (ROOT / name).read_text(encoding="utf-8") for name in contents if name.endswith(".py")}

    assert len(modules) > 100
    assert [name for name, text in modules.items() if re.search(r"\b(from|import) tests\b|[\"']tests\.", text)] == []


def test_type_checkers_read_the_annotations_of_all_three_packages(contents):
    assert {"cdi/py.typed", "hami_plugin/py.typed", "vendors/py.typed"} <= set(contents)


def test_the_wheel_the_image_and_what_is_written_of_it_have_one_version(contents):
    written = {
        version
        for path in ("Dockerfile", "README.md", "daemonset.yaml", *(page.relative_to(ROOT) for page in DOCS))
        for version in re.findall(r"\bhami-plugin:(\d+(?:\.\d+)+)", (ROOT / path).read_text(encoding="utf-8"))
    }
    image = subprocess.run(
        ["make", "--no-print-directory", "--eval=image-name:;@echo $(IMAGE)", "image-name"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip

    assert f"hami_plugin-{__version__}.dist-info/METADATA" in contents
    assert image.stdout.strip() == f"hami-plugin:{__version__}"
    assert written == {__version__}


def test_what_a_forge_and_a_hook_call_is_a_target_of_make():
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    files = [*(ROOT / ".github/workflows").iterdir(), ROOT / ".pre-commit-config.yaml", ROOT / ".ci/run"]
    called = {
        target
        for file in files
        for line in re.findall(r"^[^#\n]*\bmake ((?:[a-z0-9-]+ ?)+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        for target in line.split()
    }

    assert {"check", "test-all"} <= called
    assert called <= targets


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock", "requirements-build.lock"])
def test_whatever_is_installed_is_one_version_whose_files_are_known(lock):
    text = (ROOT / lock).read_text(encoding="utf-8")
    written = [line for line in text.splitlines() if line and not line.startswith(("#", " "))]
    everywhere = pins(ROOT / "requirements-dev.lock")

    assert len(written) == len(pins(ROOT / lock)) > 0
    assert [name for name, (_version, hashes) in pins(ROOT / lock).items() if not hashes] == []
    assert pins(ROOT / lock).items() <= everywhere.items()


@pytest.mark.parametrize("lock", ["requirements-docs.lock", "requirements-fuzz.lock"])
def test_what_one_target_adds_to_the_environment_changes_no_version_in_it(lock):
    present, added = pins(ROOT / "requirements-dev.lock"), pins(ROOT / lock)

    assert added.keys() - present.keys()
    assert {name for name in added.keys() & present.keys() if added[name][0] != present[name][0]} == set()


def test_the_lock_of_the_image_pins_whatever_its_pins_require():
    """What only old Pythons and other systems need is pinned too, if at all, since pip may take it."""
    pinned = set(pins(ROOT / "requirements.lock"))
    required = {named(one) for name in pinned for one in requires(name) or () if not ELSEWHERE.search(one)}

    assert required - {""} <= pinned
