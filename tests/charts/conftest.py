"""Where Helm is unavailable, these tests are skipped and say why."""

import pytest

from hami_plugin.config.load import load
from hami_plugin.sdk import load_vendor, vendor_names
from tests.charts.library import library
from tools.debian.commands import LackingError


@pytest.fixture(scope="session", autouse=True)
def helm():
    try:
        return library()
    except LackingError as error:
        pytest.skip(f"no Helm here: {error}")


@pytest.fixture
def loaded(tmp_path):
    """What the daemon makes of a ConfigMap of the chart."""

    def load_it(data):
        for name, text in data.items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        return load(
            config=tmp_path / "config.yaml",
            device_config=tmp_path / "device-config.yaml",
            node_config=tmp_path / "config.json" if "config.json" in data else None,
            overrides={},
            environment={"NODE_NAME": "n1"},
            vendor_settings=lambda name: load_vendor(name).settings,
            vendor_names=vendor_names(),
        )

    return load_it
