"""Case v, too: every simulated machine by claims, a whole device and a part of one, as docs/reference/claims.md tells.

The node has one machine of each vendor at a time. A container is to have by a claim what was reviewed of its machine
(``tests/vendors/golden``), and nothing of any other device.
"""

import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest

import pytest

from hami_plugin.dra.slices import driver_name
from hami_plugin.simulation.hardware import vendor_of
from tests.charts.stand_in import kubeconfig
from tests.docs.test_claims_page import PAGE, inside
from tests.dra.test_vendors import MACHINES
from tests.realnode import versions
from tests.realnode.api import ADMIN
from tests.realnode.claims import BACK_S, CLAIM, Claims, request
from tests.realnode.conftest import SHARES
from tests.realnode.daemon import PERMITTED, Daemon
from tests.realnode.ground import KEYS, NAME
from tests.realnode.node import Node
from tests.realnode.pods import Pods
from tests.realnode.servers import until
from tests.support.builders import NODE
from tests.support.machines import (
    CUT,
    Case,
    expected,
    reviewed,
    reviewed_device,
    reviewed_mounts,
    reviewed_variables,
)
from tests.support.pages import ROOT
from tests.support.scale import sized

pytestmark = [
    pytest.mark.case("v", "devices by ResourceClaims: every simulated machine"),
    pytest.mark.since(versions.CONSUMABLE),
]
INSTANCE = "node.kubernetes.io/instance-type"
VNPU = "/usr/local/hami-vnpu-core"
STANDING_IN = ("/usr/local/vgpu/libamvgpu.so", f"{VNPU}/libvnpu.so", f"{VNPU}/ld.so.preload")
"""Of limiters that no image of ours has."""
RUN_S, EXPLAIN_S = 180, 30
CONFIG = "/run/administrator.json"


def batches() -> list[tuple[Case, ...]]:
    """Machines that one daemon serves at once, one of each vendor; without those that are cut, which are served so."""
    of_vendor: dict[str, list[Case]] = defaultdict(list)
    for case in MACHINES:
        if case.profile not in CUT:
            of_vendor[vendor(case)].append(case)
    return [tuple(filter(None, some)) for some in zip_longest(*of_vendor.values())]


def vendor(case: Case) -> str:
    return str(vendor_of(case.machine).name)


BATCHES = sized(batches()[1:2], batches())
CASES = [pytest.param(case, batch, id=str(case)) for batch in BATCHES for case in batch]


def device(case: Case) -> str:
    """The UUID of the device of which is told what was reviewed. Some have their node's name in it."""
    uuid = reviewed_device(case)
    return uuid.replace(NODE, NAME, 1) if uuid.startswith(f"{NODE}-") else uuid


@dataclass(slots=True, kw_only=True)
class Stage:
    """The daemon with the machines of one batch, and pods with claims for each, of which some are ``waiting``."""

    daemon: Daemon
    claims: Claims
    batch: tuple[Case, ...] = ()
    waiting: list[str] = field(default_factory=list)

    def serve(self, batch: tuple[Case, ...]) -> None:
        """Have the daemon serve these machines, and their pods run, if that is not so."""
        if self.batch == batch:
            return
        self.clear()
        node = self.daemon.node
        for case in batch:
            if kind := case.machine.extra.get("instance_type"):
                node.kubectl("label", "--overwrite", "node", NAME, f"{INSTANCE}={kind}")
        sections = {vendor(case): {"frontEnd": "dra", **case.way.settings} for case in batch}
        self.daemon.serve([case.profile for case in batch], [VNPU], **sections)
        for case in batch:
            self._submit(case)
        self.claims.pods.await_running(*set(self.claims.pods.names) - set(self.waiting), within_s=RUN_S)
        self.batch = batch

    def _submit(self, case: Case) -> None:
        """A pod with a whole device, and one with a part of another."""
        driver, own, count = driver_name(vendor(case)), device(case), len(expected(case))
        whole, part = f"whole-{vendor(case)}", f"part-{vendor(case)}"

        def published() -> list[str]:
            uuids = self.claims.uuids(driver)
            return uuids if len(uuids) == count and own in uuids else []

        until(published, f"the slices of {case}, with {own}", BACK_S)
        capacity = next(iter(self.claims.devices(driver).values())).get("capacity", {})
        shared = "slots" in capacity
        everything = {name: one["value"] for name, one in capacity.items()} if shared else {}
        self.claims.create(whole, request(driver=driver, uuid=own, **everything))
        other = next((one for one in published() if one != own), own)
        self.claims.create(part, request(driver=driver, uuid=other, memory="3000Mi", cores="30"))
        if not shared:
            self.waiting.append(part)

    def clear(self) -> None:
        self.batch = ()
        self.waiting.clear()
        self.claims.clear()


@pytest.fixture(scope="module")
def stage(installed, node):
    for name in STANDING_IN:
        node.enclosure.write(name, "stands for a limiter")
    claims = Claims(node=node, pods=Pods(node=node, place=node.api.create_pod))
    made = Stage(daemon=installed, claims=claims)
    yield made
    made.clear()
    node.kubectl("label", "node", NAME, f"{INSTANCE}-")
    installed.configure()
    until(lambda: node.allocatable("nvidia.com/gpu") == SHARES, "all shares", BACK_S)


@pytest.mark.parametrize(("case", "batch"), CASES)
def test_a_container_has_its_claims_device_as_reviewed_and_a_part_where_there_are_parts(stage, case, batch):
    stage.serve(batch)
    pods, name = stage.claims.pods, vendor(case)

    whole = pods.granted(f"whole-{name}")

    told = reviewed(case, "whole")
    own, others = stage.claims.nodes(device(case))
    assert whole.devices.keys() == own >= set(told.get("nodes", ()))
    assert not whole.devices.keys() & others
    assert {one.reading for one in whole.devices.values()} <= PERMITTED
    if not case.way.annotations:  # which ask for a limiter, as claims do by amounts alone
        assert reviewed_variables(told).items() <= whole.env.items()
        assert reviewed_mounts(told) <= whole.mounts.keys()
    part, why = {}, ""
    if f"part-{name}" in stage.waiting:
        why = _refused(stage, f"part-{name}")
    else:
        seen, told = pods.granted(f"part-{name}"), reviewed(case, "share")
        assert reviewed_variables(told).items() <= seen.env.items()
        assert reviewed_mounts(told) <= seen.mounts.keys()
        part = seen.env
    assert inside(case, own, whole.env, part, f"waits: {why}") in (ROOT / PAGE).read_text(encoding="utf-8").splitlines()


def _refused(stage: Stage, pod: str) -> str:
    """Kube-scheduler has no device for the pod; what `explain` says that all of them lack."""
    stage.claims.await_waiting(pod)
    said = _explained(stage.daemon.node, stage.claims.of(pod)["metadata"]["name"])
    return said.rpartition(f"request {CLAIM}: ")[2].strip()


def _explained(node: Node, claim: str) -> str:
    """What an administrator is told of a claim that waits."""
    authority = node.path(f"{KEYS}/ca.crt").read_bytes()
    node.enclosure.write(CONFIG, kubeconfig("https://127.0.0.1:443", authority=authority, token=ADMIN))
    command = (sys.executable, "-m", "hami_plugin", "dra", "explain", claim, f"--kubeconfig={node.path(CONFIG)}")
    run = partial(subprocess.run, command, capture_output=True, text=True, timeout=EXPLAIN_S, check=False)
    done = node.network.run(run)
    assert done.returncode == 1, done.stderr  # it waits
    return str(done.stdout)
