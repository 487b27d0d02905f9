"""A node whose cards go by ResourceClaims: the daemon's process, and the scheduler and kubelet that bring up pods."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager, suppress

import yaml

from cdi.names import QualifiedName
from cdi.store import load
from hami_plugin.demo.node import GUARD_S
from hami_plugin.model.views import pod_view
from hami_plugin.simulation.dra import ClaimManager, allocate, deallocate, pool_slices

PROFILE, DRIVER, NAMESPACE = "hgx-a100-4gpu", "nvidia.hami.io", "demo"


def spec_directories(parent):
    """Where the daemon writes CDI specs: the last one, as of a runtime, is in memory."""
    found = [parent / name for name in ("etc", "run")]
    for directory in found:
        directory.mkdir()
    return found


class Stage:
    """A node whose cards go by claims, and the scheduler and kubelet that bring pods up there."""

    def __init__(self, node, directories, driver=DRIVER):
        self.node, self.api, self.directories, self.driver = node, node.api, directories, driver
        self.kubelet = ClaimManager(node.directory, node.api, node.node)

    async def start(self, begin=None):
        """Start the daemon, and wait until the kubelet has it: what it knows of a killed one does not count."""
        before = len(self.kubelet.notified)
        await (begin or self.node.start_daemon)()
        await self.node.until(
            lambda: (
                self.whole()
                and self.kubelet.registered(self.driver)
                and (self.driver, "") in self.kubelet.notified[before:]
            ),
            "the driver",
            GUARD_S,
        )

    def whole(self):
        """The devices that a scheduler would give out: none while slices of the newest generation are missing."""
        specs = pool_slices(self.api, self.driver, self.node.node)
        return [device for spec in specs for device in spec.get("devices", ())]

    def published(self):
        return [device for one in self.api.slices() for device in one["spec"].get("devices", ())]

    def place(self, name, *, containers=("main",), request=None, config=(), **asked):
        """A pod with a claim of its own, allocated and bound: each container has the one request."""
        exactly = request or {"deviceClassName": self.driver, "capacity": {"requests": asked}}
        request = {"name": "gpu", "exactly": exactly}
        devices = {"requests": [request], "config": list(config)}
        claim = self.api.create_claim(
            {"metadata": {"name": f"{name}-gpu", "namespace": NAMESPACE}, "spec": {"devices": devices}}
        )
        listed = [{"name": one, "resources": {"claims": [{"name": "gpu"}]}} for one in containers]
        spec = {"containers": listed, "resourceClaims": [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}]}
        pod = self.api.create_pod({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
        allocate(self.api, claim, pod, self.node.node)
        return pod_view(self.api.bind(NAMESPACE, name, self.node.node))

    def edits(self, pod, container="main"):
        """What the runtime makes of the container's names."""
        names = self.kubelet.cdi_devices(pod, container)
        return load(self.directories, yaml=yaml.safe_load).resolve([QualifiedName.parse(name) for name in names])

    def end(self, pod):
        for claim in pod.claims.values():
            deallocate(self.api, NAMESPACE, claim)
            self.api.delete_claim(NAMESPACE, claim)
        self.api.delete_pod(NAMESPACE, pod.name)

    def entries(self):
        """The claims that the daemon's journal has, by UID: as the next life would read them."""
        found, journal = {}, self.node.directory / "state" / "claims"
        for line in journal.read_text().splitlines() if journal.exists() else ():
            with suppress(ValueError):  # a killed daemon was writing it
                entry = json.loads(line)
                if entry["op"] == "claim":
                    found[entry["uid"]] = entry
                else:
                    found.pop(entry["uid"], None)
        return found

    def leaks(self):
        """What is left of claims and of former lives while no claim is prepared: nothing should be."""
        left = [f"{uid} in the journal" for uid in self.entries()]
        for directory in (*self.directories, self.node.directory / "state"):
            left += [str(path) for path in directory.iterdir() if "hami-claim_" in path.name]
        writing = f".{self.node.daemon.pid}.tmp" if self.node.daemon else ""
        temporary = [path.name for path in (self.node.directory / "state").glob(".*.tmp")]
        left += [name for name in temporary if not (writing and name.endswith(writing))]
        for folder in ("plugins_registry", f"plugins/{self.driver}"):
            sockets = sorted(path.name for path in (self.node.directory / folder).iterdir())
            left += sockets[1:]
        return left

    def claim_files(self):
        return sorted(path.name for path in self.directories[-1].iterdir() if path.name.startswith("hami-claim_"))


@asynccontextmanager
async def staged(set_up, directories, front_end="dra", *, vendor="nvidia", profile=PROFILE, **section):
    node = await set_up(
        profile, cdiDirs=[str(one) for one in directories], vendors={vendor: {"frontEnd": front_end, **section}}
    )
    one = Stage(node, directories, f"{vendor}.hami.io")
    await one.kubelet.start()
    try:
        yield one
    finally:
        await one.kubelet.stop()
