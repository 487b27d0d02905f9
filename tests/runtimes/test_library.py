"""Our `cdi` library and the real runtimes, asked the same: which devices resolve, and what a container gets."""

import json
import os
import stat

import pytest

from cdi.documents import to_json
from cdi.errors import UnresolvableError
from cdi.names import Kind
from cdi.spec import ContainerEdits, DeviceNode, Mount, Spec, SpecDevice
from cdi.store import Store, load
from tests.runtimes.wanted import RefusedError, Wanted

KIND = Kind(vendor="hami-plugin.test", cls="accelerator")
DIRECTORIES = ("/etc/cdi", "/var/run/cdi")


def card(number, *mounts):
    return SpecDevice(
        name=f"card{number}",
        edits=ContainerEdits(
            env={"LAST_CARD": str(number), f"CARD_{number}": "yes"},
            device_nodes=(
                DeviceNode(path=f"/dev/accel{number}", type="c", major=235, minor=number),
                DeviceNode(path=f"/dev/accel{number}_ctl", host_path="/dev/library_ctl", file_mode=0o640, gid=44),
            ),
            mounts=mounts,
        ),
    )


MACHINE = Spec(
    kind=KIND,
    devices=(
        card(0),
        card(1, Mount(host_path="/srv/library", container_path="/opt/cards/1", read_only=False)),
        card(2, Mount(host_path="/srv/library", container_path="/opt/cards/2")),
    ),
    edits=ContainerEdits(
        env={"DRIVER": "1.2.3"},
        mounts=(Mount(host_path="/srv/library/lib.so", container_path="/usr/lib/lib.so"),),
    ),
)


@pytest.fixture(scope="session", autouse=True)
def machine(enclosure):
    enclosure.make_node("/dev/library_ctl", 235, 255)
    enclosure.write("/srv/library/lib.so", "a library")


@pytest.fixture
def store(enclosure):
    """The library's own store on the enclosure's directory."""
    store = Store(enclosure.path("/var/run/cdi"), "hami-plugin-")
    yield store
    store.sync({})


def seen(inside):
    return {
        "env": dict(inside.env),
        "nodes": {path: (node.major, node.minor) for path, node in inside.devices.items()},
        "mounts": {path: mount.read_only for path, mount in inside.mounts.items()},
        "groups": set(inside.groups),
    }


def said(edits, enclosure):
    """What the library says that a container with these edits sees."""
    numbers = {}
    for node in edits.device_nodes:
        actual = None if node.major else enclosure.path(node.source).stat().st_rdev
        numbers[node.path] = (os.major(actual), os.minor(actual)) if actual else (node.major, node.minor)
    return {
        "env": dict(edits.env),
        "nodes": numbers,
        "mounts": {mount.container_path: mount.read_only for mount in edits.mounts},
        "groups": set(edits.additional_gids),
    }


@pytest.mark.parametrize("cards", [("card0",), ("card1",), ("card2", "card0"), ("card0", "card1", "card2")])
def test_a_container_sees_exactly_what_the_library_resolves(way, store, enclosure, cards):
    store.sync({"hami-plugin-test.json": to_json(MACHINE)})
    names = [str(KIND.device(name)) for name in cards]

    inside = way.run(*names)

    resolved = load(enclosure.path(path) for path in DIRECTORIES).resolve(names)
    assert seen(inside) == said(resolved, enclosure)
    assert set(cards) == {f"card{name.removeprefix('CARD_')}" for name in inside.env if name.startswith("CARD_")}


def test_mode_and_group_of_a_node_arrive(way, store):
    store.sync({"hami-plugin-test.json": to_json(MACHINE)})

    node = way.run(f"{KIND}=card0").devices["/dev/accel0_ctl"]

    assert (stat.S_IMODE(node.mode), node.gid) == (0o640, 44)


def test_groups_are_added_by_a_runtime_that_knows_them(containerd, store):
    spec = Spec(kind=KIND, devices=(SpecDevice(name="g", edits=ContainerEdits(additional_gids=(44, 109))),))
    store.sync({"hami-plugin-test.json": to_json(spec)})

    assert {44, 109} <= containerd.run(Wanted(cdi=(f"{KIND}=g",))).groups


@pytest.mark.parametrize("name", ["card0", "card7"])
@pytest.mark.parametrize("foreign", ["/etc/cdi/foreign.json", "/var/run/cdi/foreign.json"])
def test_what_the_library_cannot_resolve_no_runtime_can(way, store, put, enclosure, foreign, name):
    store.sync({"hami-plugin-test.json": to_json(MACHINE)})
    put(json.loads(to_json(Spec(kind=KIND, devices=(card(0),)))), foreign)
    registry = load(enclosure.path(path) for path in DIRECTORIES)

    try:
        expected = said(registry.resolve([f"{KIND}={name}"]), enclosure)
    except UnresolvableError:
        with pytest.raises(RefusedError, match="unresolvable CDI devices"):
            way.run(f"{KIND}={name}")
    else:
        assert seen(way.run(f"{KIND}={name}")) == expected
