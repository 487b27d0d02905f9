"""A container's answer from its own edits and its devices: inlined, or named for a runtime that reads CDI specs."""

from __future__ import annotations

import uuid

from cdi.edits import ContainerEdits
from hami_plugin.model.delivery import ANSWERED_FOR, Answer, Delivery, Way, whose
from hami_plugin.model.placement import Assignment


def answered(delivery: Delivery, assignment: Assignment, own: ContainerEdits, described: ContainerEdits) -> Answer:
    """``own`` travels in any case; ``described`` is what the devices add where the answer must carry it itself."""
    names = tuple(delivery.name(share.device.uuid) for share in assignment.shares)
    annotations = {ANSWERED_FOR: whose(assignment.pod.uid, assignment.container.name)}
    if Way.CDI_ANNOTATIONS in delivery.ways:
        annotations[_key(delivery, assignment)] = ",".join(names)
    return Answer(
        edits=described.merged(own) if Way.DEVICE_SPECS in delivery.ways else own,
        annotations=annotations,
        cdi_devices=names if Way.CDI_CRI in delivery.ways else (),
    )


def _key(delivery: Delivery, assignment: Assignment) -> str:
    """The same for the same container, so that an Allocate that is repeated gives the same answer; other families'
    differ, since the kubelet puts the annotations of all of them together.
    """
    whose = f"{delivery.kind}/{assignment.pod.uid}/{assignment.container.name}"
    return f"{delivery.annotation_prefix}hami-plugin_{uuid.uuid5(uuid.NAMESPACE_OID, whose)}"
