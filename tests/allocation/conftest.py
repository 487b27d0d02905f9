"""One node's use-cases, wired to an API server and a kubelet in memory."""

import pytest

from tests.support.node import Node


@pytest.fixture
async def node(tmp_path):
    node = Node(root=tmp_path)
    yield node
    await node.settlement.close()
    node.journal.close()
