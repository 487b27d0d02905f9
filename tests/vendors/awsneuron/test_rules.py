"""What is different in AWS Neuron: neighbours by number, cores as bits, and a machine's real number of cores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.errors import WireError
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.pods import encode_devices
from hami_plugin.scheduler.engine.devices import (
    ORDER_KEY,
    Admitted,
    Context,
    Demand,
    Denied,
    DeviceState,
    Invalid,
    Reason,
    idle_state,
)
from hami_plugin.scheduler.engine.fit import Granted, PodFit, Refused, fit, fit_pod
from hami_plugin.scheduler.engine.node_info import read_node, scheduling_policies
from hami_plugin.scheduler.engine.quotas import excess, quota
from tests.hami import values
from tests.hami.catalog import Catalog
from tests.hami.run import Case, asked, documented_in, lines
from tests.support.hami import answers
from vendors.awsneuron.rules import families, lowest
from vendors.awsneuron.settings import AwsNeuronSettings

ROOT = Path(__file__).parents[3]
NAMES = {"custom_info": "custominfo", "mem_percentagereq": "mempercentagereq"}
ALLOCATED = "hami.io/aws-neuron-devices-allocated"
QUESTIONS = {"Fit": "fit", "GenerateResourceRequests": "request", "MutateAdmission": "mutate"}

(NEURON,) = families(AwsNeuronSettings(), clock=lambda: 17)
(INFERENTIA1,) = families(AwsNeuronSettings(cores_per_device=4))


def machine(kind: str, devices: int, cores: int = 2) -> list[DeviceState]:
    node = NodeView(
        name="n",
        labels={"node.kubernetes.io/instance-type": kind},
        capacity={"aws.amazon.com/neuron": str(devices), "aws.amazon.com/neuroncore": str(devices * cores)},
    )
    return [idle_state(info) for info in NEURON.rules.node_devices(node)]


@pytest.mark.parametrize("cores", [31, 10**15])
def test_a_node_that_tells_of_more_cores_than_a_device_can_have_offers_none_and_says_why(cores: int) -> None:
    with pytest.raises(WireError, match=f"tells of {cores} aws.amazon.com/neuroncore on 1 aws.amazon.com/neuron"):
        machine("trn1.2xlarge", 1, cores)


def booked(states: Sequence[DeviceState], index: int, cores: int) -> list[DeviceState]:
    taken = DeviceState(info=states[index].info, slots=1, cores=cores, notes=states[index].notes)
    return [taken if state.index == index else state for state in states]


def container(**limits: object) -> ContainerView:
    return ContainerView(name="c", limits={f"aws.amazon.com/{name}": str(number) for name, number in limits.items()})


def share(state: DeviceState, cores: int) -> str:
    return encode_devices([(Grant(uuid=state.uuid, device_type="AWSNeuron", cores=cores),)])


def pod(*containers: ContainerView, **annotations: str) -> PodView:
    return PodView(uid="u", namespace="n", name="p", containers=containers, annotations=annotations)


def outcome(
    states: Sequence[DeviceState], asking: ContainerView, annotations: Mapping[str, str] | None = None
) -> Granted | Refused:
    assert NEURON.rules.policy
    demand = NEURON.rules.policy.request(asking)
    assert isinstance(demand, Demand)
    return fit(NEURON.rules.policy, states, Context(demand=demand, pod=pod(**(annotations or {}))))


def chosen(states: Sequence[DeviceState], **limits: int) -> list[int]:
    result = outcome(states, container(**limits))
    return [grant.index for grant in result.grants] if isinstance(result, Granted) else []


def test_trainium_gives_aligned_groups_of_4_8_and_16() -> None:
    sixteen = machine("trn1.32xlarge", 16)

    assert chosen(sixteen, neuron=4) == [0, 1, 2, 3]
    assert chosen(booked(sixteen, 1, 1), neuron=4) == [4, 5, 6, 7]
    assert chosen(booked(sixteen, 1, 1), neuron=8) == [8, 9, 10, 11, 12, 13, 14, 15]
    assert chosen(sixteen, neuron=16) == list(range(16))
    assert chosen(booked(sixteen, 1, 1), neuron=16) == []


@pytest.mark.parametrize("count", [2, 7])
def test_trainium_refuses_what_is_no_group_on_its_torus(count: int) -> None:
    result = outcome(machine("trn1.32xlarge", 16), container(neuron=count))

    assert isinstance(result, Refused)
    assert str(result) == "1/16 NumaNotFit"
    assert all(verdict.reason is None for verdict in result.verdicts)  # no device is at fault


def test_inferentia_gives_consecutive_devices_only() -> None:
    twelve = machine("inf2.48xlarge", 12)

    assert chosen(booked(twelve, 0, 1), neuron=2) == [1, 2]
    assert chosen(booked(booked(twelve, 1, 1), 3, 1), neuron=2) == [4, 5]
    scattered = twelve
    for index in range(1, 12, 2):
        scattered = booked(scattered, index, 3)
    assert chosen(scattered, neuron=1) == [10]
    assert chosen(scattered, neuron=2) == []


def test_places_in_the_list_do_not_matter() -> None:
    busy_first = booked(machine("inf2.xlarge", 4), 3, 3)[::-1]

    assert chosen(busy_first, neuron=3) == [0, 1, 2]


def test_several_devices_obey_the_pods_selectors() -> None:
    states = machine("inf2.48xlarge", 12)
    result = outcome(states, container(neuron=3), {"aws.amazon.com/nouse-neuron-uuid": "n-AWSNeuron-1"})

    assert isinstance(result, Granted)
    assert [grant.index for grant in result.grants] == [2, 3, 4]


def test_a_core_is_the_lowest_free_bit_of_the_last_device_that_has_one() -> None:
    states = booked(machine("trn1.2xlarge", 2), 1, 1)
    result = outcome(states, container(neuroncore=1))

    assert isinstance(result, Granted)
    assert [(grant.index, grant.cores) for grant in result.grants] == [(1, 0b10)]
    assert chosen(booked(states, 1, 0b11), neuroncore=1) == [0]
    assert chosen(states, neuroncore=2) == [0]


def test_three_cores_of_devices_with_two_are_refused_with_the_next_number_that_works() -> None:
    assert NEURON.rules.policy
    asked_for = NEURON.rules.policy.request(container(neuroncore=3))

    assert isinstance(asked_for, Invalid)
    assert str(asked_for) == (
        "aws.amazon.com/neuroncore=3 is not 1 or a multiple of 2, the cores of a device; "
        "the next number that works is 4"
    )
    assert NEURON.rules.admit(container(neuroncore=3), pod()) == Denied(why=str(asked_for))
    assert NEURON.rules.admit(container(neuroncore=4), pod()) == Admitted(found=True)
    assert NEURON.rules.admit(container(cpu=4), pod()) == Admitted(found=False)


def test_a_machines_real_number_of_cores_counts() -> None:
    inferentia1 = machine("inf1.6xlarge", 4, cores=4)
    whole, part = (
        outcome(inferentia1, container(neuroncore=4)),
        outcome(booked(inferentia1, 3, 0b11), container(neuroncore=2)),
    )

    assert isinstance(whole, Granted)
    assert [(grant.index, grant.cores) for grant in whole.grants] == [(3, 0b1111)]
    assert isinstance(part, Granted)
    assert [(grant.index, grant.cores) for grant in part.grants] == [(3, 0b1100)]
    assert chosen(inferentia1, neuroncore=8) == [0, 1]
    refused = outcome(inferentia1, container(neuroncore=6))
    assert isinstance(refused, Refused)
    assert str(refused) == "1/4 CardInsufficientCore"


def test_a_cluster_of_other_devices_can_say_so() -> None:
    assert INFERENTIA1.rules.policy
    assert INFERENTIA1.rules.policy.request(container(neuroncore=3)) == Demand(
        device_type="AWSNeuron", count=1, cores=3
    )
    assert INFERENTIA1.rules.policy.request(container(neuroncore=8)) == Demand(
        device_type="AWSNeuron", count=2, cores=4
    )


def test_cores_are_neighbours() -> None:
    assert lowest(2, 0b1101) == 0b1100
    assert lowest(3, 0b1011) is None


def test_cores_that_were_handed_out_twice_leave_no_others_free() -> None:
    assert NEURON.rules.policy
    state = machine("trn1.2xlarge", 1)[0]
    for _ in range(2):
        state = NEURON.rules.policy.restore(state, Grant(uuid=state.uuid, device_type="AWSNeuron", cores=0b11), pod())

    assert (state.slots, state.cores) == (2, 0b11)


def test_a_shared_device_is_refused_whole_and_under_mutex() -> None:
    states = booked(machine("trn1.2xlarge", 1), 0, 1)
    alone = outcome(states, container(neuroncore=1), {ORDER_KEY: "mutex"})
    whole = outcome(states, container(neuron=1))

    assert isinstance(alone, Refused)
    assert alone.reasons == {Reason.EXCLUSIVE: 1}
    assert isinstance(whole, Refused)
    assert whole.reasons == {Reason.NO_CORES: 1}


def test_what_is_decided_is_written_in_the_words_of_awss_plugin() -> None:
    states = booked(machine("trn1.32xlarge", 16), 15, 1)
    one = outcome(states, container(neuroncore=1))
    assert isinstance(one, Granted)
    decided = pod(container(cpu=1), container(neuroncore=1), **{"hami.io/vgpu-node": "n"})

    assert NEURON.rules.patch(NEURON, decided, {"AWSNeuron": ((), one.grants)}) == {
        "hami.io/aws-neuron-devices-allocated": ";n-AWSNeuron-15,AWSNeuron,0,2:;",
        "AWS_NEURON_IDS": "31",
        "NEURON_RESOURCE_TYPE": "aws.amazon.com/neuroncore",
        "NEURON_ALLOC_TIME": "17",
        "NEURON_ALLOCATED": "false",
        "aws.amazon.com/predicate-node": "n",
    }


def test_devices_that_only_the_requests_name_are_devices() -> None:
    result = outcome(machine("inf2.xlarge", 2), container(neuron=2))
    assert isinstance(result, Granted)
    asking = ContainerView(name="c", requests={"aws.amazon.com/neuron": "2"})

    written = NEURON.rules.patch(NEURON, pod(asking), {"AWSNeuron": (result.grants,)})

    assert written["AWS_NEURON_IDS"] == "0,1"
    assert "NEURON_RESOURCE_TYPE" not in written


def vectors(file: str, *functions: str) -> list[Mapping[str, Any]]:
    found = json.loads((ROOT / f"tests/vectors/hami-tests/{file}.json").read_text())["vectors"]
    return [vector for vector in found if vector["fn"].rpartition(".")[2] in functions]


def renamed(value: Any) -> Any:
    if isinstance(value, list):
        return [renamed(item) for item in value]
    return {NAMES.get(key, key): renamed(item) for key, item in value.items()} if isinstance(value, dict) else value


def case(vector: Mapping[str, Any]) -> Case:
    kind = QUESTIONS[vector["fn"].rpartition(".")[2]]
    put, expected = renamed(vector["input"]), renamed(vector["expected"])
    theirs = {
        "fit": {"ok": expected.get("fit"), **{key: expected.get(key) for key in ("reason", "devices")}},
        "request": {"request": expected.get("request")},
        "mutate": {"err": expected.get("error"), "found": expected.get("found"), **_amounts(put)},
    }[kind]
    seen = (put.get("backend") or {}).get("cores_per_aws_neuron", 0)
    blank = {"nums": 0, "memreq": 0, "mempercentagereq": 0, "coresreq": 0}
    question = {**put, "fn": kind, "vendor": "AWSNeuron", "cores_per_neuron": seen}
    return Case(
        id=vector["id"], question={**question, "request": {**blank, **put.get("request", {})}}, answers=(theirs,)
    )


def _amounts(put: Mapping[str, Any]) -> Mapping[str, Any]:
    return {fit_pod: put.get("container", {}).get(fit_pod) for fit_pod in ("limits", "requests")}


@answers(("awsneuron_fit", "awsneuron_request"), *QUESTIONS)
@pytest.mark.parametrize(("file", "least"), [("awsneuron_fit", 25), ("awsneuron_request", 120)])
def test_hamis_own_tests_are_answered_alike(file: str, least: int) -> None:
    cases = [case(vector) for vector in vectors(file, *QUESTIONS)]

    result = asked(cases, Catalog(), documented_in((ROOT / "docs/differences.md").read_text()))

    assert not result.unexplained, "\n".join(lines({file: result}))
    assert result.agreed >= least


@answers(("awsneuron_graphselect_table", "awsneuron_topology"), "graphSelect(compact)", "graphSelect")
def test_of_each_pattern_of_busy_devices_the_same_group_is_chosen() -> None:
    table = [
        *vectors("awsneuron_graphselect_table", "graphSelect(compact)"),
        *vectors("awsneuron_topology", "graphSelect"),
    ]
    compared = 0
    for vector in table:
        put = vector["input"]
        if put.get("request", put.get("count")) == 1:
            continue  # HAMi never asks: one device is chosen otherwise
        assert chosen(drawn(put), neuron=put.get("request", put.get("count"))) == (vector["expected"]["result"] or [])
        compared += 1
    assert compared > 600


def drawn(put: Mapping[str, Any]) -> list[DeviceState]:
    if "devices" in put:
        kind = put["devices"][0].get("custom_info", {}).get("AWSNodeType", "")
        busy = {device.get("index", 0) for device in put["devices"] if device.get("used") or not device.get("health")}
        states = machine(kind, len(put["devices"]))
    else:
        busy = {int(index) for index in (*put["used"], *put["unhealthy"])}
        states = machine(put["node_type"], put["device_count"])
    for index in busy:
        states = booked(states, index, 3)
    return states


def test_every_core_that_a_starting_pods_containers_will_have_is_kept_for_it() -> None:
    """On a device whose core 1 is taken, the init container has cores 2 and 3, and the main one has core 0."""
    state = machine("inf1.xlarge", 1, cores=4)[0]
    node = NodeView(name="n", capacity={"aws.amazon.com/neuron": "1", "aws.amazon.com/neuroncore": "4"})
    key = {"hami.io/vgpu-node": "n"}
    other = replace(pod(container(neuroncore=1)), uid="other", annotations={**key, ALLOCATED: share(state, 0b0010)})
    early = replace(container(neuroncore=2), name="early", init=True)
    decided = replace(pod(early, container(neuroncore=1)), annotations=key)
    placed = fit_pod(decided, scheduling_policies([NEURON]), read_node(node, [NEURON], [other]).node_info)
    assert isinstance(placed, PodFit)
    written = NEURON.rules.patch(NEURON, decided, placed.given)
    assert written[ALLOCATED] == share(state, 0b1100) + share(state, 0b0001)

    node_info = read_node(node, [NEURON], [other, replace(decided, annotations={**key, **written})]).node_info

    assert [one.cores for one in node_info.pools["AWSNeuron"].states] == [0b1111]


@pytest.mark.difference("D-327")
def test_a_namespaces_quota_of_cores_counts_cores_and_not_the_mask() -> None:
    """One core, which happens to be the device's fourth."""
    name = "limits.aws.amazon.com/neuroncore"
    state = machine("inf1.xlarge", 1, cores=4)[0]
    running = pod(container(neuroncore=1), **{ALLOCATED: share(state, 0b1000)})

    found = quota("n", {name: "2"}, [NEURON], [running])

    assert found.used["aws.amazon.com/neuroncore"] == 1
    assert excess(pod(container(neuroncore=1)), [NEURON], found) == ""
    assert excess(pod(container(neuroncore=2)), [NEURON], found) == f"{name}: the pod needs 2, and 1 of 2 are used"


@pytest.mark.difference("D-137")
def test_a_core_that_two_pods_have_is_one_core_and_makes_no_other_look_taken_or_free() -> None:
    """Added up, the masks of core 0 would be that of core 1 alone."""
    state = machine("trn1.2xlarge", 1)[0]
    node = NodeView(name="n", capacity={"aws.amazon.com/neuron": "1", "aws.amazon.com/neuroncore": "2"})
    written = {"hami.io/vgpu-node": "n", ALLOCATED: share(state, 0b01)}
    pods = [replace(pod(container(neuroncore=1), **written), uid=uid, name=uid) for uid in "ab"]

    node_info = read_node(node, [NEURON], pods).node_info

    assert [one.cores for one in node_info.pools["AWSNeuron"].states] == [0b01]


@answers("awsneuron_fit", "GetNodeDevices")
def test_a_nodes_devices_are_read_alike() -> None:
    for vector in vectors("awsneuron_fit", "GetNodeDevices"):
        found = NEURON.rules.node_devices(values.node(vector["input"]["node"]))
        theirs = vector["expected"]["devices"] or []
        assert [(info.id, info.index, info.count, info.devcore, info.custom) for info in found] == [
            (one["id"], one.get("index", 0), one["count"], one["devcore"], one["custom_info"]) for one in theirs
        ]


@answers("awsneuron_fit", "PatchAnnotations")
def test_a_decision_is_written_alike() -> None:
    for vector in vectors("awsneuron_fit", "PatchAnnotations"):
        pieces = values.pieces(vector["input"]["pod_devices"]["AWSNeuron"])
        written = NEURON.rules.patch(NEURON, values.pod(vector["input"]["pod"]), {"AWSNeuron": pieces})
        assert {**written, "NEURON_ALLOC_TIME": "{now_unix_nano}"} == vector["expected"]["annotations"]
