"""The table of fault scenarios: each has a test that is marked with its id, or says why none can show it here."""

import ast
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.support.pages import generated

ROOT = Path(__file__).parents[2]
TITLES = {
    "kubelet": "The kubelet",
    "allocate": "Allocate",
    "api": "The API server",
    "drivers": "Devices and drivers",
    "host": "Host, files, configuration",
    "hostile": "Hostile input",
}


@cache
def scenarios():
    """Group to ids; an id has what is injected, what must hold and, where no test can show it, why."""
    return yaml.safe_load((Path(__file__).parent / "scenarios.yaml").read_text(encoding="utf-8"))


def marks(source):
    """The ids of ``pytest.mark.scenario`` in a module, with the test that is marked; None for the whole module."""
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets):
            yield from ((one, None) for one in _ids(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from ((one, node.name) for decorator in node.decorator_list for one in _ids(decorator))
        elif isinstance(node, ast.Call) and _name(node.func) == "pytest.param":
            marked = [keyword.value for keyword in node.keywords if keyword.arg == "marks"]
            yield from ((one, None) for value in marked for one in _ids(value))


def _ids(expression):
    calls = [one for one in ast.walk(expression) if isinstance(one, ast.Call)]
    return [argument.value for one in calls if _name(one.func) == "pytest.mark.scenario" for argument in one.args]


def _name(expression):
    parts = []
    while isinstance(expression, ast.Attribute):
        parts.append(expression.attr)
        expression = expression.value
    return ".".join(reversed([*parts, expression.id])) if isinstance(expression, ast.Name) else ""


@cache
def marked_tests():
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        place = path.relative_to(ROOT / "tests").as_posix()
        for scenario, test in marks(path.read_text(encoding="utf-8")):
            found.setdefault(scenario, {}).setdefault(place, []).extend([test] if test else [])
    return found


def table(found):
    parts = []
    for group, rows in scenarios().items():
        parts.append(f"## {TITLES[group]}\n\n| id | what happens | what must hold | shown by |\n|---|---|---|---|")
        for scenario, (happens, holds, *untested) in rows.items():
            places = [
                f"[{place}](../../tests/{place})"
                + (f": {', '.join(f'`{name}`' for name in dict.fromkeys(names))}" if names else "")
                for place, names in found.get(scenario, {}).items()
            ]
            shown = "<br>".join([*places, *(f"not shown: {why}" for why in untested)])
            parts.append(f"| {scenario} | {happens} | {holds} | {shown} |")
        parts.append("")
    return "\n".join(parts)


def test_the_table_of_scenarios_is_made_of_the_tests_marks():
    wanted = f"\n{table(marked_tests())}\n"

    assert generated("docs/reference/scenarios.md", "scenarios", wanted) == wanted, (
        "write it anew: UPDATE_DOCS=1 make test"
    )


def test_every_mark_names_a_scenario():
    known = {scenario for rows in scenarios().values() for scenario in rows}

    assert set(marked_tests()) - known == set()


@pytest.mark.parametrize("scenario", [one for rows in scenarios().values() for one in rows])
def test_every_scenario_has_a_test_or_the_reason_why_not(scenario):
    entry = next(rows[scenario] for rows in scenarios().values() if scenario in rows)

    assert len(entry) == 2 + (scenario not in marked_tests()), "two facts, and a third only without a test: why"


def test_marks_are_found_wherever_pytest_takes_them():
    source = """
pytestmark = [pytest.mark.e2e, pytest.mark.scenario("A1")]

class TestThis:
    @pytest.mark.scenario("A2", "A3")
    async def test_that(self): ...

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.scenario("A4"))])
def test_other(x): ...
"""
    found = dict(marks(source))

    assert found["A1"] is None
    assert found["A2"] == found["A3"] == "test_that"
    assert set(found) == {"A1", "A2", "A3", "A4"}
