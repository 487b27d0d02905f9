"""What every vendor must keep, as checks that are given a vendor: the known ones, and one that a test invents."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hypothesis import strategies as st

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.pods import decode_devices, encode_devices
from hami_plugin.scheduler.engine.devices import Admitted, Context, Demand, DeviceState, Reason
from hami_plugin.scheduler.engine.fit import Granted, fit
from hami_plugin.sdk import Family, Vendor


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Devices of a family, some in use, and a container that asks for some."""

    family: Family
    idle: tuple[DeviceState, ...]
    states: tuple[DeviceState, ...]
    demand: Demand
    pod: PodView
    seed: int

    def outcome(self, states: Sequence[DeviceState]) -> Granted | None:
        assert self.family.rules.policy
        found = fit(
            self.family.rules.policy, states, Context(demand=self.demand, pod=self.pod, node=NodeView(name="n"))
        )
        return found if isinstance(found, Granted) else None


def machine(vendor: str, models: Sequence[str]) -> Machine:
    """Eight devices, in two zones; of each model as many."""
    devices = tuple(
        MachineDevice(
            index=index,
            minor=index,
            uuid=f"dev-{index}",
            model=models[index % len(models)],
            pci="",
            numa=index // 4,
            memory=65536,
            extra={"link_zone": index // 4 + 1, "nc_count": 2, "aicore": 20, "compute_units": 304},
        )
        for index in range(8)
    )
    levels = tuple(tuple("X" if a == b else "SYS" for b in range(8)) for a in range(8))
    lanes = tuple((0,) * 8 for _ in range(8))
    return Machine(name="m", title="m", vendor=vendor, devices=devices, levels=levels, lanes=lanes)


def requested(family: Family, limits: Mapping[str, int]) -> tuple[Demand, PodView] | None:
    """What a container with these limits asks for once it is admitted; None if it is denied or asks for nothing."""
    assert family.rules.policy
    container = ContainerView(name="c", limits={name: str(number) for name, number in limits.items() if name})
    pod = PodView(uid="u", namespace="n", name="p", containers=(container,))
    admitted = family.rules.admit(container, pod)
    if not isinstance(admitted, Admitted):
        return None
    container = replace(
        container,
        limits={**container.limits, **admitted.limits},
        requests={**container.requests, **admitted.requests},
    )
    demand = family.rules.policy.request(container)
    annotations = {**pod.annotations, **admitted.pod_annotations}
    return (
        (demand, replace(pod, containers=(container,), annotations=annotations)) if isinstance(demand, Demand) else None
    )


@st.composite
def situations(draw: st.DrawFn, family: Family, devices: Sequence[DeviceState]) -> Situation | None:
    """A few containers are served first; then one asks. None when what is drawn is no request."""
    states = tuple(devices)
    for _ in range(draw(st.integers(0, 6))):
        asked = requested(family, draw(_limits(family, devices)))
        if asked:
            states = served(family, states, *asked)
    asked = requested(family, draw(_limits(family, devices)))
    if asked is None:
        return None
    demand, pod = asked
    return Situation(
        family=family, idle=tuple(devices), states=states, demand=demand, pod=pod, seed=draw(st.integers(0, 99))
    )


def _limits(family: Family, devices: Sequence[DeviceState]) -> st.SearchStrategy[dict[str, int]]:
    names, factor = family.resources, max(1, family.resources.memory_factor)
    most = max(1, devices[0].info.devmem // factor)
    return st.fixed_dictionaries(
        {names.count: st.sampled_from([1, 1, 1, 2, 3, 4, 8])},
        optional={
            name: values
            for name, values in (
                (names.memory, st.sampled_from([1, 2, max(1, most // 4), max(1, most // 2), most, most + 1])),
                (names.memory_percent, st.sampled_from([10, 25, 50, 100])),
                (names.cores, st.sampled_from([1, 2, 4, 10, 50, 100])),
            )
            if name
        },
    )


def served(family: Family, states: tuple[DeviceState, ...], demand: Demand, pod: PodView) -> tuple[DeviceState, ...]:
    """The devices after one more container, if it is granted any."""
    assert family.rules.policy
    outcome = fit(family.rules.policy, states, Context(demand=demand, pod=pod, node=NodeView(name="n")))
    return booked(family, states, outcome.grants, pod) if isinstance(outcome, Granted) else states


def booked(
    family: Family, states: Sequence[DeviceState], grants: Sequence[Grant], pod: PodView
) -> tuple[DeviceState, ...]:
    assert family.rules.policy
    after = {state.uuid: state for state in states}
    for grant in grants:
        booking = family.rules.policy.book(after[grant.uuid], grant, pod)
        assert not isinstance(booking, Reason), "what was granted cannot be booked"
        after[grant.uuid] = booking[0]
    return tuple(after.values())


def check_a_grant_never_exceeds_what_is_free(situation: Situation) -> None:
    """And is of as many devices as asked for, all healthy."""
    outcome = situation.outcome(situation.states)
    if outcome is None:
        return
    for state in booked(situation.family, situation.states, outcome.grants, situation.pod):
        assert state.info.health or state in situation.states
        assert state.slots <= state.info.count, state
        assert state.memory <= state.info.devmem, state
        assert state.cores <= state.info.devcore or not state.info.devcore, state
    assert len({grant.uuid for grant in outcome.grants}) == len(outcome.grants)


def check_more_capacity_never_turns_yes_into_no(situation: Situation) -> None:
    """One device after the other is given back; once the answer is yes, it stays."""
    shuffled = random.Random(situation.seed).sample(range(len(situation.states)), len(situation.states))
    answers = []
    for freed in range(len(shuffled) + 1):
        states = [
            situation.idle[place] if place in shuffled[:freed] else state
            for place, state in enumerate(situation.states)
        ]
        answers.append(situation.outcome(states) is not None)

    assert all(later or not earlier for earlier, later in pairwise(answers)), (situation.demand, answers)


def check_the_order_of_equal_devices_never_changes_the_quality(situation: Situation) -> None:
    """The same bills in any order, and neighbours stay neighbours."""
    devices = [*situation.idle]
    before = situation.outcome(devices)
    random.Random(situation.seed).shuffle(devices)
    after = situation.outcome(devices)

    assert quality(before) == quality(after)


def quality(outcome: Granted | None) -> object:
    return outcome and sorted((grant.memory, grant.cores) for grant in outcome.grants)


def check_what_is_written_is_read_again(situation: Situation) -> None:
    """The pod's annotation holds each grant, at its container."""
    outcome = situation.outcome(situation.states)
    if outcome is None:
        return
    family = situation.family
    written = family.rules.patch(family, situation.pod, {family.resources.device_type: (outcome.grants,)})
    text = written[family.rules.annotations.allocated]
    pieces = decode_devices(text)

    assert [(one.uuid, one.device_type, one.memory, one.cores) for one in pieces[0]] == [
        (one.uuid, one.device_type, one.memory, one.cores) for one in outcome.grants
    ]
    assert encode_devices(pieces[:-1]) == text


Law = Callable[[Situation], None]

LAWS: tuple[Law, ...] = (
    check_a_grant_never_exceeds_what_is_free,
    check_more_capacity_never_turns_yes_into_no,
    check_the_order_of_equal_devices_never_changes_the_quality,
    check_what_is_written_is_read_again,
)


def check_names(vendor: Vendor, others: Sequence[Vendor]) -> None:
    """Resources and annotations are nobody else's; each family has a word, a policy, and a key for what it gave."""
    mine, theirs = _names(vendor), set[str]().union(*map(_names, others))
    for family in families(vendor):
        assert family.resources.device_type
        assert family.rules.policy
        assert family.rules.annotations.allocated
        assert "/" in family.resources.count
    assert mine.isdisjoint(theirs), mine & theirs


def families(vendor: Vendor) -> tuple[Family, ...]:
    return vendor.families(vendor.settings.model_validate({}))


def _names(vendor: Vendor) -> set[str]:
    found: set[str] = set()
    for family in families(vendor):
        found |= {*family.resources.names.values(), family.resources.device_type}
        keys = [getattr(family.rules.annotations, name) for name in family.rules.annotations.__slots__]
        found |= {key for value in keys for key in ((value,) if isinstance(value, str) else value)}
    return found - {""}
