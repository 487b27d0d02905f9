"""What is different in Iluvatar: a family for each chip, chosen by the resource's name, and units of 256 MiB."""

from __future__ import annotations

from pathlib import Path

from hami_plugin.config.documents import read_yaml
from hami_plugin.config.hami import device_config
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.scheduler.engine.devices import Admitted, Context, Demand, Invalid, idle_state
from hami_plugin.scheduler.engine.fit import Granted, fit
from vendors.iluvatar import IluvatarSettings, families

CHIPS = {family.resources.device_type: family for family in families(IluvatarSettings())}
BI = CHIPS["BI-V150"]
POD = PodView(uid="u", namespace="n", name="p")
NODE = NodeView(
    name="n",
    annotations={
        "hami.io/node-BI-V150-register": "G-0,10,32768,100,BI-V150,0,true:G-1,10,32768,100,BI-V150,0,true:",
        "hami.io/node-MR-V100-register": "M-0,10,32768,100,MR-V100,0,true:",
    },
)


def container(**limits: str) -> ContainerView:
    names = {"vgpu": "iluvatar.ai/BI-V150-vgpu", "mem": "iluvatar.ai/BI-V150.vMem", "core": "iluvatar.ai/BI-V150.vCore"}
    return ContainerView(name="train", limits={names[key]: text for key, text in limits.items()})


def test_each_chip_has_its_own_resources_and_annotations() -> None:
    assert list(CHIPS) == ["MR-V100", "MR-V50", "BI-V150", "BI-V100"]
    assert [info.id for info in CHIPS["MR-V100"].rules.node_devices(NODE)] == ["M-0"]
    assert [info.id for info in BI.rules.node_devices(NODE)] == ["G-0", "G-1"]


def test_memory_counts_in_units_of_256_mib_for_each_card_and_cores_default_to_none() -> None:
    assert BI.rules.policy

    assert BI.rules.policy.request(container(vgpu="1", mem="64", core="50")) == Demand(
        device_type="BI-V150", count=1, memory=16384, cores=50
    )
    assert BI.rules.policy.request(container(vgpu="1")) == Demand(device_type="BI-V150", count=1, percent=100, cores=0)
    assert isinstance(BI.rules.policy.request(container(vgpu="1", mem="8388608")), Invalid)


def test_several_cards_are_whole_ones_with_100_cores_each() -> None:
    assert BI.rules.policy
    admitted = BI.rules.admit(container(vgpu="2", core="7"), POD)

    assert admitted == Admitted(
        found=True, limits={"iluvatar.ai/BI-V150.vCore": "200"}, env={"SOL_CONTINER_NAME": "train"}
    )
    demand = BI.rules.policy.request(container(vgpu="2", core="200"))
    assert isinstance(demand, Demand)
    outcome = fit(
        BI.rules.policy, [idle_state(info) for info in BI.rules.node_devices(NODE)], Context(demand=demand, pod=POD)
    )
    assert isinstance(outcome, Granted)
    assert [(grant.uuid, grant.memory, grant.cores) for grant in outcome.grants] == [
        ("G-1", 32768, 100),
        ("G-0", 32768, 100),
    ]


def test_the_containers_name_is_not_set_twice() -> None:
    named = ContainerView(name="c", limits={"iluvatar.ai/BI-V150-vgpu": "1"}, env={"SOL_CONTINER_NAME": "z"})

    assert BI.rules.admit(named, POD) == Admitted(found=True)


def test_a_card_is_chosen_by_annotations_with_the_chips_word() -> None:
    assert BI.rules.policy
    pod = PodView(uid="u", namespace="n", name="p", annotations={"hami.io/no-use-BI-V150-uuid": "G-1"})

    outcome = fit(
        BI.rules.policy,
        [idle_state(info) for info in BI.rules.node_devices(NODE)],
        Context(demand=Demand(device_type="BI-V150", count=1), pod=pod),
    )

    assert isinstance(outcome, Granted)
    assert outcome.grants[0].uuid == "G-0"


def test_hamis_list_of_chips_is_the_vendors_section(tmp_path: Path) -> None:
    file = tmp_path / "device-config.yaml"
    file.write_text(
        "iluvatars:\n- chipName: X1\n  commonWord: X1\n  resourceCountName: corp.example/x1\n"
        "  resourceMemoryName: corp.example/x1-mem\n  resourceCoreName: corp.example/x1-core\n"
    )

    (layer,), warnings = device_config(read_yaml(file), {"iluvatar": IluvatarSettings})

    section = layer.values["vendors"]["iluvatar"]  # type: ignore[index]  # a layer's values are plain objects
    (family,) = families(IluvatarSettings.model_validate(section))
    assert (family.resources.device_type, family.resources.count) == ("X1", "corp.example/x1")
    place = layer.place(("vendors", "iluvatar", "chips", 0, "resourceCoreName"))
    assert (place.where, place.path) == (f"{file}:6", "iluvatars[0].resourceCoreName")
    assert warnings == ()
