"""Case v, too: the daemon is killed at each step of preparing and releasing a claim."""

from pathlib import Path

import pytest

from tests.realnode import versions
from tests.realnode.asked import NAMESPACE
from tests.realnode.claims import Claims, request
from tests.realnode.kubelet import configured
from tests.realnode.mig import TRAP
from tests.realnode.pods import Pods
from tests.realnode.servers import until

pytestmark = [
    pytest.mark.full,
    pytest.mark.case("v", "devices by ResourceClaims: shared, whole, and through every restart"),
    pytest.mark.since(versions.CONSUMABLE),
]
PREPARING = (
    "before note begun",
    "after note begun",
    "before spec",
    "after spec",
    "before note done",
    "after note done",
)
RELEASING = ("before remove", "after remove", "before drop", "after drop")
CARDS, AGAIN_S = 8, 90


@pytest.fixture(scope="module")
def trapped(installed, node):
    """Cards go by claims, the daemon can be stopped at any step, and a kubelet starts it again at once."""
    installed.await_ready()
    folder = node.path(TRAP)
    folder.mkdir(exist_ok=True)
    before = {path: path.read_bytes() for path in folder.glob("*.py")}
    (folder / "sitecustomize.py").write_bytes(Path(__file__).with_name("trap_claims.py").read_bytes())
    with configured(node, installed, **node.kubernetes.quick_restarts):
        installed.configure(nvidia={"frontEnd": "dra"}, extraEnv=[{"name": "PYTHONPATH", "value": TRAP}])
        installed.machine().make_nodes_real()
        yield installed
        installed.configure()
        until(lambda: node.allocatable("nvidia.com/gpu") == CARDS * 10, "all shares", 60)
    for path, text in before.items():
        path.write_bytes(text)


@pytest.fixture
def claims(trapped, node):
    made = Claims(node=node, pods=Pods(node=node, place=node.api.create_pod))
    trapped.await_ready()
    until(lambda: len(made.devices()) == CARDS, "all cards in the slices", 60)
    yield made
    made.clear()


class Trap:
    """The daemon stands still at one moment, and is killed there."""

    def __init__(self, daemon, node):
        self.daemon, self.folder = daemon, node.path(TRAP)

    def lay(self, moment):
        (self.folder / "reached").unlink(missing_ok=True)
        (self.folder / "wanted").write_text(moment)

    def kill(self):
        until((self.folder / "reached").exists, "the moment", AGAIN_S)
        before = self.daemon.restarts()
        self.daemon.kill()
        until(lambda: self.daemon.restarts() > before and self.daemon.is_ready(), "another process", AGAIN_S)


@pytest.fixture
def trap(trapped, node):
    return Trap(trapped, node)


@pytest.mark.parametrize("moment", PREPARING)
def test_a_pod_whose_claim_was_being_prepared_runs_with_its_own_limits(claims, trap, moment):
    trap.lay(moment)
    name = claims.create("begun", request(memory="1234Mi", cores="12"))

    trap.kill()

    claims.pods.await_running(name, within_s=AGAIN_S)
    env = claims.pods.report(name).env
    assert (env["CUDA_DEVICE_MEMORY_LIMIT_0"], env["CUDA_DEVICE_SM_LIMIT"]) == ("1234m", "12")
    assert len(claims.specs()) == len(claims.prepared()) == 1
    claims.end(name)
    claims.await_free()


@pytest.mark.parametrize("moment", RELEASING)
def test_a_pod_whose_claim_was_being_released_ends_and_its_card_is_free(claims, trap, node, moment):
    pinned = claims.uuids()[0]
    name = claims.run("ends", request(uuid=pinned, slots="10"))
    trap.lay(moment)

    node.api.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
    trap.kill()

    claims.end(name)
    claims.await_free()
    claims.run("next", request(uuid=pinned, slots="10"))
