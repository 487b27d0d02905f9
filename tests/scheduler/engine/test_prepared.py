"""Ways that save time, beside the plain ones: checks that read the pod first, and copies that name their fields."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_plugin.model.device import Link, Links
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import Context, Demand, DeviceState, Quota, Reason, Slice, Tenant
from hami_plugin.scheduler.engine.policy import prepare_checks, standard
from hami_plugin.scheduler.engine.topology import ChoiceCache

CHECKS = standard("W", uuids=("x/use", "x/avoid"), types=("x/type", "x/no-type"))
STATE = DeviceState(
    info=DeviceInfo(id="d1", index=1, count=2, type="W Large"),
    slots=1,
    memory=2,
    cores=3,
    tenants=(Tenant(name="t"),),
    slices=(Slice(profile="p", start=0, size=1),),
    notes={"a": 1},
)
LISTS = st.sampled_from([None, "", " ", ",", "d1", "d2", "d2, d1", "large", "SMALL", "small,large", "w "])


@settings(deadline=None)
@given(*[LISTS] * 4, st.sampled_from(["spread", "mutex", "numa, mutex"]), st.sampled_from("WV"), st.integers(0, 2))
def test_a_check_that_reads_first_says_of_each_device_what_it_says_alone(
    use, avoid, kind, no_kind, order, device_type, slots
):
    texts = {
        "x/use": use,
        "x/avoid": avoid,
        "x/type": kind,
        "x/no-type": no_kind,
        "hami.io/gpu-scheduler-policy": order,
    }
    pod = PodView(
        uid="u", namespace="n", name="p", annotations={k: text for k, text in texts.items() if text is not None}
    )
    context = Context(demand=Demand(device_type=device_type, count=1), pod=pod)
    state = replace(STATE, info=replace(STATE.info, health=True), slots=slots)

    alone = [reason for check in CHECKS if (reason := check(state, context))]
    together = [reason for check in prepare_checks(CHECKS, context) if (reason := check(state, context))]

    assert together == alone


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        ({}, None),
        ({"x/use": "d2"}, Reason.UUID_MISMATCH),
        ({"x/use": ","}, Reason.UUID_MISMATCH),
        ({"x/avoid": "d2,d1"}, Reason.UUID_MISMATCH),
        ({"x/type": "large"}, None),
        ({"x/type": ","}, Reason.TYPE_MISMATCH),
        ({"x/no-type": "LARGE"}, Reason.TYPE_MISMATCH),
        ({"hami.io/gpu-scheduler-policy": "mutex"}, Reason.EXCLUSIVE),
    ],
)
def test_what_is_read_first_still_counts(annotations, reason):
    pod = PodView(uid="u", namespace="n", name="p", annotations=annotations)
    context = Context(demand=Demand(device_type="W", count=1), pod=pod)
    state = replace(STATE, info=replace(STATE.info, health=True))

    against = [found for check in prepare_checks(CHECKS, context) if (found := check(state, context))]

    assert against == ([reason] if reason else [])


def test_a_device_of_which_more_is_taken_is_otherwise_the_same():
    assert STATE.less(slots=1, memory=10, cores=5) == replace(STATE, slots=2, memory=12, cores=8)


def test_a_context_beside_other_devices_is_otherwise_the_same():
    full = Context(
        demand=Demand(device_type="W", count=1),
        pod=PodView(uid="u", namespace="n", name="p", containers=(ContainerView(name="c"),)),
        node=NodeView(name="node"),
        links=Links(pairs={("a", "b"): Link(score=1, label="")}),
        given={"W": ((),)},
        quota=Quota(limits={"r": 1}),
        order="binpack",
        choices=ChoiceCache(),
    )

    assert full.among((STATE,)) == replace(full, states=(STATE,))
