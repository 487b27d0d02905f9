"""What a wheel of this project brings along, and what is pinned for it."""

import re
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from tests.support.locks import named, pins

ROOT = Path(__file__).parents[1]
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
        "hami_plugin/simulation/mig/*.yaml",
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


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock", "requirements-build.lock"])
def test_whatever_is_installed_is_one_version_whose_files_are_known(lock):
    text = (ROOT / lock).read_text(encoding="utf-8")
    written = [line for line in text.splitlines() if line and not line.startswith(("#", " "))]
    everywhere = pins(ROOT / "requirements-dev.lock")

    assert len(written) == len(pins(ROOT / lock)) > 0
    assert [name for name, (_version, hashes) in pins(ROOT / lock).items() if not hashes] == []
    assert pins(ROOT / lock).items() <= everywhere.items()


def test_the_lock_of_the_image_pins_whatever_its_pins_require():
    """What only old Pythons and other systems need is pinned too, if at all, since pip may take it."""
    pinned = set(pins(ROOT / "requirements.lock"))
    required = {named(one) for name in pinned for one in requires(name) or () if not ELSEWHERE.search(one)}

    assert required - {""} <= pinned
