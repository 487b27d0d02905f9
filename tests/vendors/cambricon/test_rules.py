"""What is different in Cambricon: cards out of summed capacity, a lock of its own, and a pod's one profile."""

from __future__ import annotations

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.scheduler.engine.devices import Context, Demand, Quota, Reason, idle_state
from hami_plugin.scheduler.engine.fit import Granted, Refused, fit
from hami_plugin.sdk import LockRule
from tests.hami import values
from tests.hami.vendors.cambricon import parity
from vendors.cambricon.rules import WAITING, families
from vendors.cambricon.settings import CambriconSettings

POD = PodView(uid="u", namespace="n", name="p", containers=(ContainerView(name="a"), ContainerView(name="b")))

(MLU,) = families(CambriconSettings())


def test_cards_share_out_the_capacity_of_their_node() -> None:
    node = NodeView(name="n", capacity={"cambricon.com/mlu.smlu.vcore": "200", "cambricon.com/mlu.smlu.vmemory": "192"})

    cards = MLU.rules.node_devices(node)

    assert [(card.id, card.devmem, card.devcore, card.count) for card in cards] == [
        ("n-cambricon-mlu-0", 24576, 100, 100),
        ("n-cambricon-mlu-1", 24576, 100, 100),
    ]
    assert MLU.rules.node_devices(NodeView(name="n", capacity={"cambricon.com/mlu.smlu.vmemory": "192"})) == ()


def test_memory_counts_in_256_mib_and_cores_default_to_all() -> None:
    assert MLU.rules.policy
    share = {"cambricon.com/vmlu": "1", "cambricon.com/mlu.smlu.vmemory": "20", "cambricon.com/mlu.smlu.vcore": "10"}

    asked = MLU.rules.policy.request(ContainerView(name="c", limits=share))

    assert asked == Demand(device_type="MLU", count=1, memory=5120, cores=10)
    assert MLU.rules.policy.request(ContainerView(name="c", limits={"cambricon.com/vmlu": "2"})) == Demand(
        device_type="MLU", count=2, percent=100, cores=100
    )


def test_a_quota_counts_the_same_units_as_a_request() -> None:
    node = NodeView(name="n", capacity={"cambricon.com/mlu.smlu.vcore": "100", "cambricon.com/mlu.smlu.vmemory": "96"})
    states = [idle_state(info) for info in MLU.rules.node_devices(node)]
    quota = Quota(limits={"cambricon.com/mlu.smlu.vmemory": 20})
    assert MLU.rules.policy

    within, beyond = (
        fit(
            MLU.rules.policy,
            states,
            Context(demand=Demand(device_type="MLU", count=1, memory=mib), pod=POD, quota=quota),
        )
        for mib in (20 * 256, 20 * 256 + 1)
    )

    assert isinstance(within, Granted)
    assert isinstance(beyond, Refused)
    assert beyond.reasons == {Reason.QUOTA: 1}


def test_the_agent_finds_the_first_share_by_either_spelling_of_its_key() -> None:
    share = Grant(uuid="n-cambricon-mlu-1", device_type="MLU", memory=5120, cores=10, index=1)

    written = MLU.rules.patch(MLU, POD, {"MLU": ((), (share,))})

    assert written == {
        "hami.io/cambricon-mlu-devices-to-allocate": ";n-cambricon-mlu-1,MLU,5120,10:;",
        "hami.io/cambricon-mlu-devices-allocated": ";n-cambricon-mlu-1,MLU,5120,10:;",
        "CAMBRICON_DSMLU_ASSIGNED": "false",
        "CAMBRICON_DSMLU_ASSIGHED": "false",
        "CAMBRICON_DSMLU_PROFILE": "1_10_20",
    }


def test_only_the_second_spelling_of_the_key_is_excused() -> None:
    (rule,) = parity().differences
    theirs = {"annotations": {WAITING[0]: "false", "CAMBRICON_DSMLU_PROFILE": "1_10_20"}}
    ours = {"annotations": {**theirs["annotations"], WAITING[1]: "false"}}
    other = {"annotations": {**ours["annotations"], "CAMBRICON_DSMLU_PROFILE": "0_10_20"}}
    question = {"fn": "patch_annotations", "vendor": "MLU"}

    assert rule.applies(question)
    assert rule.right(question, ours, theirs)
    assert not rule.right(question, other, theirs)
    assert not rule.applies({**question, "vendor": "DCU"})
    assert not rule.applies({**question, "fn": "fit"})


def test_the_lock_is_the_agents_and_names_nobody() -> None:
    assert MLU.rules.lock == LockRule(annotation="cambricon.com/dsmlu.lock", expires_s=120.0, named=False)


def test_a_pod_belongs_to_the_family_by_its_limits_alone() -> None:
    limited = values.container({"name": "c", "limits": {"cambricon.com/vmlu": "1"}})
    requested = values.container({"name": "c", "requests": {"cambricon.com/vmlu": "1"}})

    assert MLU.rules.admit(limited, POD).found  # type: ignore[union-attr]  # a Denied has no such field, and fails here
    assert not MLU.rules.admit(requested, POD).found  # type: ignore[union-attr]  # as above
