"""Labels of the node that describe its devices, for node selectors and affinities.

Which labels are ours stands in an annotation beside them: only these are ever changed or removed. A label that somebody
else has set, as a vendor's feature discovery, stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hami_plugin.errors import HamiError
from hami_plugin.model.device import Snapshot, label_value, node_labels
from hami_plugin.model.views import NodeView
from hami_plugin.node_status.annotations import FamilySource
from hami_plugin.protocol.keys import LABELS, OWN

MAX_LABELS = 256
"""Of one node."""
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_KUBERNETES = re.compile(r"([^/]*\.)?(kubernetes|k8s)\.io/.*|[^/]*")
"""Keys that are never ours, whatever an annotation says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelling:
    """What to write to a node: ``labels`` and ``annotations``, None for what goes. ``foreign`` are keys of others."""

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()


def wanted_labels(sources: Iterable[FamilySource]) -> tuple[Mapping[str, str], bool]:
    """What the devices say, of each family in our words and in the vendor's; and whether all of them are known."""
    wanted: dict[str, str] = {}
    complete = True
    for source in sources:
        snapshot: Snapshot = source.snapshot.value
        if not snapshot.ready:
            complete = False
            continue
        wanted |= node_labels(f"{OWN}{label_value(source.family.resources.device_type)}", snapshot.devices)
        try:
            wanted |= source.family.node.labels(snapshot)
        except HamiError:  # logged and counted where it arose
            complete = False
    sound = {key: text for key, text in wanted.items() if _KEY.fullmatch(key) and label_value(text) == text}
    return dict(sorted(sound.items())[:MAX_LABELS]), complete


def own_labels(node: NodeView) -> frozenset[str]:
    """The keys of labels that the daemon has written to the node."""
    keys = node.annotations.get(LABELS, "").split(",")[:MAX_LABELS]
    return frozenset(key for key in keys if _KEY.fullmatch(key) and not _KUBERNETES.fullmatch(key))


def labelling(node: NodeView, wanted: Mapping[str, str], *, complete: bool) -> Labelling:
    """The changes after which the node has what is ``wanted``. Unless that is ``complete``, nothing is removed."""
    ours = own_labels(node)
    foreign = {key for key in wanted if key in node.labels and key not in ours}
    mine = {key: text for key, text in wanted.items() if key not in foreign}
    gone = ours - mine.keys() if complete else frozenset[str]()
    noted = ",".join(sorted((ours - gone) | mine.keys())) or None
    changes: dict[str, str | None] = {key: text for key, text in mine.items() if node.labels.get(key) != text}
    return Labelling(
        labels=changes | {key: None for key in gone if key in node.labels},
        annotations={LABELS: noted} if node.annotations.get(LABELS) != noted else {},
        foreign=tuple(sorted(key for key in foreign if node.labels[key] != wanted[key])),
    )
