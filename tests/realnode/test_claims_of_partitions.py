"""Case v, too: partitions by claims of vendors whose cards are cut, beside MIG's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from hami_plugin.dra.slices import driver_name
from tests.e2e.cut_vendors import ASCEND, CAMBRICON, ENFLAME, CutVendor
from tests.realnode import versions
from tests.realnode.claims import BACK_S, CLAIM, Claims
from tests.realnode.conftest import SHARES
from tests.realnode.daemon import MACHINES, PERMITTED, Daemon
from tests.realnode.pods import Pods
from tests.realnode.servers import until
from tests.runtimes.inside import Inside

pytestmark = [
    pytest.mark.full,
    pytest.mark.case("v", "devices by ResourceClaims: partitions of three vendors"),
    pytest.mark.since(versions.CONSUMABLE),
]
NULL = (1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """``there`` is what the simulated cards in a folder are cut into, by the files behind the vendor's tool or library:
    each part as ``part`` has it. ``nodes`` are those that partitions may have, which the simulation makes as plain
    files if they are not there. ``inside`` is whether a container has just one.
    """

    vendor: CutVendor
    part: str
    there: Callable[[Path], list[str]]
    inside: Callable[[Inside], bool]
    nodes: tuple[str, ...] = ()


def _slices(folder: Path) -> list[str]:
    """As ``2#0``: two slices, and the number of the partition."""
    files = sorted((folder / "bin/efsmi.notes").glob("cut.*"))
    return [word.partition("#")[0] for file in files for word in file.read_text().split()]


def _instances(folder: Path) -> list[str]:
    """An instance's file has the number of its profile, and a profile's file cores and MiB."""
    found = []
    for file in sorted(folder.glob("smlu/*/instances/*")):
        profile, _serial = file.read_text().split()
        found.append((file.parents[1] / "profiles" / profile).read_text().strip())
    return found


def _templates(folder: Path) -> list[str]:
    """A line has card, chip, number, template, and whether it is in use."""
    file = folder / "vnpus"
    return [line.split()[3] for line in file.read_text().splitlines()] if file.exists() else []


def _numbered(seen: Inside, prefix: str) -> list[str]:
    return [path for path in seen.devices if path.startswith(prefix) and path.removeprefix(prefix)[:1].isdigit()]


CUTS = (
    Cut(
        vendor=ENFLAME,
        part="2",
        there=_slices,
        inside=lambda seen: (
            seen.env["TOPS_VISIBLE_DEVICES"].startswith("DRS-") and len(_numbered(seen, "/dev/gcu")) == 1
        ),
    ),
    Cut(
        vendor=CAMBRICON,
        part="30 3072",
        there=_instances,
        inside=lambda seen: (
            seen.env["CAMBRICON_DSMLU_PROFILE"].endswith("_30_12")
            and len(_numbered(seen, "/dev/cambricon-caps/cap_dev")) == 1
        ),
        nodes=tuple(f"cambricon-caps/cap_dev{card}_mi{one}" for card in range(8) for one in range(1, 4)),
    ),
    Cut(
        vendor=ASCEND,
        part="vir05_1c_16g",
        there=_templates,
        inside=lambda seen: (
            seen.env["ASCEND_VISIBLE_DEVICES"] == "void"
            and [int(path.removeprefix("/dev/davinci")) >= 100 for path in _numbered(seen, "/dev/davinci")] == [True]
        ),
        nodes=tuple(f"vdavinci{100 + 16 * card + one}" for card in range(8) for one in range(3)),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The simulated machines behind the daemon."""

    daemon: Daemon

    def there(self) -> Mapping[str, list[str]]:
        """What there is of each vendor's partitions."""
        return {cut.vendor.name: cut.there(self.daemon.node.path(_folder(cut))) for cut in CUTS}

    def make_nodes(self) -> None:
        """After each start of a daemon: the simulated NPUs are plain files again then."""
        for cut in CUTS:
            self.daemon.make_nodes(_folder(cut))
            for name in cut.nodes:
                path = f"{_folder(cut)}/dev/{name}"
                if not self.daemon.node.path(path).exists():
                    self.daemon.node.enclosure.make_node(path, *NULL)


def _folder(cut: Cut) -> str:
    return f"{MACHINES}/{cut.vendor.profile}"


def each(count: int) -> dict[str, list[str]]:
    """So many partitions of each vendor."""
    return {cut.vendor.name: [cut.part] * count for cut in CUTS}


@pytest.fixture(scope="module")
def machines(installed, node):
    """The daemon cuts the cards of three vendors for claims; afterwards it has the first machine again."""
    sections = {cut.vendor.name: {"frontEnd": "dra", **cut.vendor.section} for cut in CUTS}
    installed.serve([cut.vendor.profile for cut in CUTS], **sections)
    made = Machines(daemon=installed)
    for card in range(8):
        node.path(f"{_folder(CUTS[1])}/smlu/{card}/on").touch()
    installed.replace()
    until(lambda: installed.pods_there() == 1, "the end of the former daemon", BACK_S)
    made.make_nodes()
    yield made
    installed.configure()
    until(lambda: node.allocatable("nvidia.com/gpu") == SHARES, "all shares", BACK_S)


@pytest.fixture
def claims(machines, node):
    machines.daemon.await_ready()
    made = Claims(node=node, pods=Pods(node=node, place=node.api.create_pod))
    for cut in CUTS:
        driver = driver_name(cut.vendor.name)
        until(lambda driver=driver: made.devices(driver), f"slices of {driver}", BACK_S)
    yield made
    made.clear()


def asked(cut, number):
    return f"{cut.vendor.name}-{number}", {"name": CLAIM, "exactly": dict(cut.vendor.asked)}


def test_partitions_are_made_for_claims_outlive_two_daemons_and_are_gone_after_their_pods(claims, machines):
    daemon = machines.daemon
    first = [claims.create(*asked(cut, 1)) for cut in CUTS]
    claims.pods.await_running(*first, within_s=BACK_S)
    assert machines.there() == each(1)
    for cut, name in zip(CUTS, first, strict=True):
        seen = claims.pods.granted(name)
        assert cut.inside(seen), (seen.env, seen.devices)
        assert {one.reading for one in seen.devices.values()} <= PERMITTED

    _killed(daemon)
    machines.make_nodes()
    assert machines.there() == each(1)
    second = [claims.create(*asked(cut, 2)) for cut in CUTS]
    claims.pods.await_running(*second, within_s=BACK_S)
    assert machines.there() == each(2)
    assert [claims.pods.restarts(name) for name in (*first, *second)] == [0] * 6

    claims.end(*first)
    until(lambda: machines.there() == each(1), "the end of the first ones", BACK_S)
    daemon.kill()
    claims.end(*second)
    claims.await_free()
    until(lambda: machines.there() == each(0), "the end of all partitions", BACK_S)


def _killed(daemon):
    pid = daemon.pid()
    daemon.kill()
    until(lambda: daemon.pid_or_none() not in (None, pid) and daemon.is_ready(), "another process", BACK_S)
