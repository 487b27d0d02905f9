"""What this program may ask of the API server, call by call. The manifests grant this and nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A verb on a resource of an API group, as RBAC spells them (``pods/binding``), and the calls it is for."""

    resource: str
    verb: str
    why: str
    group: str = ""


def _rights(resource: str, group: str = "", **verbs: str) -> tuple[Right, ...]:
    return tuple(Right(resource=resource, verb=verb, why=why, group=group) for verb, why in verbs.items())


DAEMON = (
    *_rights(
        "nodes",
        get="the newest version of the node, before the node lock is released",
        list="the own node, after a gap in the watch",
        watch="notice at once when an annotation of ours is removed, and when the lock changes",
        patch="the register and score annotations; the release of the node lock",
    ),
    *_rights(
        "pods",
        list="this node's pods, at the start and after a gap in the watch",
        watch="the scheduler's decisions, as they are made",
        patch="cross out what was handed out, and set hami.io/bind-phase",
    ),
    *_rights(
        "events",
        create="why a pod was refused, why a device is unhealthy",
        patch="count a repeated Event up instead of writing a second one",
    ),
)
"""The node daemon: ``client.ApiServer``."""

DRIVERS = (
    *_rights(
        "resourceslices",
        "resource.k8s.io",
        list="this node's slices, at the start and after a gap in the watch",
        watch="notice at once when the kubelet deletes slices of ours",
        create="the devices that this node offers to claims",
        update="... as they change",
        delete="a slice that is needed no more",
    ),
    *_rights("resourceclaims", "resource.k8s.io", get="what a claim was allocated, before it is made ready"),
)
"""The node daemon as well, where a vendor's devices go by ResourceClaims."""

SCHEDULER = (
    *_rights(
        "nodes",
        get="the newest version of the node, before its lock is taken or released",
        list="all nodes, at the start and after a gap in the watch",
        watch="registers, health and locks, as they change",
        patch="the node lock and the handshake",
    ),
    *_rights(
        "pods",
        get="the newest version of the pod, before it is bound",
        list="all pods that have not ended, at the start and after a gap in the watch",
        watch="what is given, and what has become free",
        patch="the decision",
    ),
    *_rights("pods/binding", create="the pod goes to the node that was decided"),
    *_rights(
        "resourcequotas",
        list="quotas on devices, at the start and after a gap in the watch",
        watch="... as they change",
    ),
    *_rights(
        "events",
        create="why a pod waits",
        patch="count a repeated Event up instead of writing a second one",
    ),
)
"""The scheduler process: ``wide.WholeCluster``."""

CLAIMS = (
    *_rights(
        "resourceclaimtemplates",
        "resource.k8s.io",
        get="whether the template that a pod's claim needs is there",
        create="... before the pod names it",
        patch="note when it was last used",
        list="those that we have made, every ten minutes",
        delete="one that nobody has used for an hour",
    ),
    *_rights("deviceclasses", "resource.k8s.io", get="the owner of templates, with which they go"),
)
"""The scheduler process as well, where it gives pods claims in place of limits."""
