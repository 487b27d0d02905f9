"""House rules that no tool checks: vendors stay in their folders, and every module says what it is."""

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from hami_plugin.sdk import load_vendor, vendor_names
from tools.house import House

ROOT = Path(__file__).parents[1]
GENERATED = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def sources(*folders):
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path for path in found if path.suffix in (".py", ".pyi", ".c", ".h") and not path.name.endswith(GENERATED)]


@cache
def core():
    """The texts of all that knows no vendor."""
    return {path: path.read_text(encoding="utf-8") for path in sources("hami_plugin", "cdi")}


@pytest.mark.parametrize("vendor", vendor_names())
def test_no_vendor_is_named_outside_its_own_folder(vendor):
    words = {vendor, load_vendor(vendor).title.split()[0]}
    pattern = re.compile("|".join(rf"(?<![a-z]){re.escape(word)}(?![a-z])" for word in words), re.IGNORECASE)

    named = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path, text in core().items()
        if pattern.search(text)
        for line in text.splitlines()
        if pattern.search(line)
    ]

    assert named == []


def test_no_modules_import_each_other_in_a_circle_not_even_for_types():
    try:
        TopologicalSorter(House(ROOT).imported()).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


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


CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "time"}
READING = re.compile(rf"\.({'|'.join(sorted(CLOCKS))})\(\)")


def asserted_durations(text):
    """The lines whose ``assert`` rests on a difference of two readings of a clock, wherever in the file it was taken.

    A deadline (``assert time.monotonic() < end``) takes no difference, and stays.
    """
    if not READING.search(text):
        return []
    tree = ast.parse(text)
    readings, durations = set(), set()

    def reads(node):
        return any(
            (isinstance(part, ast.Call) and not part.args and getattr(part.func, "attr", "") in CLOCKS)
            or (isinstance(part, ast.Name) and part.id in readings)
            for part in ast.walk(node)
        )

    def measures(node):
        return any(
            (isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) and reads(part.left) and reads(part.right))
            or (isinstance(part, ast.Name) and part.id in durations)
            for part in ast.walk(node)
        )

    def learn(value, *targets):
        kept = [target.value if isinstance(target, ast.Subscript) else target for target in targets]
        names = {part.id for target in kept for part in ast.walk(target) if isinstance(part, ast.Name)}
        if measures(value):
            durations.update(names)
        elif reads(value):
            readings.update(names)

    before = None
    while before != (before := (len(readings), len(durations))):
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=targets, value=value):
                    learn(value, *targets)
                case ast.Call(func=ast.Attribute(value=ast.Name() as kept, attr="append"), args=[value]):
                    learn(value, kept)
                case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                    learn(value, target)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    returned = [part.value for part in ast.walk(node) if isinstance(part, ast.Return) and part.value]
                    if any(map(measures, returned)):
                        durations.add(node.name)
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert) and measures(node.test)]


@pytest.mark.parametrize(
    "text",
    [
        "start = time.monotonic()\nassert time.monotonic() - start < 1",
        "start = loop.time()\ntook = loop.time() - start\nassert took >= 0.05",
        "at.append(time.monotonic())\nassert all(b - a > 1 for a, b in pairwise(at))",
        "began = time.perf_counter()\ntook.append(time.perf_counter() - began)\nassert median(took) < 5",
        "def back():\n    b = time.monotonic()\n    return time.monotonic() - b\ns = back()\nassert s < 4",
    ],
)
def test_an_asserted_duration_is_found(text):
    assert len(asserted_durations(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "end = time.monotonic() + 20\nassert time.monotonic() < end",
        "began = time.monotonic()\ntell(time.monotonic() - began)\nassert done",
        "assert clock.now - 3 == 4",
    ],
)
def test_a_deadline_and_a_figure_that_is_only_told_are_no_asserted_duration(text):
    assert asserted_durations(text) == []


def test_no_test_asserts_how_many_seconds_something_takes():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources("tests")
        if path.suffix == ".py" and path.name != "test_house.py"
        for line in asserted_durations(path.read_text(encoding="utf-8"))
    ]

    assert found == [], "await a condition, use a fake clock, or measure it in bench/"
