"""Where Helm is unavailable, these tests are skipped and say why."""

import pytest

from tests.charts.library import library
from tests.debian.commands import LackingError


@pytest.fixture(scope="session", autouse=True)
def helm():
    try:
        return library()
    except LackingError as error:
        pytest.skip(f"no Helm here: {error}")
