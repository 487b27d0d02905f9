"""Who uses a device by its driver's list of processes."""

from __future__ import annotations

from dataclasses import replace

from hami_plugin.model.usage import DeviceLoad, DeviceProcess, ProcessOwner
from hami_plugin.model.views import PodView, pod_view
from hami_plugin.node_status.occupancy import device_occupancy
from hami_plugin.node_status.registration import FamilySource
from hami_plugin.node_status.usage import Outsider, ProcessTotals, device_users
from hami_plugin.process.concurrency import Watched
from tests.support.builders import FAMILY, grant, held_by, ids, pod, snapshot

MIB = 1 << 20
ONE, TWO = pod("one"), pod("two")
MAIN, SIDE = "aa" * 32, "bb" * 32


def users(*processes: tuple[int, str | None, str], pods: tuple[PodView, ...] = (ONE, TWO)):
    """Of the first card, which containers ``main`` and ``side`` of one pod share with ``main`` of another; each process
    has so many MiB, a pod (None: unknown) and a container's id.
    """
    held = [
        held_by(ONE, "main", ids((0, 0)), [grant(0, 1000, 10)]),
        held_by(ONE, "side", ids((0, 1)), [grant(0, 1000, 10)]),
        held_by(TWO, "main", ids((0, 2)), [grant(0, 1000, 10)]),
    ]
    source = FamilySource(vendor="acme", family=FAMILY, snapshot=Watched(snapshot(1)))
    (card,) = device_occupancy([source], held)
    listed = tuple(
        DeviceProcess(
            pid=number + 1,
            memory_used=mib * MIB or None,
            owner=None if uid is None else ProcessOwner(pod=uid, container=container),
        )
        for number, (mib, uid, container) in enumerate(processes)
    )
    found = device_users(card, DeviceLoad(processes=listed), {one.uid: one for one in pods}.get)
    assert found
    names = {one.key: f"{one.pod}/{one.container}" for one in held}
    told = {names[key]: each for key, each in found.containers.items()}
    return {**told, **{str(who): each for who, each in found.outsiders.items()}}


NOTHING = ProcessTotals(processes=0, memory=0)
RUNNING = replace(ONE, running={MAIN: "main", SIDE: "side"})


def test_processes_are_their_containers_and_others_are_counted_by_whose_they_are() -> None:
    found = users(
        (500, ONE.uid, MAIN), (200, ONE.uid, MAIN), (0, ONE.uid, SIDE), (70, TWO.uid, "cc" * 32),
        (9, "", ""), (8, "stranger", "dd" * 32), (7, None, ""),
        pods=(RUNNING, TWO),
    )  # fmt: skip

    assert found == {
        "one/main": ProcessTotals(processes=2, memory=700 * MIB),
        "one/side": ProcessTotals(processes=1, memory=0),
        "two/main": ProcessTotals(processes=1, memory=70 * MIB),
        "no pod": ProcessTotals(processes=1, memory=9 * MIB),
        "another pod": ProcessTotals(processes=1, memory=8 * MIB),
        "unknown": ProcessTotals(processes=1, memory=7 * MIB),
    }


def test_which_of_a_pods_containers_it_is_is_not_guessed() -> None:
    found = users((500, ONE.uid, MAIN), (300, TWO.uid, "cc" * 32))

    assert (found["one/main"], found["one/side"]) == (NOTHING, NOTHING)
    assert found["unknown"] == ProcessTotals(processes=1, memory=500 * MIB)
    assert found["two/main"] == ProcessTotals(processes=1, memory=300 * MIB)


def test_a_container_of_the_pod_without_a_share_of_the_device_is_an_outsider() -> None:
    running = replace(TWO, running={MAIN: "main", SIDE: "exporter"})
    found = users((500, TWO.uid, SIDE), pods=(ONE, running))

    assert found["two/main"] == NOTHING
    assert found[Outsider.OTHER_POD] == ProcessTotals(processes=1, memory=500 * MIB)


def test_containers_are_told_apart_by_the_runtimes_ids_where_a_pod_has_several() -> None:
    status = {
        "initContainerStatuses": [{"name": "init", "containerID": f"cri-o://{MAIN}"}],
        "containerStatuses": [{"name": "main", "containerID": f"containerd://{SIDE}"}, {"name": "late"}, "nonsense"],
    }
    alone = {"containerStatuses": [{"name": "main", "containerID": f"containerd://{SIDE}"}]}

    assert {MAIN: "init", SIDE: "main"}.items() <= pod_view({"status": status}).running.items()
    assert pod_view({"status": alone}).running == {}
    assert pod_view({"status": {"containerStatuses": 5}}).running == {}
