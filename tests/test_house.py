"""House rules that no tool checks: vendors stay in their folders, and modules stay readable."""

import re
from pathlib import Path

import pytest

from hami_plugin.vendor import load_vendor, vendor_names

ROOT = Path(__file__).parents[1]
MOST_LINES = 400
GENERATED = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def sources(*folders):
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path for path in found if path.suffix in (".py", ".pyi", ".c", ".h") and not path.name.endswith(GENERATED)]


@pytest.mark.parametrize("vendor", vendor_names())
def test_no_vendor_is_named_outside_its_own_folder(vendor):
    words = {vendor, load_vendor(vendor).title.split()[0]}
    pattern = re.compile("|".join(rf"(?<![a-z]){re.escape(word)}(?![a-z])" for word in words), re.IGNORECASE)

    named = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sources("hami_plugin", "cdi")
        for line in path.read_text(encoding="utf-8").splitlines()
        if pattern.search(line)
    ]

    assert named == []


def test_no_module_is_too_long_to_read():
    lengths = {
        path: len(path.read_text(encoding="utf-8").splitlines())
        for path in sources("hami_plugin", "cdi", "vendors", "tests", "bench")
    }

    assert {str(path.relative_to(ROOT)): count for path, count in lengths.items() if count > MOST_LINES} == {}


def lines(*paths):
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def modules(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def test_the_one_loop_of_scheduling_stays_short():
    assert lines(ROOT / "hami_plugin/policy/engine.py") < 150


def test_a_vendors_module_is_about_one_thing():
    lengths = {path: lines(path) for path in modules("vendors")}

    assert len(lengths) > 100
    assert {str(path.relative_to(ROOT)): count for path, count in lengths.items() if count >= 200} == {}


@pytest.mark.parametrize("package", ["vendors/nvidia/scheduling", "vendors/ascend"])
def test_what_two_vendors_add_to_the_one_loop_stays_small(package):
    """Scheduling alone: drivers, injection and simulations stand beside it."""
    scheduling = [path for path in modules(package) if "node" not in path.relative_to(ROOT).parts]

    assert 300 < lines(*scheduling) < 500


def test_every_module_says_what_it_is_in_its_first_line():
    silent = [
        str(path.relative_to(ROOT))
        for path in sources("hami_plugin", "cdi", "vendors")
        if path.suffix == ".py" and not path.read_text(encoding="utf-8").startswith('"""')
    ]

    assert silent == []
