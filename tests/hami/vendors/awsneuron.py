"""How our answers about Neuron devices are compared with HAMi's, and where they differ on purpose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import dropwhile
from typing import Any

from hami_plugin.model.placement import Grant
from hami_plugin.scheduler.engine.devices import INT32_MAX, Demand, DeviceState, Reason
from tests.hami import fits, values
from tests.hami.compare import compared
from tests.hami.parity import ADMISSION, PLACED, REQUEST, Json, Parity, differences, pod_annotations, uuids
from vendors.awsneuron.rules import DEVICE_TYPE, KIND, SELECTORS, WHOLE, families
from vendors.awsneuron.settings import AwsNeuronSettings

BOOKED = "awsusageinfo"
"""Where HAMi keeps a copy of a device's mask."""


def parity() -> Parity:
    """Neuron's part in the comparison."""
    return Parity(
        one_reason=True,
        settings=lambda question: {"coresPerDevice": question.get("cores_per_neuron") or 2},
        demand=_demand,
        said=_with_masks,
        differences=differences(
            {
                "D-130": (_out_of_order, _sound, PLACED),
                "D-131": (_named_several, _sound, PLACED),
                "D-132": (_other_devices, _sound, PLACED),
                "D-133": (_unseen, _sound, PLACED),
                "D-134": (_cores_of_unusual_devices, _split_by_device, (*REQUEST, *ADMISSION)),
                "D-135": (_devices_of_an_unseen_node, _whole_devices, ("request.coresreq",)),
                "D-136": (_countless_cores, _denied, (*REQUEST, *ADMISSION)),
            }
        ),
    )


def _demand(request: Json) -> Demand:
    """HAMi does not tell cores from devices: several, and those of a node not seen yet, are whole ones."""
    count, cores = request["nums"], request["coresreq"]
    return Demand(
        device_type=request["type"], count=count, cores=cores, detail=WHOLE if count > 1 or not cores else None
    )


def _with_masks(question: Json, answer: Json) -> Json:
    """With the copies of masks: of what is granted, and of every device that HAMi looks at on the way to one."""
    if not answer["ok"]:
        return answer
    granted = {one["uuid"]: {**one, "custominfo": {BOOKED: one["usedcores"]}} for one in answer["devices"][DEVICE_TYPE]}
    told: dict[str, Any] = {**answer, "devices": {DEVICE_TYPE: list(granted.values())}}
    if "applied" in answer:
        before = {device["id"]: device for device in question["devices"]}
        walk = dropwhile(lambda uuid: uuid not in granted, before)
        seen = {*granted, *(walk if question["request"]["nums"] == 1 else ())}
        seen |= {uuid for uuid, device in before.items() if BOOKED in (device.get("custominfo") or {})}
        told["applied"] = list(granted.values())
        told["usage_after"] = [
            {**one, "custominfo": {**one["custominfo"], BOOKED: one["usedcores"]}} if one["id"] in seen else one
            for one in answer["usage_after"]
        ]
    return told


def _wanted(question: Json) -> int:
    return int(question["request"]["nums"]) if question["fn"] == "fit" and question["vendor"] == DEVICE_TYPE else 0


def _out_of_order(question: Json) -> bool:
    """A device does not stand in the list where its index says."""
    return _wanted(question) > 1 and any(place != one.index for place, one in enumerate(values.states(question)))


def _named_several(question: Json) -> bool:
    return _wanted(question) > 1 and any(pod_annotations(question).get(key) for key in SELECTORS)


def _other_devices(question: Json) -> bool:
    """Devices do not have two cores."""
    return bool(_wanted(question)) and any(state.info.devcore != 3 for state in values.states(question))


def _unseen(question: Json) -> bool:
    return _wanted(question) == 1 and question["request"]["coresreq"] == 0


def _sound(question: Json, ours: Json, theirs: Json) -> bool:
    """The first idle neighbours, or as many free cores as asked for of the first device that has them; none if none.

    Where HAMi's answer is what it makes of places in the list, and of two cores in each device.
    """
    if not _by_place(question, theirs):
        return False
    request = question["request"]
    per_device = max(state.info.devcore.bit_length() for state in values.states(question))
    count, cores = request["nums"], request["coresreq"]
    if count > 1 or not cores:
        cores = per_device
    elif cores > per_device:
        count, cores = divmod(cores, per_device)
        count, cores = (0, 0) if cores else (count, per_device)
    possible = _possible(question, count, cores) if count else []
    if not ours["ok"]:
        return not possible and _refused(question, ours["reason"], count)
    return bool(possible) and {one["idx"]: one["usedcores"] for one in ours["devices"][DEVICE_TYPE]} == possible[0]


def _refused(question: Json, reason: str, count: int) -> bool:
    """Devices are too few by one reason for all of them; for a single one each tells its own."""
    if count == 1:
        policy = families(AwsNeuronSettings())[0].rules.policy
        return policy is not None and fits.reasons_hold(question, reason, policy, _demand(question["request"]))
    return reason == f"1/{len(question['devices'])} {Reason.NUMA if count else Reason.NO_CORES}"


def _possible(question: Json, count: int, cores: int) -> list[Mapping[int, int]]:
    """Everything that could be granted, the first choice first: masks by index."""
    mutex = "mutex" in pod_annotations(question).get("hami.io/gpu-scheduler-policy", "")
    free: dict[int, list[int]] = {}
    for state in reversed(values.states(question)):
        idle = not state.slots if count > 1 or mutex else state.slots < state.info.count
        if idle and state.info.health and _allowed(question, state.uuid):
            masks = [((1 << cores) - 1) << start for start in range(state.info.devcore.bit_length() - cores + 1)]
            free[state.index] = [mask for mask in masks if not mask & state.cores]
    if count == 1:
        return [{index: mask} for index, masks in free.items() for mask in masks]
    ring = "inf" in str(values.states(question)[0].notes[KIND]).lower()
    starts = [start for start in sorted(free) if ring or (count in (4, 8, 16) and start % count == 0)]
    runs = [range(start, start + count) for start in starts]
    return [{index: free[index][0] for index in run} for run in runs if all(free.get(index) for index in run)]


def _by_place(question: Json, theirs: Json) -> bool:
    """HAMi's rule: several devices stand beside one another in the list; a single one is the last that has the cores,
    of which two are told apart.
    """
    found = _windows(question) if _wanted(question) > 1 else _last_with_cores(question)
    if isinstance(found, str):
        return not theirs["ok"] and theirs["reason"] == found
    policy = families(AwsNeuronSettings())[0].rules.policy
    return policy is not None and fits.granted(question, theirs, policy, Parity(said=_with_his_masks), found)


def _windows(question: Json) -> list[Grant] | str:
    """All cores of each device whose index is a place of the first idle neighbours; a reason if there are none."""
    states, count = values.states(question), _wanted(question)
    ring = "inf" in str(states[0].notes.get(KIND)).lower()
    step = 1 if ring else count if count in (4, 8, 16) else len(states)
    idle = [state.info.health and not state.slots for state in states]
    starts = (start for start in range(0, len(states) - count + 1, step) if ring or count in (4, 8, 16))
    start = next((start for start in starts if all(idle[start : start + count])), None)
    if start is None:
        return f"1/{len(states)} {Reason.NUMA}"
    by_index = {state.index: state for state in states}
    return [_grant(by_index[index], by_index[index].info.devcore) for index in range(start, start + count)]


def _last_with_cores(question: Json) -> list[Grant] | str:
    states, cores, against = values.states(question), question["request"]["coresreq"], Counter[str]()
    mutex = "mutex" in pod_annotations(question).get("hami.io/gpu-scheduler-policy", "")
    for state in reversed(states):
        reasons = {
            Reason.UNHEALTHY: not state.info.health,
            Reason.UUID_MISMATCH: not _allowed(question, state.uuid),
            Reason.NO_SLOT: state.slots >= state.info.count,
            Reason.EXCLUSIVE: mutex and state.slots > 0,
            Reason.NO_CORES: state.info.devcore.bit_count() - state.cores.bit_count() < cores,
        }
        reason = next((reason for reason, true in reasons.items() if true), None)
        if reason is None:
            return [_grant(state, _delta(question, state))]
        against[str(reason)] += 1
    return ", ".join(sorted(f"{count}/{len(states)} {reason}" for reason, count in against.items()))


def _grant(state: DeviceState, mask: int) -> Grant:
    return Grant(uuid=state.uuid, device_type=DEVICE_TYPE, cores=mask, index=state.index)


def _delta(question: Json, state: DeviceState) -> int:
    """What is added to HAMi's copy of a mask. On the way to a single device the copy is made, if there is none."""
    before = int(state.notes.get(BOOKED, state.cores if _wanted(question) == 1 else 0))
    return 1 if question["request"]["coresreq"] == 1 and not before else 3 - before


def _with_his_masks(question: Json, answer: Json) -> Json:
    """With HAMi's copies of the masks, of which each has two cores."""
    his = _with_masks(question, answer)
    states = {state.uuid: state for state in values.states(question)}
    added = {uuid: _delta(question, states[uuid]) for uuid in uuids(answer)}
    for one in (*his["devices"][DEVICE_TYPE], *his.get("applied", ())):
        one["custominfo"] = {BOOKED: added[one["uuid"]]}
    for one in his.get("usage_after", ()):
        if BOOKED in one["custominfo"]:
            unseen = states[one["id"]].cores if _wanted(question) == 1 else 0
            one["custominfo"][BOOKED] = states[one["id"]].notes.get(BOOKED, unseen) + added.get(one["id"], 0)
    return his


def _allowed(question: Json, uuid: str) -> bool:
    texts = [pod_annotations(question).get(key, "").strip() for key in SELECTORS]
    use, avoid = ([name.strip() for name in text.split(",")] if text else None for text in texts)
    return (use is None or uuid in use) and (avoid is None or uuid not in avoid)


def _asks(question: Json, kinds: tuple[str, ...], resource: str) -> str:
    """How much of a resource a container asks for; empty if the question is of another kind."""
    if question["fn"] not in kinds or question["vendor"] != DEVICE_TYPE:
        return ""
    container = question["container"]
    return str({**(container.get("requests") or {}), **(container.get("limits") or {})}.get(resource, ""))


def _cores(question: Json, *kinds: str) -> int:
    """The cores that a container asks for; 0 if it does not, or asks for devices."""
    text = _asks(question, kinds, "aws.amazon.com/neuroncore")
    return int(text) if text.isdecimal() and not _asks(question, kinds, "aws.amazon.com/neuron") else 0


def _cores_of_unusual_devices(question: Json) -> bool:
    """Devices have more than the two cores that HAMi reckons with at most."""
    return bool(_cores(question, "request", "mutate") and question["cores_per_neuron"] > 2)


def _split_by_device(question: Json, ours: Json, _theirs: Json) -> bool:
    """Cores of one device, or all of several; no request, or a denial, if that cannot be."""
    asked, most = _cores(question, "request", "mutate"), question["cores_per_neuron"]
    works = asked <= most or asked % most == 0
    if question["fn"] == "mutate":
        return _admitted(question, ours) if works else bool(ours.get("err"))
    if not works:
        return not ours["request"]["nums"]
    count, cores = (1, asked) if asked <= most else (asked // most, most)
    return bool(ours["request"] == _request(count, cores))


def _request(count: int, cores: int) -> Json:
    return {"nums": count, "type": DEVICE_TYPE, "memreq": 0, "mempercentagereq": 0, "coresreq": cores}


def _admitted(question: Json, ours: Json) -> bool:
    """As it is."""
    container, pod = question["container"], question["pod"]
    as_it_is = {name: container.get(name) for name in ("limits", "requests", "env")}
    return not compared(question, ours, {**as_it_is, "pod_annotations": pod.get("annotations"), "found": True})


def _devices_of_an_unseen_node(question: Json) -> bool:
    return bool(_asks(question, ("request",), "aws.amazon.com/neuron") and question["cores_per_neuron"] == 0)


def _whole_devices(question: Json, ours: Json, theirs: Json) -> bool:
    """As many as HAMi says, with the cores that a device has when none was seen."""
    seen = AwsNeuronSettings().cores_per_device
    return bool(not question["cores_per_neuron"] and ours["request"] == _request(theirs["request"]["nums"], seen))


def _countless_cores(question: Json) -> bool:
    return _cores(question, "request", "mutate") > INT32_MAX


def _denied(question: Json, ours: Json, theirs: Json) -> bool:
    """Denied, and no request, where HAMi takes it for one."""
    if question["fn"] == "mutate":
        return bool(ours.get("err")) and not theirs.get("err")
    return not ours["request"]["nums"] and bool(theirs["request"]["nums"])
