"""What is measured of the house, on houses of a few lines."""

import pytest

from tools.house import House, table

FILES = {
    "cdi/__init__.py": "",
    "cdi/spec.py": "class Spec:\n    kind: str\n",
    "hami_plugin/__init__.py": "",
    "hami_plugin/__main__.py": "COMMANDS = {'once': 'hami_plugin.node.alone:run'}\n",
    "hami_plugin/glance.py": "def told(): ...\n",
    "hami_plugin/node/__init__.py": "from hami_plugin.node.once import Looker\n",
    "hami_plugin/node/alone.py": "VALUE = 1\n" * 41,
    "hami_plugin/node/once.py": "class Looker:\n    MOST_SEEN = 3\n",
    "hami_plugin/node/twice.py": "from cdi import spec\nfrom . import alone, once\n\nclass Looker: ...\n",
    "hami_plugin/sdk/__init__.py": "class Family:\n    name: str\n    rules: int\n\n    def told_by(self): ...\n",
    "hami_plugin/sdk/x_pb2.py": "class Looker: ...\n",
    "vendors/__init__.py": "",
    "vendors/small.py": "from cdi.spec import Spec\nfrom hami_plugin.sdk import Family\n",
    "vendors/large/__init__.py": "from hami_plugin.sdk import Family, Driver, Card\n",
    "vendors/large/rules.py": "from hami_plugin.sdk import Family\nfrom hami_plugin.sdk import Rules\n",
    "vendors/large/simulation.py": "from hami_plugin.simulation import Tree, Tool\n",
    "tests/test_it.py": "\n" * 5,
}


@pytest.fixture
def house(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("modules", 15),
        ("single importers", 1),
        ("single importers: lines", 41),
        ("single importers: same folder", 1),
        ("single importers: named", 1),
        ("small modules", 14),
        ("small modules: __init__", 6),
        ("loose modules", 1),
        ("reused class names", 1),
        ("family: fields", 2),
        ("vendor: names", 2),
        ("vendor: modules", 2),
        ("vendors: median of names", 3),
        ("names: large", 4),
        ("word: told", 2),
        ("word: MOST_ and LEAST_", 1),
        ("lines: cdi", 2),
        ("lines: hami_plugin/node", 48),
        ("lines: tests", 5),
    ],
)
def test_a_figure_is_what_its_description_says(house, figure, value):
    assert House(house).figures()[figure] == value


def test_the_table_marks_what_is_more_than_wanted_and_shows_both_times():
    lines = table({"loose modules": 2, "modules": 5}, {"loose modules": 17}, ("then", "now")).splitlines()

    assert lines[0].split() == ["then", "now", "wanted"]
    assert next(line for line in lines if line.startswith("loose")).split()[-6:] == ["17", "2", "!", "at", "most", "1"]
    assert next(line for line in lines if line.startswith("modules  ")).split() == ["modules", "-", "5"]
