"""A hundred containers that put whatever they like in place of their regions, while they are read."""

from __future__ import annotations

import lzma
import os
import random
import struct
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Grant, Share
from hami_plugin.model.usage import ContainerUsage, Pace, UsageState
from tests.support import scale
from vendors.nvidia.injection import _region, container_usage, limit, pace
from vendors.nvidia.region import LAYOUTS

REGIONS = Path(__file__).parents[2] / "vectors/regions"
CONTAINERS, GOOD = 100, 10
MEMORY_MIB = 80 * 1024
GROWTH_BYTES = 16 << 20
TURNS = scale.sized(3, 200)


def uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


@pytest.fixture
def host(tmp_path: Path) -> HostFiles:
    return HostFiles(paths=HostPaths(hook=tmp_path, hook_view=tmp_path))


def shares() -> list[Share]:
    cards = [Device(uuid=f"GPU-{n}", family="NVIDIA", index=n, model="toy", memory=MEMORY_MIB) for n in range(2)]
    return [Share(grant=Grant(uuid=one.uuid, device_type="NVIDIA", memory=4096, cores=30), device=one) for one in cards]


class Hostile:
    """One container's file, changed at random."""

    def __init__(self, path: Path, recorded: list[bytes], chance: random.Random) -> None:
        self.path, self._recorded, self._chance = path, recorded, chance
        path.parent.mkdir(parents=True, exist_ok=True)

    def act(self) -> str:
        kind = self._chance.choice(ACTS)
        if kind != "in place" and self.path.is_dir() and not self.path.is_symlink():
            self.path.rmdir()
        elif kind not in {"in place", "truncated"}:
            self.path.unlink(missing_ok=True)
        getattr(self, f"_{kind.replace(' ', '_')}")()
        return kind

    def _noise(self) -> bytes:
        data = bytearray(self._chance.choice(self._recorded))
        for _ in range(self._chance.randrange(40)):
            noise = self._chance.choice([self._chance.randbytes(8), b"\xff" * 8, struct.pack("<q", -1), bytes(8)])
            place = self._chance.choice([0, 4, 40, 1500, 1700, 1856, len(data) - 70]) + self._chance.randrange(64)
            data[place : place + 8] = noise
        return bytes(data)

    def _noisy(self) -> None:
        self.path.write_bytes(self._noise())

    def _random_size(self) -> None:
        self.path.write_bytes(self._noise()[: self._chance.randrange(2_100_000)])

    def _in_place(self) -> None:
        if self.path.is_file() and not self.path.is_symlink():
            with self.path.open("r+b") as file:
                file.seek(self._chance.randrange(1 << 21))
                file.write(self._chance.randbytes(200))

    def _truncated(self) -> None:
        if self.path.is_file() and not self.path.is_symlink():
            os.truncate(self.path, self._chance.randrange(1 << 21))

    def _fifo(self) -> None:
        os.mkfifo(self.path)

    def _link(self) -> None:
        self.path.symlink_to("/dev/zero")

    def _sparse(self) -> None:
        with self.path.open("wb") as file:
            file.truncate(1 << 40)

    def _folder(self) -> None:
        self.path.mkdir()

    def _gone(self) -> None:
        pass


ACTS = ("noisy", "random size", "in place", "truncated", "fifo", "link", "sparse", "folder", "gone")


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def read(number: int, host: HostFiles) -> ContainerUsage | OSError:
    """As the reader does, which shows an ``OSError`` as a state."""
    try:
        return container_usage(uid(number), "main", shares(), host)
    except OSError as error:
        return error


def test_no_container_breaks_the_reader_its_memory_its_descriptors_or_its_neighbours(
    host: HostFiles, tell: Callable[[str], None]
) -> None:
    chance = random.Random(16)
    recorded = [lzma.decompress((REGIONS / f"{one.name}-several.bin.xz").read_bytes()) for one in LAYOUTS]
    hostile = []
    for number in range(CONTAINERS):
        folder, name = _region(uid(number), "main", host)
        one = Hostile(folder / name, recorded, chance)
        if number < GOOD:
            one.path.write_bytes(recorded[-1])
        else:
            hostile.append(one)
    good = [read(number, host) for number in range(GOOD)]
    acts: Counter[str] = Counter()
    began = time.monotonic()
    stop = threading.Event()

    def attack() -> None:
        while not stop.is_set():
            acts[chance.choice(hostile).act()] += 1

    attacker = threading.Thread(target=attack)
    tracemalloc.start()
    before, opened = tracemalloc.get_traced_memory()[0], descriptors()
    seen: Counter[str] = Counter()
    attacker.start()
    try:
        for turn in range(TURNS):
            for number in range(CONTAINERS):
                found = read(number, host)
                seen[found.state if isinstance(found, ContainerUsage) else UsageState.UNREADABLE] += 1
                if isinstance(found, ContainerUsage):
                    assert all(0 <= one.memory_used <= MEMORY_MIB << 20 for one in found.devices)
                if turn % 2 == 0 and number >= GOOD:
                    with suppress(HamiError, OSError):
                        limit(uid(number), "main", shares(), host)
                    with suppress(HamiError, OSError):
                        pace(uid(number), "main", shares(), Pace.HELD_BACK, host)
    finally:
        stop.set()
        attacker.join()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    states = ", ".join(f"{count} {state.value}" for state, count in sorted(seen.items()))
    tell(
        f"{sum(seen.values())} readings ({states}) amid {sum(acts.values())} hostile acts in "
        f"{time.monotonic() - began:.1f} s; memory {grown / 2**20:+.1f} MiB, descriptors {descriptors() - opened:+d}"
    )

    assert [read(number, host) for number in range(GOOD)] == good
    assert seen[UsageState.OK] >= GOOD * TURNS
    assert sum(seen.values()) == CONTAINERS * TURNS
    assert set(acts) == set(ACTS)
    assert descriptors() <= opened
    assert grown < GROWTH_BYTES
