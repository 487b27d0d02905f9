"""Which Kubernetes the real node runs: Debian's 1.20, or one that is pinned as a Go module."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    """``version`` as in ``v1.37.2``."""

    version: str

    @property
    def name(self) -> str:
        """As in ``1.37``, which is how it is chosen."""
        return f"1.{self.minor}"

    @property
    def minor(self) -> int:
        return int(self.version.split(".")[1])

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
    pinned = (Kubernetes(version=KUBERNETES.pinned(minor).version) for minor in KUBERNETES.minors())
    return {one.name: one for one in (DEBIANS, *pinned)}


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
