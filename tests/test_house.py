"""House rules that no tool checks: vendors stay in their folders, and every module says what it is."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from hami_plugin.sdk import load_vendor, vendor_names

ROOT = Path(__file__).parents[1]
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


def test_every_module_says_what_it_is_in_its_first_line():
    silent = [
        str(path.relative_to(ROOT))
        for path in sources("hami_plugin", "cdi", "vendors")
        if path.suffix == ".py" and not path.read_text(encoding="utf-8").startswith('"""')
    ]

    assert silent == []


def test_no_test_of_hypothesis_fails_for_the_machines_speed():
    of_their_own = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in sources("tests")
        for found in re.finditer(r"@?settings\([^)]*deadline=(?!None)\S+", path.read_text(encoding="utf-8"))
    ]

    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check
    assert of_their_own == []
