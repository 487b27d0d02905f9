"""What a pod's annotations must say once shares have been handed out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hami_plugin.errors import WireError
from hami_plugin.model.views import PodView
from hami_plugin.policy.identity import Held
from hami_plugin.protocol.decisions import Question, asking, claims, erase
from hami_plugin.protocol.keys import BIND_PHASE, PHASE_SUCCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """``changes`` to the pod's annotations, none if they say so already; ``finished``: nothing is left to hand out."""

    changes: Mapping[str, str]
    finished: bool


def record(pod: PodView, questions: Sequence[Question], held: Mapping[tuple[str, str, str], Held]) -> Record:
    """Compare the pod's annotations with what was handed out to it, over all of this node's resources.

    A container's share stays to be read until the kubelet has asked for all resources that it is counted by.
    """
    changes: dict[str, str] = {}
    waiting = decided = 0
    for question in questions:
        if question.decision not in pod.annotations or not asking(pod, question.resource, *question.also):
            continue  # families may share an annotation
        text = changes.get(question.decision, pod.annotations[question.decision])
        try:
            shares = claims(pod, question)
        except WireError:
            waiting += 1
            continue
        for claim in shares:
            decided += 1
            if claim.piece is None:
                continue
            counted = (one for one in (question.resource, *question.also) if claim.container.amount(one) > 0)
            if all((pod.uid, claim.container.name, one) in held for one in counted):
                text = erase(text, claim.piece)
            else:
                waiting += 1
        if question.to_allocate and text != pod.annotations[question.to_allocate]:
            changes[question.to_allocate] = text
    finished = decided > 0 and waiting == 0
    if finished and pod.annotations.get(BIND_PHASE) != PHASE_SUCCESS:
        changes[BIND_PHASE] = PHASE_SUCCESS
    return Record(changes=changes, finished=finished)
