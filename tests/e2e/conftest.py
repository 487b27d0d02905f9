"""The production daemon as a process, on a simulated node."""

import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from hami_plugin.demo.node import CONFIGURATION, SimulatedNode, execute, simulated_node
from tests.e2e.steps import start
from tests.support.forked import launch


def pytest_collection_modifyitems(items):
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.e2e)


@pytest.fixture
async def set_up(request):
    """Build a stage: ``set_up(profile, key=value…)`` with keys of the daemon's configuration. It does not run yet.

    Its daemons are forked, but for those of tests with ``@pytest.mark.executed``.
    """
    executed = request.node.get_closest_marker("executed") is not None
    async with AsyncExitStack() as stack:

        async def build(profile: str = "dgx-h100", *, seed: int = 1, **configuration) -> SimulatedNode:
            configuration = {**CONFIGURATION, "decisionWaitSeconds": 1.0, **configuration}
            stage = await stack.enter_async_context(simulated_node(profile, configuration=configuration, seed=seed))
            stage.launch = execute if executed else launch
            return stage

        yield build


@pytest.fixture
async def running(set_up):
    """As ``set_up``, with a daemon that offers every device."""

    async def build(*arguments, **configuration) -> SimulatedNode:
        stage = await set_up(*arguments, **configuration)
        await start(stage)
        return stage

    return build
