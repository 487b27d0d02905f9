"""Case v, too: at each step of preparing a claim daemon, kubelet or both are killed, and at each of releasing one the
daemon.
"""

import signal
from pathlib import Path

import pytest

from tests.realnode import versions
from tests.realnode.asked import NAMESPACE
from tests.realnode.claims import Claims, request
from tests.realnode.kubelet import configured
from tests.realnode.mig import TRAP
from tests.realnode.pods import Pods
from tests.realnode.servers import until
from tests.runtimes.simulated import HOOK, HOOK_SCRIPT

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
        machine = installed.machine()
        machine.make_nodes_real()
        (machine.directory / HOOK).write_bytes(HOOK_SCRIPT.read_bytes())
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
    """The daemon stands still at one moment, and somebody is killed there."""

    def __init__(self, daemon, node):
        self.daemon, self.node, self.folder = daemon, node, node.path(TRAP)

    def lay(self, moment):
        (self.folder / "reached").unlink(missing_ok=True)
        (self.folder / "wanted").write_text(moment)

    def kill(self, *whom):
        """Kill them at once. A daemon that lives goes on then; a kubelet is started again."""
        reached, kubelet = self.folder / "reached", self.node.servers["kubelet"]
        until(reached.exists, "the moment", AGAIN_S)
        before = self.daemon.restarts()
        if "kubelet" in whom:
            kubelet.end(signal.SIGKILL)
        if "daemon" in whom:
            self.daemon.kill()
        else:
            reached.unlink()
        if "kubelet" in whom:
            kubelet.start()
            until(self.node.is_ready, "the node", AGAIN_S)
        restarted = before + ("daemon" in whom)
        until(lambda: self.daemon.restarts() >= restarted and self.daemon.is_ready(), "the daemon", AGAIN_S)


@pytest.fixture
def trap(trapped, node):
    return Trap(trapped, node)


@pytest.mark.parametrize("whom", [("daemon",), ("kubelet",), ("daemon", "kubelet")], ids=" and ".join)
@pytest.mark.parametrize("moment", PREPARING)
def test_a_pod_whose_claim_was_being_prepared_runs_with_its_own_limits(claims, trap, moment, whom):
    trap.lay(moment)
    name = claims.create("begun", request(memory="1234Mi", cores="12"))

    trap.kill(*whom)

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
    trap.kill("daemon")

    claims.end(name)
    claims.await_free()
    claims.run("next", request(uuid=pinned, slots="10"))
