"""How a decision is written down at the pod."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from hami_plugin.model.views import PodView
from hami_plugin.protocol.keys import ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME, PHASE_ALLOCATING
from hami_plugin.scheduler.engine.pods import Placed
from hami_plugin.sdk import Family

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What to write to a pod's metadata."""

    annotations: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def merge_patch(self) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
        """The body of a merge patch."""
        labels = {"labels": self.labels} if self.labels else {}
        return {"metadata": {"annotations": self.annotations, **labels}}


def patch(families: Iterable[Family], pod: PodView, placed: Placed) -> Mapping[str, str]:
    """What is written to the pod beside the time: its node, and each family's part, one entry for each container."""
    written = {ASSIGNED_NODE: placed.site.node.name}
    decided = replace(pod, annotations={**pod.annotations, **written})
    for family in families:
        if family.device_type in placed.given:
            written |= family.rules.patch(family, decided, placed.given)
    return written


def assigned(families: Iterable[Family], pod: PodView, placed: Placed, now: datetime) -> Changes:
    """The whole decision, before the pod is bound."""
    return labelled({**patch(families, pod, placed), ASSIGNED_TIME: _seconds(now)})


def binding(now: datetime) -> Changes:
    """The pod is about to be bound: the node's daemon may hand out what was decided."""
    return Changes(annotations={BIND_PHASE: PHASE_ALLOCATING, BIND_TIME: _seconds(now)})


TAKEN_BACK = Changes(annotations={ASSIGNED_NODE: ""})
"""The pod holds nothing of any node: what was decided before is no more, for any scheduler that reads it."""


def labelled(annotations: Mapping[str, str]) -> Changes:
    """Annotations, and the pod's node as a label too: monitors select pods by it.

    A node's name may be longer than a label can be. Then there is none, since the API server would refuse it all.
    """
    node = annotations.get(ASSIGNED_NODE, "")
    return Changes(annotations=annotations, labels={ASSIGNED_NODE: node} if _LABEL.fullmatch(node) else {})


def _seconds(now: datetime) -> str:
    return str(int(now.timestamp()))
