"""Reading what containers use: what a vendor's failure means, and which folders go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from hami_plugin.allocation.identity import HeldShare
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Snapshot
from hami_plugin.model.placement import Share
from hami_plugin.model.usage import ContainerUsage, DeviceUsage, UsageState
from hami_plugin.node_status import usage
from hami_plugin.node_status.registration import FamilySource
from hami_plugin.node_status.usage import FOLDER_KEPT_S, MAX_REMOVED, Pods, UsageReader, expired_folders
from hami_plugin.process.concurrency import Watched
from hami_plugin.sdk.family import ReadUsage
from tests.support.builders import FAMILY, device, grant, held_by, pod

UID = "0f5f3c0e-1111-4222-8333-444455556666"
OTHER = "0f5f3c0e-1111-4222-8333-444455557777"


@dataclass
class Node:
    """A node with one device, and what is held of it."""

    read: ReadUsage | None
    root: Path = Path("/nowhere")
    held: list[HeldShare] = field(default_factory=list)
    known: set[str] | None = field(default_factory=set)
    folders: Callable[[HostPaths], Path] | None = None
    now: float = 0.0
    devices: Snapshot = field(default_factory=lambda: Snapshot(devices=(device(0), device(1)), ready=True))

    def reader(self) -> UsageReader:
        node = replace(FAMILY.node, usage=self.read, folders=self.folders or (lambda _paths: self.root))
        source = FamilySource(vendor="acme", family=replace(FAMILY, node=node), snapshot=Watched(self.devices))
        return UsageReader(
            [source],
            Pods(held=lambda: self.held, known=lambda: self.known),
            host=HostFiles(paths=HostPaths(hook=self.root, hook_view=self.root)),
            interval=0.01,
            clock=lambda: self.now,
        )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def used_by(uid: str, container: str, shares: Sequence[Share], _host: HostFiles) -> ContainerUsage:
    devices = [
        DeviceUsage(uuid=share.device.uuid, memory_used=1, memory_limit=2, utilization=3, core_limit=4)
        for share in shares
    ]
    return ContainerUsage(state=UsageState.OK, devices=tuple(devices), detail=f"{uid} {container}")


def failing(error: Exception) -> ReadUsage:
    def read(uid: str, container: str, shares: Sequence[Share], host: HostFiles) -> ContainerUsage:
        if container == "main":
            raise error
        return used_by(uid, container, shares, host)

    return read


async def test_each_container_is_read_with_its_shares_in_the_order_of_its_devices() -> None:
    node = Node(read=used_by, held=[held_by(pod("one"), grants=[grant(1), grant(0)])])
    reader = node.reader()

    await reader.turn()

    (reading,) = reader.readings
    assert reading.usage.detail == f"{node.held[0].uid} main"
    assert [one.uuid for one in reading.usage.devices] == [device(0).uuid, device(1).uuid]


async def test_a_container_that_cannot_be_read_leaves_the_others_readable() -> None:
    held = [held_by(pod("one"), name, grants=[grant(0)]) for name in ("main", "side")]
    for error in (PermissionError(13, "Permission denied"), ZeroDivisionError()):
        reader = Node(read=failing(error), held=held).reader()

        await reader.turn()

        states = {one.held.container: one.usage for one in reader.readings}
        assert states["main"].state is UsageState.UNREADABLE
        assert states["main"].detail
        assert states["side"].state is UsageState.OK


async def test_a_share_of_a_device_that_is_not_there_any_more_is_not_measured_as_another() -> None:
    reader = Node(read=used_by, held=[held_by(pod("one"), grants=[grant(0), grant(7)])]).reader()

    await reader.turn()

    assert [one.usage.state for one in reader.readings] == [UsageState.UNREADABLE]


async def test_shares_of_other_resources_are_not_this_familys_to_read() -> None:
    reader = Node(read=used_by, held=[held_by(pod("one"), grants=[grant(0)], resource="other.com/gpu")]).reader()

    await reader.turn()

    assert reader.readings == []
    assert reader.age_s() == 0.0


async def test_the_folder_of_a_pod_that_is_gone_is_removed_after_a_while_and_no_other(tmp_path: Path) -> None:
    for name in (f"{UID}_main", f"{OTHER}_main", "lost+found"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.cache").write_bytes(b"x")
    node = Node(read=used_by, root=tmp_path, known={OTHER})
    reader = node.reader()

    await reader.turn()
    node.now = FOLDER_KEPT_S - 1
    await reader.turn()
    assert (tmp_path / f"{UID}_main").exists()
    node.now = FOLDER_KEPT_S
    await reader.turn()

    assert names(tmp_path) == sorted([f"{OTHER}_main", "lost+found"])


async def test_folders_go_too_where_nobody_reads_what_is_used(tmp_path: Path) -> None:
    (tmp_path / f"{UID}_main").mkdir()
    node = Node(read=None, root=tmp_path, held=[held_by(pod("one"), grants=[grant(0)])])
    reader = node.reader()
    await reader.turn()
    node.now = FOLDER_KEPT_S
    await reader.turn()

    assert (names(tmp_path), reader.readings) == ([], [])


async def test_a_folder_stays_while_its_pod_holds_a_share_or_pods_are_not_known(tmp_path: Path) -> None:
    (tmp_path / f"{UID}_main").mkdir()
    node = Node(read=used_by, root=tmp_path, known=None)
    reader = node.reader()
    for now in (0.0, 10 * FOLDER_KEPT_S):
        node.now = now
        await reader.turn()
    node.known, node.held = set(), [held_by(pod("one", uid=UID), grants=[grant(0)])]
    for now in (20 * FOLDER_KEPT_S, 30 * FOLDER_KEPT_S):
        node.now = now
        await reader.turn()

    assert (tmp_path / f"{UID}_main").exists()


async def test_a_folder_is_removed_without_following_what_its_container_has_linked(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    root = tmp_path / "containers"
    (root / f"{UID}_main").mkdir(parents=True)
    (root / f"{UID}_main" / "link").symlink_to(outside)
    (root / f"{OTHER}_main").symlink_to(outside)
    node = Node(read=used_by, root=root)
    reader = node.reader()
    for now in (0.0, FOLDER_KEPT_S):
        node.now = now
        await reader.turn()

    assert (outside / "file").exists()
    assert names(root) == [f"{OTHER}_main"]


async def test_folders_that_cannot_be_named_leave_the_readings_as_they_are() -> None:
    def unnamed(_paths: HostPaths) -> Path:
        raise HamiError("the vendor does not know")

    node = Node(read=used_by, held=[held_by(pod("one"), grants=[grant(0)])], folders=unnamed)
    reader = node.reader()

    await reader.turn()

    assert [one.usage.state for one in reader.readings] == [UsageState.OK]


def test_few_folders_are_removed_at_a_time() -> None:
    names = [f"{UID[:-4]}{number:04x}_main" for number in range(MAX_REMOVED + 5)]
    since, removable = expired_folders(names, set(), dict.fromkeys(names, 0.0), FOLDER_KEPT_S)

    assert len(removable) == MAX_REMOVED
    assert set(since) == set(names)


def test_a_folder_whose_pod_is_known_again_begins_anew() -> None:
    name = f"{UID}_main"
    first, _ = expired_folders([name], set(), {}, 0.0)
    known, _ = expired_folders([name], {UID}, first, 1.0)
    _, removable = expired_folders([name], set(), known, FOLDER_KEPT_S)

    assert removable == []


async def test_a_vendor_that_does_not_answer_shows_its_containers_as_unreadable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage, "READ_TIMEOUT_S", 0.05)
    release = threading.Event()

    def never(*_asked: object) -> ContainerUsage:
        release.wait(10)
        return ContainerUsage(state=UsageState.OK)

    reader = Node(read=never, held=[held_by(pod("one"), grants=[grant(0)])]).reader()

    await reader.turn()

    release.set()
    assert [one.usage.state for one in reader.readings] == [UsageState.UNREADABLE]
