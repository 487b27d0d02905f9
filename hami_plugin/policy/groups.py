"""Which devices may be granted together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hami_plugin.policy.states import Context, DeviceState

GO_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
"""What Go reads as true."""

Group = Callable[[Sequence[DeviceState], Context], Iterable[Sequence[DeviceState]]]


def together(states: Sequence[DeviceState], _context: Context) -> Iterable[Sequence[DeviceState]]:
    """All of them."""
    return (states,)


def by_numa_if(annotation: str) -> Group:
    """One group for each NUMA node if the pod's annotation is true; the node of the first device comes first."""

    def group(states: Sequence[DeviceState], context: Context) -> Iterable[Sequence[DeviceState]]:
        if context.pod.annotations.get(annotation) not in GO_TRUE:
            return (states,)
        nodes = dict.fromkeys(state.info.numa for state in states)
        return tuple([state for state in states if state.info.numa == numa] for numa in nodes)

    return group
