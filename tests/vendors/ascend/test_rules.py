"""What is different in Ascend: templates, modules of two, networks, a second way of sharing, a word for each chip."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_plugin.config.documents import read_yaml
from hami_plugin.config.hami import device_config
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import Admitted, Context, Demand, Denied, DeviceState, idle_state
from hami_plugin.scheduler.engine.fit import Granted, Refused, fit
from hami_plugin.scheduler.engine.policy import Decision
from hami_plugin.sdk import Family
from tests.hami import fits
from tests.hami.parity import Parity
from tests.hami.vendors.ascend import parity
from vendors.ascend.rules import families
from vendors.ascend.settings import CHIPS, AscendSettings

SOFT = {"huawei.com/vnpu-mode": "hami-core"}


def family(device_type: str = "Ascend910B3", **keys: Any) -> Family:
    """The family of one chip, with these keys of its entry written otherwise."""
    settings = AscendSettings.model_validate({"configs": [{"commonWord": device_type, **keys}]})
    (one,) = families(settings, clock=lambda: 1795232724.9)
    return one


def chips(
    count: int, device_type: str = "Ascend910B3", *, networks: tuple[Any, ...] = (), **info: Any
) -> list[DeviceState]:
    told = {
        "type": device_type,
        "count": 4,
        "devmem": CHIPS[device_type][1],
        "devcore": CHIPS[device_type][3],
        "health": True,
        **info,
    }
    customs = [{"NetworkID": number} for number in networks] or [None] * count
    return [idle_state(DeviceInfo(id=f"{n}", index=n, custom=customs[n], **told)) for n in range(count)]


def pod(annotations: dict[str, str] | None = None) -> PodView:
    return PodView(uid="u", namespace="n", name="p", annotations=annotations or {})


def asking(
    count: int, device_type: str = "Ascend910B3", annotations: dict[str, str] | None = None, **amounts: Any
) -> Context:
    return Context(demand=Demand(device_type=device_type, count=count, **amounts), pod=pod(annotations))


def ask(context: Context, states: list[DeviceState], **keys: Any) -> Granted | Refused:
    policy = family(context.demand.device_type, **keys).rules.policy
    assert policy
    return fit(policy, states, context)


def granted(outcome: Granted | Refused) -> str:
    assert isinstance(outcome, Granted), str(outcome)
    return "".join(grant.uuid for grant in outcome.grants)


def admitted(
    limits: dict[str, str], device_type: str = "Ascend910B3", annotations: dict[str, str] | None = None, **keys: Any
) -> dict[str, str] | str:
    """The limits that are written, or the refusal."""
    named = {f"huawei.com/{device_type}{key}": text for key, text in limits.items()}
    found = family(device_type, **keys).rules.admit(ContainerView(name="c", limits=named), pod(annotations))
    if isinstance(found, Denied):
        return found.why
    return {key.removeprefix(f"huawei.com/{device_type}"): text for key, text in found.limits.items()}


def test_every_chip_is_a_family_of_its_own() -> None:
    found = families(AscendSettings())

    assert [one.resources.device_type for one in found] == list(CHIPS)
    assert {one.rules.annotations.register for one in found} == {
        f"hami.io/node-register-{device_type}" for device_type in CHIPS
    }
    assert found[0].resources.memory == "huawei.com/Ascend910A-memory"


@pytest.mark.parametrize(
    ("asked", "given"),
    [("0", "3072"), ("3072", "3072"), ("3073", "6144"), ("12289", "21527"), ("24576", "21527")],
)
def test_memory_is_rounded_up_to_a_template_or_to_the_whole_npu(asked: str, given: str) -> None:
    assert admitted({"": "1", "-memory": asked}, "Ascend310P") == {"-memory": given}


def test_what_no_npu_can_give_is_denied_with_the_reason() -> None:
    assert "24577 MiB is more than an NPU has" in admitted({"": "1", "-memory": "24577"}, "Ascend310P")
    assert "several NPUs are granted whole" in admitted({"": "2", "-memory": "16384"})
    assert "huawei.com/vnpu-mode: hami-core" in admitted({"": "1", "-core": "40"})
    assert "ask for 1 or an even number" in admitted({"": "3"}, "Ascend910C")


def test_under_hami_core_memory_and_cores_are_free_but_within_a_request() -> None:
    assert admitted({"": "2", "-memory": "5000", "-core": "40"}, annotations=SOFT) == {"-memory": "5000"}
    assert "is more than an NPU has" in admitted({"": "1", "-memory": "16Gi"}, annotations=SOFT)


def test_one_npu_of_a_module_becomes_the_module() -> None:
    assert admitted({"": "1"}, "Ascend910C") == {"": "2", "-memory": "65536"}
    assert admitted({"": "1"}, "Ascend910C", superPod=False) == {"-memory": "65536"}


@pytest.mark.difference("D-174")
def test_a_memory_factor_is_applied_before_a_template_is_looked_for() -> None:
    container = ContainerView(name="c", limits={"huawei.com/Ascend910A": "1", "huawei.com/Ascend910A-memory": "3"})
    one = family("Ascend910A", memoryFactor=1024)
    assert one.rules.policy

    found = one.rules.admit(container, pod())
    assert isinstance(found, Admitted)
    limits = {**container.limits, **found.limits}
    demand = one.rules.policy.request(replace(container, limits=limits))

    assert limits["huawei.com/Ascend910A-memory"] == "4"  # 4369 MiB, as far as units can say it
    assert isinstance(demand, Demand)
    outcome = fit(one.rules.policy, chips(1, "Ascend910A"), Context(demand=demand, pod=pod()))
    assert isinstance(outcome, Granted)
    assert [grant.memory for grant in outcome.grants] == [4369]


@pytest.mark.difference("D-175")
def test_npus_are_hidden_only_from_containers_that_ask_for_none() -> None:
    entries = [{"commonWord": device_type, "overwriteEnv": True} for device_type in CHIPS]
    found = families(AscendSettings.model_validate({"configs": entries}))

    def env(limits: dict[str, str]) -> set[tuple[str, str]]:
        answers = [one.rules.admit(ContainerView(name="c", limits=limits), pod()) for one in found]
        return {item for answer in answers if isinstance(answer, Admitted) for item in answer.env.items()}

    assert env({"cpu": "1"}) == {("ASCEND_VISIBLE_DEVICES", "")}
    assert env({"huawei.com/Ascend910B3": "1"}) == set()


def test_modules_are_granted_whole() -> None:
    states = chips(6, "Ascend910C")

    assert granted(ask(asking(4, "Ascend910C"), states)) == "5432"
    assert granted(ask(asking(2, "Ascend910C"), [*states[1:4], states[5]])) == "32"
    assert str(ask(asking(4, "Ascend910C"), states[:4:2])) == "0/4 AllocatedCardsInsufficientRequest"
    assert str(ask(asking(3, "Ascend910C"), states)) == "4/3 AllocatedCardsInsufficientRequest"


def test_the_largest_network_comes_first_and_is_topped_up_from_the_next() -> None:
    states = chips(6, networks=(0, 0, 0, 1, 1, 2))

    assert granted(ask(asking(3), states)) == "210"
    assert granted(ask(asking(4), states)) == "2104"
    assert granted(ask(asking(1), states)) == "5"
    assert granted(ask(asking(2), chips(6))) == "54"


def test_npus_whose_network_is_no_number_are_taken_last_and_not_forgotten() -> None:
    assert granted(ask(asking(3), chips(4, networks=(0, 0, "a", True)))) == "103"


def test_a_910b4_is_never_a_910b4_1() -> None:
    states = [*chips(1, "Ascend910B4"), chips(2, "Ascend910B4-1")[1]]

    assert granted(ask(asking(1, "Ascend910B4", memory=8192), states)) == "0"
    assert str(ask(asking(2, "Ascend910B4", memory=8192), states)) == (
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardTypeMismatch"
    )


def test_hami_core_needs_a_node_that_is_set_up_for_it_and_counts_cores_in_percent() -> None:
    node = NodeView(name="n", annotations={"hami-vnpu-core": "true"})
    soft = asking(1, annotations=SOFT, memory=1000, cores=40)
    half_used = [replace(state, slots=1, cores=50) for state in chips(1)]

    assert str(ask(soft, chips(1))) == "1/1 ModeNotFit"
    assert granted(ask(replace(soft, node=node), half_used)) == "0"
    more = replace(soft, node=node, demand=replace(soft.demand, cores=60))
    assert str(ask(more, half_used)) == "1/1 CardInsufficientCore"


def test_a_node_says_no_to_hami_core_though_the_cluster_says_yes() -> None:
    (one,) = families(AscendSettings.model_validate({"hamiVnpuCore": True, "configs": [{"commonWord": "Ascend910B3"}]}))
    assert one.rules.policy
    refusing = replace(asking(1, annotations=SOFT), node=NodeView(name="n", annotations={"hami-vnpu-core": "false"}))

    assert granted(fit(one.rules.policy, chips(1), asking(1, annotations=SOFT))) == "0"
    assert str(fit(one.rules.policy, chips(1), refusing)) == "1/1 ModeNotFit"


def test_a_decision_names_templates_for_the_agent() -> None:
    one = family()
    states = chips(2, networks=(0, 0))
    part = ask(asking(1, memory=16384), states)
    rest = ask(asking(1, percent=100), states[:1])
    assert isinstance(part, Granted)
    assert isinstance(rest, Granted)

    written = one.rules.patch(one, pod(), {one.resources.device_type: ((), part.grants, rest.grants)})

    both = ";1,Ascend910B3,16384,0:;0,Ascend910B3,65536,0:;"
    assert written == {
        "hami.io/Ascend910B3-devices-to-allocate": both,
        "hami.io/Ascend910B3-devices-allocated": both,
        "predicate-time": "1795232724",
        "huawei.com/Ascend910B3": '[{"UUID":"1","temp":"vir05_1c_16g","memory":16384},{"UUID":"0","memory":65536}]',
    }
    soft = one.rules.patch(one, pod(SOFT), {one.resources.device_type: (part.grants,)})
    assert soft["huawei.com/Ascend910B3"] == '[{"UUID":"1","memory":16384}]'


def test_a_node_is_worth_ten_for_each_container_whose_npus_are_in_one_network() -> None:
    states = chips(5, networks=(0, 0, 0, 0, 1))
    outcome = ask(asking(5), states)
    assert isinstance(outcome, Granted)

    def worth(*pieces: Any, device_type: str = "Ascend910B3") -> object:
        policy = family(device_type).rules.policy
        assert policy
        return policy.score(Decision(node=NodeView(name="n"), pod=pod(), pieces=pieces, before=states))

    assert worth(outcome.grants) == 8
    assert worth(outcome.grants[1:3], outcome.grants[1:2], ()) == 20
    assert worth(outcome.grants, device_type="Ascend310P") == 0
    assert worth(tuple(replace(grant, notes=None) for grant in outcome.grants)) == 0


def test_a_register_is_read_as_the_agent_writes_it() -> None:
    text = '[{"id":"u","count":4,"devmem":65536,"type":"Ascend910B3","health":true,"custominfo":{"NetworkID":1}}]'
    one = family()

    (info,) = one.rules.node_devices(NodeView(name="n", annotations={"hami.io/node-register-Ascend910B3": text}))

    assert (info.id, info.devmem, info.custom) == ("u", 65536, {"NetworkID": 1})


def test_another_resource_name_is_one_line() -> None:
    one = family(resourceName="hami.io/ascend")
    assert one.rules.policy

    asked = one.rules.policy.request(ContainerView(name="c", limits={"hami.io/ascend": "2"}))

    assert asked == Demand(device_type="Ascend910B3", count=2, percent=100)


def test_hamis_section_has_another_name(tmp_path: Path) -> None:
    file = tmp_path / "device-config.yaml"
    entry = {"commonWord": "Ascend310P", "resourceName": "hami.io/ascend"}
    file.write_text(yaml.safe_dump({"vnpus": {"hamiVnpuCore": True, "configs": [entry]}}))

    (layer,), warnings = device_config(read_yaml(file), {"ascend": AscendSettings})
    settings = AscendSettings.model_validate(layer.values["vendors"]["ascend"])

    assert not warnings
    assert settings.soft
    assert [(chip.count, chip.memory_capacity) for chip in settings.chips] == [("hami.io/ascend", 24576)]
    assert layer.places["vendors", "ascend", "hamiVnpuCore"].path == "vnpus.hamiVnpuCore"


def fit_question(count: int, states: list[DeviceState], device_type: str = "Ascend910B3") -> dict[str, Any]:
    devices = [
        {
            "id": state.uuid,
            "index": state.index,
            "type": state.info.type,
            "count": 4,
            "totalmem": 65536,
            "totalcore": 20,
            "health": True,
            "custominfo": state.info.custom,
        }
        for state in states
    ]
    request = {"nums": count, "type": device_type, "memreq": 1000, "mempercentagereq": 0, "coresreq": 0}
    return {"fn": "fit", "vendor": device_type, "request": request, "devices": devices, "pod": {}}


def grant_of(uuids: str, **bill: int) -> dict[str, Any]:
    return {"ok": True, "devices": {"w": [{"uuid": uuid, "usedmem": 1000, **bill} for uuid in uuids]}}


RULES = {difference.id: difference for difference in parity().differences}


def test_a_tie_is_no_excuse_for_a_worse_choice_or_another_bill() -> None:
    rule, question = RULES["D-170"], fit_question(2, chips(4, networks=(0, 0, 1, 1)))
    theirs = grant_of("32")

    assert rule.applies(question)
    assert rule.right(question, grant_of("10"), theirs)
    assert not rule.right(question, grant_of("30"), theirs)
    assert not rule.right(question, grant_of("1"), theirs)
    assert not rule.right(question, grant_of("10", usedmem=1), theirs)
    assert not rule.right(question, {"ok": False, "reason": ""}, theirs)


def test_a_broken_module_is_no_tie() -> None:
    rule, question = RULES["D-170"], fit_question(2, chips(4, "Ascend910C"), "Ascend910C")

    assert rule.applies(question)
    assert rule.right(question, grant_of("10"), grant_of("32"))
    assert not rule.right(question, grant_of("21"), grant_of("32"))
    assert not RULES["D-170"].applies(fit_question(1, chips(4, "Ascend910C"), "Ascend910C"))


def test_another_chip_is_a_reason_only_where_there_is_one() -> None:
    rule = RULES["D-171"]
    mixed = fit_question(1, [*chips(1, "Ascend910B4"), chips(2, "Ascend910B4-1")[1]], "Ascend910B4")

    assert rule.applies(mixed)
    assert not rule.applies(fit_question(1, chips(2, "Ascend910B4"), "Ascend910B4"))
    assert rule.right(mixed, grant_of("0"), as_hami(mixed))
    assert not rule.right(mixed, grant_of("1"), as_hami(mixed))
    assert not rule.right(mixed, grant_of("0"), grant_of("1"))  # not all that HAMi says of a grant


def as_hami(question: dict[str, Any]) -> dict[str, Any]:
    """HAMi takes every chip whose word contains the one that is asked for."""
    device_type = question["vendor"]
    alike = [{**one, "type": device_type} for one in question["devices"]]
    family = next(family for family in families(AscendSettings()) if family.resources.device_type == device_type)
    assert family.rules.policy
    return dict(fits.answer({**question, "devices": alike}, family.rules.policy, Parity()))


def test_fewer_than_asked_for_are_told_from_another_fault() -> None:
    rule, question = RULES["D-172"], fit_question(3, chips(3, networks=(0, 0, "a")))

    assert rule.applies(question)
    assert rule.right(question, grant_of("102"), grant_of("10"))
    assert not rule.right(question, grant_of("102"), grant_of("012"))
    assert not rule.applies(fit_question(3, chips(3, networks=(0, 0, 1))))


def test_a_denial_is_a_difference_only_beyond_any_request() -> None:
    rule = RULES["D-173"]

    def question(memory: str, annotations: dict[str, str]) -> dict[str, Any]:
        limits = {"huawei.com/Ascend910B3": "1", "huawei.com/Ascend910B3-memory": memory}
        pod = {"annotations": annotations}
        return {"fn": "mutate", "vendor": "Ascend910B3", "container": {"limits": limits}, "pod": pod}

    assert rule.applies(question("16Gi", SOFT))
    assert not rule.applies(question("16Gi", {}))
    assert not rule.applies(question("2147483647", SOFT))
    assert rule.right({}, {"err": "no"}, {"found": True})
    assert not rule.right({}, {"found": True}, {"found": True})
