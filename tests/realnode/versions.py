"""Which Kubernetes the real node runs: Debian's 1.20, or one that is pinned as a Go module."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.realnode import build
from tests.realnode.modules import KUBERNETES
from tools.debian.commands import LackingError

VARIABLE = "KUBERNETES"
CDI_FIELD, SIDECARS, POLICIES = 29, 29, 30
"""Minor versions since when, without a switch, a kubelet passes on the CDI names of an Allocate answer, init containers
may run beside the others, and an API server has ValidatingAdmissionPolicy."""
INIT_AMOUNTS, DEVICE_HEALTH = 34, 36
"""The same: init containers may ask for memory and cores, and a pod's status tells the health of its devices."""
RESTARTS = 35
"""The same: a kubelet may be told to start containers that fail again soon."""
CLAIMS, CONSUMABLE = 34, 36
"""The same: an API server has resource.k8s.io/v1, and several claims may have parts of one device."""
COUNTERS_APART, SHARES_TOLD = 35, 35
"""Whatever their gates, older ones have counters in the slices of their devices, and do not tell the shares of devices
by PodResources.
"""
GATES = (
    *("DRAConsumableCapacity", "DRAPartitionableDevices", "DRADeviceTaints", "DRAExtendedResource"),
    "ResourceHealthStatus",
)
"""What is on since 1.36, and may be switched on where there are ``CLAIMS``."""
SWITCHED_ON = "-gates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    """``version`` as in ``v1.37.2``. ``gates`` are switched on for all of its servers."""

    version: str
    gates: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As in ``1.37``, which is how it is chosen; as in ``1.34-gates`` with the gates on."""
        return f"1.{self.minor}{SWITCHED_ON if self.gates else ''}"

    @property
    def minor(self) -> int:
        return int(self.version.split(".")[1])

    @property
    def as_new_as(self) -> int:
        """The minor version whose functions it has, with its gates."""
        return max(self.minor, CONSUMABLE) if self.gates else self.minor

    @property
    def switches(self) -> tuple[str, ...]:
        """What each of its servers is told beside all else."""
        return (f"--feature-gates={','.join(f'{gate}=true' for gate in self.gates)}",) if self.gates else ()

    @property
    def quick_restarts(self) -> Mapping[str, Any]:
        """A kubelet's settings by which it starts containers that fail again after a second."""
        switch = {} if self.minor >= RESTARTS else {"featureGates": {"KubeletCrashLoopBackOffMax": True}}
        return {"crashLoopBackOff": {"maxContainerRestartPeriod": "1s"}, **switch}

    @property
    def has_policies(self) -> bool:
        """Its API server has ValidatingAdmissionPolicy, without a switch."""
        return self.minor >= POLICIES

    @property
    def is_debians(self) -> bool:
        """Debian has its source: nothing but Debian's mirror is asked."""
        return self == DEBIANS


DEBIANS = Kubernetes(version=build.VERSION)


def known() -> Mapping[str, Kubernetes]:
    """Those that can be chosen by their names, the oldest first."""
    pinned = [Kubernetes(version=KUBERNETES.pinned(minor).version) for minor in KUBERNETES.minors()]
    switched_on = [replace(one, gates=GATES) for one in pinned if CLAIMS <= one.minor < CONSUMABLE]
    return {one.name: one for one in (DEBIANS, *pinned, *switched_on)}


def chosen() -> Kubernetes:
    """What the variable ``KUBERNETES`` names, the newest by default. ``LackingError`` for an unknown one."""
    name = os.environ.get(VARIABLE) or f"1.{max(one.minor for one in known().values())}"
    found = known().get(name)
    if found is None:
        raise LackingError(
            f"{VARIABLE}={name} is not known; there are {', '.join(known())} "
            f"(try: python -m tests.realnode.pin kubernetes {name}.0)"
        )
    return found
