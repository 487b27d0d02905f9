"""What a kubelet remembers of device plugins: which ids exist, how they are, and which container holds which.

Values and bookkeeping only; the calls to plugins are in ``kubelet``. The rules are those of the kubelet's device
manager, with no topology policy.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hami_plugin.errors import HamiError
from hami_plugin.kubelet.messages import allocate_response
from hami_plugin.model.delivery import Answer
from hami_plugin.model.ports import Offer
from hami_plugin.model.views import ContainerView, PodView


class AdmissionError(HamiError):
    """A pod that the kubelet does not admit: it becomes Failed, with ``reason``. ``code`` is the plugin's status."""

    reason = "UnexpectedAdmissionError"

    def __init__(self, message: str, *, code: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Allotment:
    """The ids of one resource that one container holds, in the order of its Allocate."""

    ids: tuple[str, ...]
    answer: Answer

    @cached_property
    def response(self) -> str:
        """The answer as the checkpoint has it: an AllocateResponse's container in base64."""
        return base64.b64encode(allocate_response(self.answer).SerializeToString()).decode()


Slot = tuple[str, str, str]
"""Pod UID, container, resource."""


class Ledger:
    """The devices that plugins listed, and who holds them. Allotments outlive a restart, lists do not."""

    def __init__(self) -> None:
        self.pods: dict[str, PodView] = {}
        self.allotments: dict[Slot, Allotment] = {}
        self._offers: dict[str, tuple[Offer, ...]] = {}

    @property
    def resources(self) -> tuple[str, ...]:
        """Every resource that a plugin ever registered."""
        return tuple(sorted(self._offers))

    def offers(self, resource: str) -> tuple[Offer, ...]:
        return self._offers.get(resource, ())

    def listed(self, resource: str, offers: Sequence[Offer]) -> None:
        """A plugin's newest list: it replaces the one before."""
        self._offers[resource] = tuple(offers)

    def fail(self, resource: str) -> None:
        """The plugin's stream ended: every device is unhealthy until the next list."""
        self.listed(resource, [replace(offer, healthy=False) for offer in self.offers(resource)])

    def forget_lists(self) -> None:
        """A restart: resources stay known by name, with no device."""
        self._offers = dict.fromkeys(self._offers, ())

    def healthy(self, resource: str) -> frozenset[str]:
        return frozenset(offer.id for offer in self.offers(resource) if offer.healthy)

    def taken(self, resource: str) -> frozenset[str]:
        return frozenset(device for slot, held in self.allotments.items() if slot[2] == resource for device in held.ids)

    def held_by(self, uid: str, container: str) -> dict[str, Allotment]:
        """Resource → allotment of one container."""
        return {slot[2]: held for slot, held in self.allotments.items() if slot[:2] == (uid, container)}

    def remove(self, uid: str) -> None:
        """The pod is gone: its ids are free."""
        self.pods.pop(uid, None)
        self.allotments = {slot: held for slot, held in self.allotments.items() if slot[0] != uid}

    def free(self, resource: str, needed: int) -> frozenset[str]:
        """Healthy ids that nobody holds. ``AdmissionError`` when they are fewer than ``needed``."""
        healthy = self.healthy(resource)
        if not healthy:
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        free = healthy - self.taken(resource)
        if len(free) < needed:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. Requested: {needed}, Available: {len(free)}"
            )
        return free


class Reuse:
    """Ids that a pod's init containers leave to the containers after them."""

    def __init__(self) -> None:
        self._ids: dict[str, set[str]] = {}

    def of(self, resource: str) -> frozenset[str]:
        return frozenset(self._ids.get(resource, ()))

    def after(self, container: ContainerView, held: Mapping[str, Allotment]) -> None:
        """A plain init container ends and leaves its ids; any other keeps what it took."""
        for resource, allotment in held.items():
            ids = self._ids.setdefault(resource, set())
            if container.init and not container.restartable:
                ids.update(allotment.ids)
            else:
                ids.difference_update(allotment.ids)


def wanted(container: ContainerView, resources: Iterable[str]) -> dict[str, int]:
    """Resource → amount, of those resources that plugins have registered. The kubelet ignores all others."""
    return {resource: amount for resource in resources if (amount := container.amount(resource)) > 0}
