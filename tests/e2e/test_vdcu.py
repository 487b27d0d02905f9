"""Parts of DCUs by the files that tell their driver: our scheduler, and the daemon's process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.live import Live, RefusedError, live

DCU, MEMORY, CORES = "hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"
UNITS = 60
"""Compute units that each DCU of the machine has."""


def manifest(name: str, memory: int, cores: int, count: int = 1) -> dict[str, Any]:
    limits = {DCU: str(count), MEMORY: str(memory), CORES: str(cores)}
    container = {"name": "main", "image": "i", "resources": {"limits": limits}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], "schedulerName": "hami-scheduler"}}


def described(one: Live, name: str) -> dict[str, list[str]]:
    """What the file in the container's folder says, each key with its values."""
    (mount,) = [each for each in one.answers[name].edits.mounts if each.container_path == "/etc/vdev/docker/"]
    hook = one.stage.directory / "hook"
    (file,) = (hook / "vgpu/dcu" / mount.host_path.rpartition("/")[2]).glob("vdev*.conf")
    found: dict[str, list[str]] = {}
    for line in file.read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(": ")
        found.setdefault(key, []).append(value)
    return found


def units(one: Live, name: str) -> set[int]:
    low, high = (int(word, 16) for word in described(one, name)["cu_mask"])
    return {unit for unit in range(UNITS) if (high << 64 | low) >> unit & 1}


@pytest.mark.full
async def test_a_part_of_a_dcu_has_units_of_its_own_that_come_back_with_its_pod() -> None:
    async with live("hygon-z100-4") as one:
        for card in range(3):
            await one.run(manifest(f"whole-{card}", 16368, 100))
        await one.run(manifest("a", 4000, 60))
        await one.run(manifest("b", 4000, 40))
        first, second = units(one, "a"), units(one, "b")

        assert described(one, "a")["mem"] == ["4000 MiB"]
        assert (len(first), len(second), first & second) == (36, 24, set())
        one.end("a")
        await one.chosen(await one.created(manifest("next", 4000, 60)))
        await one.served(await bound(one, "next"))
        assert units(one, "next") == first
        with pytest.raises(RefusedError, match="several devices whole only: a container is told of a part of one DCU"):
            await one.run(manifest("several", 4000, 10, count=2))


async def bound(one: Live, name: str) -> dict[str, Any]:
    pod = dict(one.api.pod("default", name))
    await one.bound(pod)
    return pod
