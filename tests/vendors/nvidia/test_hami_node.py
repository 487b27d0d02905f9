"""The cases of HAMi's own tests of its NVIDIA device plugin: whose share is next, and which ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from hami_plugin.allocation.allocator import question_of
from hami_plugin.allocation.identity import (
    Found,
    HeldShare,
    HeldShares,
    Identity,
    Pending,
    PodReader,
    Unknown,
    choose_preferred,
    identify,
)
from hami_plugin.model.device import NO_LINKS, Device, Snapshot, physical_id
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.pods import DecidedShare, Question, decided_shares, decode_devices, encode_devices, erase
from tests.hami import values
from tests.support.hami import Json, asks
from tests.support.hami_questions import family

NODE, GPU = "n1", "nvidia.com/gpu"
Pieces = Sequence[Sequence[Grant]]


@cache
def question(device_type: str = "NVIDIA") -> Question:
    return question_of(family(device_type))


def pod_of(told: Json, pieces: Pieces) -> PodView:
    """A starting pod, of which those containers ask for a card that HAMi has given one."""
    view = values.pod(told)
    asking = [
        replace(container, limits={GPU: str(len(piece))} if piece else {})
        for container, piece in zip(view.containers, [*pieces, *[()] * len(view.containers)], strict=False)
    ]
    return replace(view, uid=view.uid or "u", node=NODE, phase="Pending", containers=tuple(asking))


def next_share(told: Json, pieces: Pieces, device_type: str = "NVIDIA") -> DecidedShare | None:
    key = question().to_allocate
    asking = replace(pod_of(told, pieces), annotations={key: encode_devices(pieces)})
    return next((claim for claim in decided_shares(asking, question(device_type)) if claim.piece is not None), None)


def same(claim: DecidedShare | None, expected: Json) -> bool:
    if expected["error"]:
        return claim is None
    return claim is not None and (claim.container.name, list(claim.grants)) == (
        expected["container"]["name"],
        [values.grant(one) for one in expected["devices"]],
    )


@asks("nvidia_device_plugin", "popNextContainerDevices")
def test_the_next_share_is_the_first_that_is_left_and_then_it_is_gone(case: Json) -> None:
    pieces = values.pieces(case["input"]["podSingleDev"])

    claim = next_share(case["input"]["pod"], pieces)

    assert same(claim, case["expected"])
    if claim:
        assert claim.piece is not None
        left = decode_devices(erase(encode_devices(pieces), claim.piece).removesuffix(";"))
        assert left == values.pieces(case["expected"]["after"]["podSingleDev"])


@asks("nvidia_device_plugin", "GetNextDeviceRequest")
def test_the_next_share_is_found_behind_init_containers(case: Json) -> None:
    told = case["input"]["p"]
    pieces = decode_devices(told["annotations"][question().to_allocate])

    assert same(next_share(told, pieces, case["input"]["dtype"]), case["expected"])


@asks("nvidia_device_plugin", "decodePodSingleDevice")
def test_a_decision_is_read_as_hami_reads_it(case: Json) -> None:
    text = case["input"]["p"]["annotations"][question().to_allocate]

    assert decode_devices(text) == values.pieces(case["expected"]["devices"])


@asks("nvidia_device_plugin", "patchErasedAnnotation")
def test_a_share_is_crossed_out_where_hami_crosses_it_out(case: Json) -> None:
    """HAMi adds a semicolon each time (D-035)."""
    put, key = case["input"], question().to_allocate
    (gone,) = (
        place
        for place, piece in enumerate(decode_devices(put["pod"]["annotations"][key]))
        if piece and not put["podSingleDev"][place]
    )

    text = erase(put["pod"]["annotations"][key], gone)

    assert f"{text};" == case["expected"]["after"]["pod"]["annotations"][key]


@asks("nvidia_device_plugin", "physicalDeviceID")
def test_the_card_behind_an_id_is_hamis(case: Json) -> None:
    assert physical_id(case["input"]["id"]) == case["expected"]["result"]


def preference(available: Sequence[str], required: Sequence[str], size: int, wanted: Sequence[str]) -> list[str]:
    """What the kubelet is told to take, with a pod waiting for the ``wanted`` cards."""
    grants = tuple(Grant(uuid=uuid, device_type="NVIDIA", memory=0, cores=0) for uuid in wanted)
    container = ContainerView(name="c", limits={GPU: str(size)})
    waiter = PodView(uid="u", namespace="n", name="p", containers=(container,))
    claim = DecidedShare(pod=waiter, container=container, grants=grants, piece=0)
    cards = dict.fromkeys(physical_id(one) for one in available)
    devices = [Device(uuid=one, family="NVIDIA", index=n, model="x", memory=1) for n, one in enumerate(cards)]
    waiting = Pending(next=(claim,) if wanted else (), unannotated=(), unreadable=())
    snapshot = Snapshot(devices=tuple(devices), links=NO_LINKS)
    return list(
        choose_preferred(available, required, size, waiting=waiting, held=HeldShares(), resource=GPU, snapshot=snapshot)
    )


@asks("nvidia_device_plugin", "selectPreferredDeviceIDsFromAnnotatedDevices")
def test_the_decided_cards_are_preferred_and_otherwise_different_ones(case: Json) -> None:
    put, expected = case["input"], case["expected"]
    wanted = [one["uuid"] for one in put["desired"]]

    told = preference(put["available"], put["required"] or (), put["allocationSize"], wanted)

    if expected["error"]:  # a decided card has no id left: HAMi then says what it says without a decision
        assert told == preference(put["available"], put["required"] or (), put["allocationSize"], ())
        assert len({physical_id(one) for one in told}) == put["allocationSize"]
    else:
        assert told == expected["device_ids"]


DECIDED = {"GetPreferredAllocation-001"}
"""Where HAMi's test lets a decision be found, which is not recorded: it is for the cards of the answer."""


@asks("nvidia_device_plugin", "GetPreferredAllocation")
def test_a_preference_is_hamis_and_there_is_always_one(case: Json) -> None:
    """HAMi says nothing when it fails (D-033)."""
    (put,) = case["input"]["r"]["container_requests"]
    (theirs,) = case["expected"]["response"].get("container_responses") or ({"device_i_ds": None},)
    ids = theirs["device_i_ds"]
    wanted = [physical_id(one) for one in ids] if case["id"] in DECIDED else ()
    available, required = put["available_device_i_ds"], put.get("must_include_device_i_ds", ())

    told = preference(available, required, put["allocation_size"], wanted)

    if ids:
        assert told == ids
    else:
        assert len({physical_id(one) for one in told}) == put["allocation_size"]


def spelt(value: Json) -> Json:
    """The same with UUIDs as NVML writes them: the short ones of HAMi's tests tell no card from an id."""
    text = json.dumps(value)
    for short in ("GPU-aaa", "GPU-bbb", "GPU-annotated-a", "GPU-annotated-b", "MIG-aaa", "MIG-unknown", "MIG-gpu-uuid"):
        digits = short.encode().hex().ljust(32, "0")[-12:] + short.encode().hex()[:20]
        full = f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"
        for end in ("-0", "-1", ",", "::", '"'):
            text = text.replace(f"{short}{end}", f"{full}{end}")
    return dict(json.loads(text))


def identities(requests: Sequence[Sequence[str]], pods: Sequence[PodView]) -> list[Identity]:
    """Who asks, for each of the kubelet's requests in turn. It stops at the first that nobody asks for."""
    held = HeldShares()
    found: list[Identity] = []
    for ids in requests:
        one = identify(ids, PodReader(question(), NODE).pending(pods, held), held, question())
        found.append(one)
        if not isinstance(one, Found):
            return found
        claim = one.claim
        handed = HeldShare(
            uid=claim.pod.uid,
            namespace=claim.pod.namespace,
            pod=claim.pod.name,
            container=claim.container.name,
            resource=GPU,
            ids=frozenset(ids),
            grants=claim.grants,
        )
        held.put(handed)
    return found


def named(pod: Json) -> list[Json]:
    return [{"name": container["name"]} for container in pod["containers"]]


def known_as(case: Json) -> list[Identity]:
    put = spelt(case["input"])
    requests = [one["devices_ids"] for one in put["reqs"]["container_requests"]]
    counts = [[Grant(uuid="", device_type="", memory=0, cores=0)] * len(ids) for ids in requests]
    told = (put.get("cluster") or {}).get("pods", {})
    return identities(
        requests, [pod_of({**one, "name": name, "containers": named(one)}, counts) for name, one in told.items()]
    )


OTHERWISE = {
    "Allocate-012": "D-036: the annotation is patched behind the answer, so a patch that fails does not fail the pod",
    "Allocate-013": "D-030: the kubelet's card is not the decided one, and would get the other's limits",
    "Allocate-014": "D-030: the kubelet's cards are not the decided ones, and would get the others' limits",
}


@asks("nvidia_device_plugin", "NvidiaDevicePlugin.Allocate")
def test_a_request_is_somebodys_when_hami_serves_it(case: Json) -> None:
    """What is served then is compared in `test_injection.py`. Cards in MIG mode are not offered here (G-01)."""
    found = known_as(case)

    serves = not case["expected"]["error"]
    assert all(isinstance(one, Found) for one in found) is (serves if case["id"] not in OTHERWISE else not serves)


@asks("nvidia_device_plugin", "alignContainerDevicesWithAllocatedIDs")
def test_limits_never_go_to_another_card_than_the_decided_one(case: Json) -> None:
    """HAMi hands the kubelet's cards out with the limits of the decided ones, by position (D-030)."""
    put = spelt(case["input"])
    grants = [values.grant(one) for one in put["devreq"]]
    annotations = {question().to_allocate: encode_devices([grants])}
    waiting = replace(pod_of({"name": "p", "containers": [{"name": "c"}]}, [grants]), annotations=annotations)

    (other,) = identities([put["deviceIDs"]], [waiting])
    (decided,) = identities([[f"{grant.uuid}-0" for grant in grants]], [waiting])

    assert isinstance(other, Unknown)
    assert isinstance(decided, Found)
