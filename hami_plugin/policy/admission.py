"""What admission changes in a container before it is stored, as a value that somebody else applies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hami_plugin.model.views import ContainerView, PodView


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """``found``: the container uses the family. The rest is what to add or to overwrite."""

    found: bool
    limits: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    runtime_class: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """The pod is not taken, with the reason in words."""

    why: str


Admit = Callable[[ContainerView, PodView], Admitted | Denied]


def if_limited(*resources: str) -> Admit:
    """Nothing changes; the container uses the family if its limits name one of these resources."""
    return lambda container, _pod: Admitted(found=any(name in container.limits for name in resources if name))


def not_asked(_container: ContainerView, _pod: PodView) -> Admitted:
    return Admitted(found=False)
