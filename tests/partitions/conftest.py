"""Cards that can be cut, and what acts on them without a daemon around it."""

import pytest

from tests.support.partition_agent import Agent
from tests.support.partitions import A100, Cards


@pytest.fixture
def cards():
    return Cards(tables={"GPU-0": A100, "GPU-1": A100})


@pytest.fixture
def agent(tmp_path, cards):
    return Agent(cards=cards, path=tmp_path / "partitions")
