"""The kubelet aligns devices with CPUs by the NUMA nodes that the daemon gives it."""

import pytest

from hami_plugin.model.device import physical_id
from hami_plugin.protocol import keys
from hami_plugin.simulation.kubelet import AdmissionError, Manners
from tests.e2e.manifests import asking, manifest
from tests.e2e.steps import bring_up, fail, refusal, sound
from tests.e2e.truth import annotation, journal

USE = "nvidia.com/use-gpuuuid"


@pytest.fixture
async def aligning(running):
    """Whole cards on two NUMA nodes; the CPUs that are left are on the second."""
    stage = await running(vendors={"nvidia": {"deviceSplitCount": 1, "enableNumaTopology": True}})
    stage.kubelet.manners = Manners(topology="single-numa-node", cpus=frozenset({1}))
    return stage


def numa(stage):
    return {device.uuid: device.numa for device in stage.hardware.machine.devices}


def wants(stage, name, count, *, of=None):
    chosen = [uuid for uuid, node in numa(stage).items() if node == of]
    annotations = {USE: ",".join(chosen)} if chosen else {}
    return manifest(name, [asking("main", stage.family.resources, count=count)], annotations=annotations)


@pytest.mark.full
async def test_cards_that_were_decided_at_the_node_of_the_free_cpus_are_the_kubelets_choice_too(aligning):
    pod = await bring_up(aligning, wants(aligning, "aligned", 2, of=1))

    ((_, held),) = aligning.kubelet.ledger.held_by(pod.uid, "main").items()
    assert {numa(aligning)[physical_id(one)] for one in held.ids} == {1}


@pytest.mark.full
async def test_cards_that_were_decided_elsewhere_are_refused_with_the_kubelets_choice(aligning):
    pod = aligning.scheduler.place(wants(aligning, "apart", 1, of=0))

    why = await refusal(aligning, pod)

    assert "chose from NUMA node 1" in why
    assert "enableNumaTopology" in why
    assert not journal(aligning)
    await sound(aligning)


async def test_a_pod_that_the_kubelet_cannot_align_leaves_no_lock_and_no_share(aligning):
    pod = aligning.scheduler.place(wants(aligning, "five", 5))
    assert annotation(aligning, keys.NODE_LOCK)

    with pytest.raises(AdmissionError) as error:
        await aligning.kubelet.admit(pod)
    fail(aligning, pod)

    assert error.value.reason == "TopologyAffinityError"
    await aligning.until(lambda: not annotation(aligning, keys.NODE_LOCK), "the release of the lock")
    aligning.kubelet.manners = Manners()
    await bring_up(aligning, wants(aligning, "all", 8))
