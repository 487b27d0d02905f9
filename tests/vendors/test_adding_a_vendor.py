"""``docs/adding-a-vendor.md``, followed: an invented vendor out of the page's own blocks, in one file."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vendors
from hami_plugin.cli import main
from hami_plugin.scheduler.engine.devices import idle_state
from hami_plugin.sdk import Vendor, load_vendor, vendor_names
from tests.support import contract
from tests.support.described import described
from tests.support.scale import examples

ROOT = Path(__file__).parents[2]
MODULE, MIRROR = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs/adding-a-vendor.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A second folder of vendors, with the page's one in it."""
    added = tmp_path_factory.mktemp("vendors")
    (added / "acme.py").write_text(MODULE, encoding="utf-8")
    known = list(vendors.__path__)
    vendors.__path__ = [*known, str(added)]
    importlib.invalidate_caches()
    yield added
    vendors.__path__ = known
    sys.modules.pop("vendors.acme", None)


@pytest.fixture
def acme(folder: Path) -> Vendor:
    assert folder.exists()
    return load_vendor("acme")


def test_it_is_found_by_its_name_alone(acme: Vendor) -> None:
    assert "acme" in vendor_names()

    facts = json.loads(CliRunner().invoke(main, ["vendors", "--json"]).output)
    (mine,) = [fact for fact in facts if fact["vendor"] == acme.name]
    assert "acme.example/card" in json.dumps(mine)


def test_its_names_are_nobody_elses(acme: Vendor) -> None:
    contract.check_names(acme, [load_vendor(name) for name in vendor_names() if name != acme.name])


@pytest.mark.parametrize("law", contract.LAWS, ids=lambda law: law.__name__)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_its_policy_keeps_the_laws(law: contract.Law, acme: Vendor, data: st.DataObject) -> None:
    (family,) = contract.families(acme)
    devices = [idle_state(info) for info in described(acme, family, contract.machine("acme", ["Acme One"]))]
    situation = data.draw(contract.situations(family, devices))
    if situation is not None:
        law(situation)


@pytest.mark.parametrize(("cards", "status", "said"), [("2", 0, "acme-2"), ("3", 1, "too few devices that belong")])
def test_a_pod_is_fitted_by_its_rules(acme: Vendor, tmp_path: Path, cards: str, status: int, said: str) -> None:
    (family,) = contract.families(acme)
    register = [
        {"id": f"acme-{n}", "index": n, "count": 4, "devmem": 1000, "devcore": 100, "type": "Acme", "health": n != 1}
        for n in range(4)
    ]
    node = {"name": "n", "annotations": {family.rules.annotations.register: json.dumps(register)}}
    limits = {"acme.example/card": cards, "acme.example/memory": "500"}
    container = {"name": "c", "resources": {"limits": limits}}
    (tmp_path / "node.yaml").write_text(yaml.safe_dump({"kind": "Node", "metadata": node}))
    (tmp_path / "pod.yaml").write_text(
        yaml.safe_dump({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}})
    )

    result = CliRunner().invoke(main, ["fit", str(tmp_path / "pod.yaml"), "--node", str(tmp_path / "node.yaml")])

    assert result.exit_code == status, result.output
    assert said in result.output


def test_the_pages_mirror_test_passes(acme: Vendor) -> None:
    space: dict[str, object] = {"__name__": "mirror"}
    exec(compile(MIRROR, "docs/adding-a-vendor.md", "exec"), space)  # the page's own block
    tests = [one for name, one in space.items() if name.startswith("test_") and callable(one)]

    assert acme.name == "acme"
    assert tests
    for test in tests:
        test()


def test_the_pages_code_passes_the_checks_of_this_project(folder: Path) -> None:
    """INP001 is about the folder, which is a package in this project."""
    ruff = [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), "--ignore", "INP001"]

    result = subprocess.run(
        [*ruff, str(folder / "acme.py")], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert result.returncode == 0, result.stdout + result.stderr
