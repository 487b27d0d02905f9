"""By which ways a container receives its devices, and the whole answer that the kubelet is given for one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cdi.spec import ContainerEdits


class Way(StrEnum):
    """The names are HAMi's, but for ``device-specs``, which is its flag ``pass-device-specs``.

    ``envvar`` and ``volume-mounts`` tell a vendor's own container runtime which devices to inject. ``device-specs``
    puts a device's nodes and mounts into the answer itself, which every runtime understands. The two of CDI name the
    device and leave the rest to the runtime: in an annotation that it reads, or in the field that newer kubelets pass
    on to it.
    """

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    DEVICE_SPECS = "device-specs"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"

    @property
    def cdi(self) -> bool:
        return self in CDI_WAYS


CDI_WAYS = frozenset({Way.CDI_ANNOTATIONS, Way.CDI_CRI})


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How a family's devices are handed over. ``kind`` is the CDI vendor and class, as ``hami.io/gpu``."""

    ways: tuple[Way, ...] = (Way.DEVICE_SPECS,)
    kind: str = ""
    annotation_prefix: str = "cdi.k8s.io/"

    @property
    def cdi(self) -> bool:
        """Whether a runtime must find the devices in CDI specs."""
        return not CDI_WAYS.isdisjoint(self.ways)

    def name(self, device: str) -> str:
        """A device's fully qualified CDI name."""
        return f"{self.kind}={device}"


ANSWERED_FOR = "hami-plugin.io/answered-for"
"""The annotation in which each answer says whom it was made for. The kubelet keeps it with the answer."""


def container_key(uid: str, container: str) -> str:
    """A container of a pod, in that annotation."""
    return f"{uid}/{container}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the kubelet is answered for one container: edits it carries itself, and CDI names for the runtime."""

    edits: ContainerEdits = field(default_factory=ContainerEdits)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()

    def merged(self, other: Answer) -> Answer:
        """Both answers, as for a container that holds devices of two resources."""
        return Answer(
            edits=self.edits.merged(other.edits),
            annotations={**self.annotations, **other.annotations},
            cdi_devices=tuple(dict.fromkeys((*self.cdi_devices, *other.cdi_devices))),
        )
