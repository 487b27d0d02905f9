"""The soak's own judgement: what it forgives a pod, and when it fails."""

import os

import pytest

from bench import soak
from bench.figures import Figure
from bench.soak import Losses, Planned, one_core_apart
from hami_plugin.errors import HamiError
from hami_plugin.model.views import PodView


def planned(**cards):
    return Planned(number=1, pod=PodView(uid="u", namespace="n", name="p"), cards=cards, sizes={})


POD = planned(c0="GPU-0", c1="GPU-1")
NAMED = HamiError("the kubelet offers GPU-7, but bench/pod-1 waits for GPU-1")


def test_a_refusal_that_names_a_card_of_the_pod_lost_since_it_was_bound_is_explained():
    losses = Losses()
    before = losses.before()
    losses.lost("GPU-1")

    assert losses.explain(POD, before, NAMED)


def test_a_card_that_was_lost_and_not_back_yet_when_the_pod_was_bound_explains_too():
    losses = Losses()
    losses.lost("GPU-1")

    assert losses.explain(POD, losses.before(), NAMED)


@pytest.mark.parametrize("lost", ["GPU-0", "GPU-7"], ids=["another card of the pod", "a card of nobody"])
def test_a_card_that_the_refusal_or_the_pod_does_not_name_explains_nothing(lost):
    losses = Losses()
    before = losses.before()
    losses.lost(lost)

    assert not losses.explain(POD, before, NAMED)


def test_a_card_that_was_well_again_before_the_pod_was_bound_explains_nothing():
    losses = Losses()
    losses.lost("GPU-1")
    losses.healed()

    assert not losses.explain(POD, losses.before(), NAMED)


def test_another_loss_of_the_same_card_explains_again():
    losses = Losses()
    losses.lost("GPU-1")
    losses.healed()
    before = losses.before()
    losses.lost("GPU-1")

    assert losses.explain(POD, before, NAMED)


@pytest.mark.parametrize(("done", "status"), [(100, 0), (99, 1)])
def test_too_few_allocates_fail_the_soak(monkeypatch, done, status):
    async def measure(*, allocates, minutes):
        return [Figure(name="Allocates", value=done, limit=allocates, floor=True)]

    monkeypatch.setattr(soak, "measure", measure)
    monkeypatch.setattr("sys.argv", ["soak", "--allocates", "100"])

    assert soak.main() == status


def test_a_core_is_left_to_the_daemon_and_all_are_this_processs_again():
    cores = os.sched_getaffinity(0)
    with one_core_apart() as apart:
        assert len(apart) == 1
        assert os.sched_getaffinity(0) == (cores - apart or cores)

    assert os.sched_getaffinity(0) == cores
