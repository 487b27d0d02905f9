"""Where Helm cannot be had, these tests are skipped and say why; with ``REQUIRE_HELM`` they fail instead."""

import os

import pytest

from tests.charts.library import library
from tests.debian.commands import LackingError


@pytest.fixture(scope="session", autouse=True)
def helm():
    try:
        return library()
    except LackingError as error:
        if os.environ.get("REQUIRE_HELM"):
            raise
        pytest.skip(f"no Helm here: {error}")
