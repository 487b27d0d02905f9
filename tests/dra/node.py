"""A driver's claims on a node whose API server and pods are in memory."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from cdi.names import QualifiedName
from cdi.store import load
from hami_plugin.allocation.ledger import Journal, JournalWriter
from hami_plugin.dra.prepared import ClaimFiles, PreparedClaims
from hami_plugin.dra.preparing import ClaimPreparer, ClaimRef, PreparingTiming
from hami_plugin.dra.slices import device_name
from hami_plugin.errors import ClusterError
from hami_plugin.model.delivery import Delivery, Way
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.node_status.registration import FamilySource
from tests.support.builders import FAMILY, NODE, changed, uuid
from tests.support.node import Node

DRIVER = "toy.hami.io"
BY_CDI = changed(FAMILY, delivery=Delivery(ways=(Way.CDI_CRI,), kind="hami.io/toy"))
SOON = PreparingTiming(release=0.05, pod=0.05)


class Api:
    """ResourceClaims by namespace and name."""

    def __init__(self):
        self.claims, self.reads, self.down = {}, 0, False

    async def get_claim(self, namespace, name):
        self.reads += 1
        if self.down:
            raise ClusterError("the API server is away")
        try:
            return self.claims[namespace, name]
        except KeyError:
            raise ClusterError("not found", status=404) from None


@dataclass
class Claims:
    """As the daemon wires them. ``again`` keeps the files, as after a kill."""

    root: Path
    api: Api = field(default_factory=Api)
    timing: PreparingTiming = SOON
    family: object = BY_CDI
    taken: dict = field(default_factory=dict)
    accepting: bool = True

    def __post_init__(self):
        self.specs = self.root / "cdi"
        self.specs.mkdir(exist_ok=True)
        self.node = Node(self.root)
        self.writer = JournalWriter(Journal(self.root / "claims"))
        self.prepared = PreparedClaims(self.writer)
        self.prepared.load()
        source = FamilySource(family=self.family, snapshot=self.node.snapshot)
        state = self.node._state()
        self.preparer = ClaimPreparer(
            DRIVER,
            [source],
            state,
            self.prepared,
            ClaimFiles(DRIVER, self.specs, self.node.host),
            guard=self.node.guard,
            cluster=self.api,
            taken=lambda: self.taken,
            accepting=self.accepting,
            timing=self.timing,
        )

    def again(self, **changes):
        """Another life of the daemon: memory is gone, the API server and the pods are not."""
        self.writer.close()
        one = Claims(**{"root": self.root, "api": self.api, "timing": self.timing, "taken": self.taken, **changes})
        one.node.pods.replace(self.node.pods.pods)
        return one

    def claim(self, name, *results, containers=None, shared=(), **changes):
        """An allocated claim and its pod, which is known here: the answer names it.

        ``containers`` are requests by container; ``results`` are as ``given`` makes them.
        """
        uid = f"uid-{name}"
        listed = containers or {"main": [""]}
        views = tuple(
            ContainerView(name=one, claims=tuple(("gpu", request) for request in requests))
            for one, requests in listed.items()
        )
        pod = PodView(uid=f"0-{name}", namespace="team", name=name, node=NODE, containers=views, claims={"gpu": name})
        self.node.pods.update(pod)
        reserved = [{"resource": "pods", "name": one, "uid": f"0-{one}"} for one in (name, *shared)]
        self.api.claims["team", name] = {
            "metadata": {"namespace": "team", "name": name, "uid": uid},
            "status": {"allocation": {"devices": {"results": list(results)}}, "reservedFor": reserved, **changes},
        }
        return ClaimRef(uid=uid, namespace="team", name=name)

    async def prepare(self, *refs):
        return await self.preparer.prepare(refs)

    async def names(self, ref):
        """The CDI names of a claim that is prepared, in the order of the answer."""
        one = (await self.prepare(ref))[ref.uid]
        assert not isinstance(one, Exception), one
        return [name for device in one.devices for name in device.cdi_devices]

    def limits(self, names):
        """What the claim's spec gives for these names, without the cards."""
        own = [QualifiedName.parse(name) for name in names if name.startswith(DRIVER)]
        return dict(load([self.specs], yaml=None).resolve(own).env) if own else {}

    def files(self):
        return sorted(path.name for path in self.specs.iterdir())


def given(number, *, request="gpu", memory="1000Mi", cores="10", slots="1", share="s1", **changes):
    """A result of the scheduler: a part of a card."""
    consumed = {"memory": memory, "cores": cores, "slots": slots}
    fields = {"request": request, "driver": DRIVER, "pool": NODE, "device": device_name(uuid(number))}
    return {**fields, "shareID": share, "consumedCapacity": consumed, **changes}


async def soon(task):
    """A task that waits for something else, once it has begun to."""
    waiting = asyncio.ensure_future(task)
    await asyncio.sleep(0)
    return waiting
