"""What a wheel of this project brings along."""

import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]


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
