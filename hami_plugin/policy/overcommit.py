"""Is a device given away more than once? A pod counts as what it has, or as little as any of HAMi's schedulers counts.

By the latter only that is too much which none of them can have decided. HAMi 2.10 takes the first of a pod's shares for
its init containers', as many as the pod has of these, whether or not they ask for devices, and forgets them once those
are over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import PodView
from hami_plugin.policy.identity import Held
from hami_plugin.protocol.decisions import Question, asking
from hami_plugin.scheduler.engine.states import added, collapsed

MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """All that a device has, in the units of its grants; 0 for what its family does not limit."""

    memory: int = 0
    cores: int = 0

    def holds(self, memory: int, cores: int) -> bool:
        """Whether the device has as much."""
        return not (0 < self.memory < memory or 0 < self.cores < cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """What a pod has of one device: ``early`` one after another while it is ``starting``, then ``late`` together."""

    name: str
    early: tuple[Grant, ...] = ()
    late: tuple[Grant, ...] = ()
    starting: bool = False

    @property
    def taken(self) -> Grant | None:
        """What it counts for; None where it has nothing any more."""
        early, late = ([(grant,) for grant in grants] for grants in (self.early, self.late))
        one = collapsed([*early, *late], len(early)) if self.starting else added(late)
        return one[0] if one else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Of ``what``, its memory or its cores, a device has ``total``. Others have ``held`` of it, by their names, most
    first, and a pod is to have ``asked``.
    """

    what: str
    total: int
    asked: int
    held: tuple[tuple[str, int], ...]

    def told(self, uuid: str, unit: str, name: str) -> str:
        """In words. ``name`` is the pod's that is to have it."""
        parts = [f"{holder} holds {amount}" for holder, amount in self.held[:MOST_NAMED]]
        if rest := self.held[MOST_NAMED:]:
            parts.append(f"{len(rest)} more hold {sum(amount for _holder, amount in rest)}")
        holders = f", of which {', '.join(parts)}" if parts else ""
        return f"{uuid} has {self.total} {unit}{holders}; pod {name} is to have {self.asked}"


Read = Callable[[PodView, Mapping[str, Grant], Question, bool], Tenant]
"""A pod with what its containers have of one device, by their names; and whether it is the one that asks."""


def least(pod: PodView, shares: Mapping[str, Grant], question: Question, asks: bool) -> Tenant:
    """As little as a scheduler of HAMi may count."""
    containers = asking(pod, question.resource, *question.also)
    inits = sum(container.init for container in pod.containers)
    early, late = containers[:inits], containers[inits:]
    return Tenant(
        name=pod.key,
        early=tuple(shares[one.name] for one in early if one.name in shares),
        late=tuple(shares[one.name] for one in late if one.name in shares),
        starting=asks,
    )


def exact(pod: PodView, shares: Mapping[str, Grant], _question: Question, _asks: bool) -> Tenant:
    """As it is: init containers are over when the pod runs, and sidecars run beside those after them."""
    early: list[Grant] = []
    late: list[Grant] = []
    for container in pod.containers:
        if (grant := shares.get(container.name)) is None:
            continue
        if container.alone:
            early.extend(added([(*late, grant)]))
        else:
            late.append(grant)
    return Tenant(name=pod.key, early=tuple(early), late=tuple(late), starting=pod.phase != "Running")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Whose account of pods counts: ``read`` says what a pod has, ``masks`` whether cores that are bits count too."""

    read: Read
    masks: bool


AS_HAMI = Account(read=least, masks=False)
"""As little as any of HAMi's schedulers. They may decide devices whose cores are taken, where these are bits."""
EXACTLY = Account(read=exact, masks=True)


def overcommitted(total: Total, own: Tenant, others: Sequence[Tenant]) -> Excess | None:
    """What the device would give away beyond what it has; None where all of it fits."""
    asked, held = own.taken, [(other.name, taken) for other in others if (taken := other.taken)]
    for what, most in (("memory", total.memory), ("cores", total.cores)):
        wanted = getattr(asked, what, 0)
        parts = sorted(((name, getattr(taken, what)) for name, taken in held), key=lambda part: (-part[1], part[0]))
        if 0 < most < wanted + sum(amount for _name, amount in parts):
            return Excess(what=what, total=most, asked=wanted, held=tuple(part for part in parts if part[1]))
    return None


def let_go(ids: Collection[str], held: Iterable[Held], resource: str) -> frozenset[str]:
    """The pods, by UID, that had some of these ids. The kubelet gives an id anew when it has let go of its pod."""
    given = frozenset(ids)
    return frozenset(one.uid for one in held if one.resource == resource and not one.ids.isdisjoint(given))


def wants_none(pod: PodView, container: str, percent: str) -> bool:
    """Whether a container asks for 0 percent of a device's memory, by the resource ``percent``.

    HAMi's schedulers may grant such a container no memory, which is no limit at all.
    """
    own = pod.container(container)
    asked = {**own.requests, **own.limits} if own else {}
    return own is not None and percent in asked and not own.amount(percent)
