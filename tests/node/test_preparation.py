"""When the host, the disk or the vendor will not, is everything as before?"""

from dataclasses import replace

import pytest

from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.node.plugin import ResourcePlugin
from hami_plugin.wire.keys import BIND_PHASE, NODE_LOCK, PHASE_FAILED
from tests.support.builders import FAMILY, TO_ALLOCATE, grant, ids, pod


async def refused(node, replicas) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await node.allocator.allocate(replicas)
    return caught.value


class FullDisk:
    """A journal on a disk that takes nothing."""

    lines = 0

    def read(self):
        return []

    def append(self, entry):
        raise OSError(28, "No space left on device")

    def rewrite(self, entries):
        raise OSError(28, "No space left on device")


async def test_a_full_disk_reserves_nothing_marks_the_pod_failed_and_releases_the_lock(node):
    a = node.cluster.add(pod("a", pieces=[[grant(0)]]))
    node.cluster.annotate(**{NODE_LOCK: "2026-01-01T00:00:00Z,default,a"})
    node.ledger._journal = FullDisk()

    refusal = await refused(node, ids((0, 0)))
    await node.settled()

    assert refusal.reason is RefusalReason.NOT_PREPARED
    assert "No space left" in refusal.message
    assert node.ledger.held == {}
    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_FAILED
    assert node.cluster.pod(a).annotations[TO_ALLOCATE]
    assert NODE_LOCK not in node.cluster.node.annotations
    assert ("a", "HostNotPrepared") in {event[:2] for event in await node.told()}


@pytest.mark.parametrize("repeated", [False, True])
async def test_a_directory_that_cannot_be_made_is_a_refusal_with_its_reason(node, repeated):
    node.cluster.add(pod("a", pieces=[[grant(0)]]))
    if repeated:
        await node.allocator.allocate(ids((0, 0)))
        (node.root / "hook").rename(node.root / "moved")
    (node.root / "hook").write_text("a file in the way")

    refusal = await refused(node, ids((0, 0)))

    assert refusal.reason is RefusalReason.NOT_PREPARED
    assert len(node.ledger.held) == (1 if repeated else 0)


async def test_a_vendor_that_refuses_leaves_nothing_reserved(node):
    def never(_assignment, _host):
        raise RefusedError(RefusalReason.INVALID_REQUEST, "a name that leads elsewhere", code="INVALID_ARGUMENT")

    node.use(replace(FAMILY, inject=never))
    a = node.cluster.add(pod("a", pieces=[[grant(0)]]))

    refusal = await refused(node, ids((0, 0)))
    await node.settled()

    assert (refusal.reason, refusal.code) == (RefusalReason.INVALID_REQUEST, "INVALID_ARGUMENT")
    assert node.ledger.held == {}
    assert node.cluster.pod(a).annotations[BIND_PHASE] == PHASE_FAILED


async def test_a_container_waits_for_what_the_host_lacks_and_then_starts(node):
    lacks = ["no file libvgpu.so on the host"]
    node.use(replace(FAMILY, host_problem=lambda _host: "".join(lacks)))
    plugin = ResourcePlugin(node.allocator, None, node.snapshot)

    with pytest.raises(RefusedError, match=r"no file libvgpu.so on the host; .*tries again") as caught:
        await plugin.pre_start(ids((0, 0)))
    lacks.clear()
    await plugin.pre_start(ids((0, 0)))

    assert plugin.pre_start_required
    assert (caught.value.reason, caught.value.code) == (RefusalReason.NOT_PREPARED, "UNAVAILABLE")
    assert node.observer.starts == ["HostNotPrepared"]


async def test_files_are_written_before_the_answer(node):
    def inject(assignment, host):
        folder = host.paths.hook / f"parts/{assignment.pod.name}"
        plain = FAMILY.inject(assignment, host)
        return replace(plain, directories=(folder,), files={folder / "limits": "half\n"})

    node.use(replace(FAMILY, inject=inject))
    node.cluster.add(pod("a", pieces=[[grant(0)]]))

    await node.allocator.allocate(ids((0, 0)))

    file = node.root / "hook/parts/a/limits"
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("half\n", 0o644)


async def test_a_device_that_cannot_be_described_is_refused_with_the_vendors_words(node):
    def gone(device, _host):
        raise HamiError(f"{device.uuid} has no node on this host")

    node.use(replace(FAMILY, device_edits=gone))
    node.cluster.add(pod("a", pieces=[[grant(0)]]))

    refusal = await refused(node, ids((0, 0)))

    assert refusal.reason is RefusalReason.NOT_PREPARED
    assert "has no node on this host" in refusal.message
    assert node.ledger.held == {}
