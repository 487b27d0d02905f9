"""What is different in Hygon: cores default to all of them, memory counts in MiB, types are chosen by annotation."""

from __future__ import annotations

from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.scheduler.engine.devices import Context, Demand, idle_state
from hami_plugin.scheduler.engine.fit import Granted, fit
from vendors.hygon.rules import families
from vendors.hygon.settings import HygonSettings

(DCU,) = families(HygonSettings())
NODE = NodeView(
    name="n",
    annotations={DCU.rules.annotations.register: "DCU-1,4,32768,100,DCU-Z100,0,true:DCU-2,4,65536,100,K100_AI,1,true:"},
)


def asked(**limits: str) -> object:
    assert DCU.rules.policy
    return DCU.rules.policy.request(
        ContainerView(name="c", limits={f"hygon.com/{key}": text for key, text in limits.items()})
    )


def test_a_dcu_without_further_words_is_a_whole_one() -> None:
    assert asked(dcunum="2") == Demand(device_type="DCU", count=2, percent=100, cores=100)
    assert asked(dcunum="1", dcumem="2000", dcucores="60") == Demand(device_type="DCU", count=1, memory=2000, cores=60)


def test_a_type_is_chosen_by_a_part_of_its_name() -> None:
    states = [idle_state(info) for info in DCU.rules.node_devices(NODE)]
    pod = PodView(uid="u", namespace="n", name="p", annotations={"hygon.com/use-dcutype": "z100"})
    assert DCU.rules.policy

    outcome = fit(DCU.rules.policy, states, Context(demand=Demand(device_type="DCU", count=1), pod=pod))

    assert isinstance(outcome, Granted)
    assert [grant.uuid for grant in outcome.grants] == ["DCU-1"]
    assert DCU.rules.patch(DCU, pod, {"DCU": (outcome.grants,)}) == {
        "hami.io/dcu-devices-to-allocate": "DCU-1,DCU,0,0:;",
        "hami.io/dcu-devices-allocated": "DCU-1,DCU,0,0:;",
    }


def test_resource_names_are_configuration() -> None:
    settings = HygonSettings.model_validate({"resourceCountName": "corp.example/dcu", "memoryFactor": 1024})
    (family,) = families(settings)
    assert family.rules.policy

    container = ContainerView(name="c", limits={"corp.example/dcu": "1", "hygon.com/dcumem": "4"})

    assert family.rules.policy.request(container) == Demand(device_type="DCU", count=1, memory=4096, cores=100)
