"""What CDI specs do in real containers: the environment, nodes and mounts of what was granted, and nothing else."""

import errno
import os

import pytest

from tests.runtimes.inside import OPENED
from tests.runtimes.wanted import RefusedError, Wanted

KIND = "hami-plugin.test/gpu"
NO_DRIVER, FORBIDDEN = os.strerror(errno.ENXIO), os.strerror(errno.EPERM)
ROOT = "/run/simulated/driver"
LIBRARY = "/usr/lib/libsimulated.so.1"


@pytest.fixture(scope="session")
def machine(enclosure):
    """Two cards and their control node by their true numbers, one that opens, and a driver's library."""
    for path, major, minor in (("ctl", 195, 255), ("card0", 195, 0), ("card1", 195, 1), ("opens0", 1, 5)):
        enclosure.make_node(f"{ROOT}/dev/{path}", major, minor)
    enclosure.write(f"{ROOT}{LIBRARY}", "a library")
    enclosure.write(f"{ROOT}/etc/card1.conf", "of the second card")


def edits(**given):
    return {"containerEdits": given}


def node(name, **given):
    return {"path": f"/dev/{name}", "hostPath": f"{ROOT}/dev/{name}", **given}


def mount(path):
    return {"hostPath": f"{ROOT}{path}", "containerPath": path, "options": ["ro", "nosuid", "nodev", "rbind"]}


def spec(*devices, kind=KIND, **shared):
    return {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [{"name": name, "containerEdits": edits} for name, edits in devices],
        "containerEdits": shared,
    }


CARDS = spec(
    ("0", {"env": ["CARD_0=yes"], "deviceNodes": [node("card0")]}),
    ("1", {"env": ["CARD_1=yes"], "deviceNodes": [node("card1")], "mounts": [mount("/etc/card1.conf")]}),
    env=["DRIVER=1.2.3"],
    deviceNodes=[node("ctl")],
    mounts=[mount(LIBRARY)],
)


def numbers(inside):
    return {path: (node.major, node.minor) for path, node in inside.devices.items()}


def test_a_container_has_what_its_device_and_its_spec_say_and_nothing_of_another_device(way, machine, put):
    put(CARDS)

    inside = way.run(f"{KIND}=0", wanted=Wanted(read=(LIBRARY, "/etc/card1.conf")))

    assert inside.env == {"CARD_0": "yes", "DRIVER": "1.2.3"}
    assert numbers(inside) == {"/dev/ctl": (195, 255), "/dev/card0": (195, 0)}
    assert set(inside.mounts) == {LIBRARY}
    assert {"ro", "nosuid", "nodev"} <= inside.mounts[LIBRARY].options
    assert inside.files == {LIBRARY: b"a library"}


def test_several_devices_add_up_and_what_they_share_comes_once(way, machine, put):
    put(CARDS)

    inside = way.run(f"{KIND}=0", f"{KIND}=1", wanted=Wanted(read=("/etc/card1.conf",)))

    assert inside.env == {"CARD_0": "yes", "CARD_1": "yes", "DRIVER": "1.2.3"}
    assert set(inside.devices) == {"/dev/ctl", "/dev/card0", "/dev/card1"}
    assert set(inside.mounts) == {LIBRARY, "/etc/card1.conf"}
    assert inside.files == {"/etc/card1.conf": b"of the second card"}


def test_a_container_without_devices_gets_nothing_although_specs_are_there(way, machine, put):
    put(CARDS)

    inside = way.run()

    assert (inside.env, inside.devices, inside.mounts, inside.groups) == ({}, {}, {}, frozenset())


def test_an_unknown_device_fails_the_container_with_the_runtimes_own_message(way, machine, put):
    put(CARDS)

    with pytest.raises(RefusedError, match=f"unresolvable CDI devices (.*, )?{KIND}=7"):
        way.run(f"{KIND}=0", f"{KIND}=7")


def test_a_node_that_the_driver_has_not_made_fails_the_container(way, machine, put):
    put(spec(("0", {"deviceNodes": [node("missing")]})))

    with pytest.raises(RefusedError, match="missing"):
        way.run(f"{KIND}=0")


def test_permissions_hold_inside(way, machine, put):
    put(
        spec(
            ("reads", {"deviceNodes": [node("card0", permissions="r")]}),
            ("both", {"deviceNodes": [node("card1", permissions="rw"), node("opens0")]}),
        )
    )

    devices = way.run(f"{KIND}=reads", f"{KIND}=both").devices

    assert (devices["/dev/card0"].reading, devices["/dev/card0"].writing) == (NO_DRIVER, FORBIDDEN)
    assert (devices["/dev/card1"].reading, devices["/dev/card1"].writing) == (NO_DRIVER, NO_DRIVER)
    assert (devices["/dev/opens0"].reading, devices["/dev/opens0"].writing) == (OPENED, OPENED)


def test_type_numbers_and_owner_may_be_said_by_the_spec_alone(way, put):
    said = {"path": "/dev/said", "type": "c", "major": 195, "minor": 7, "fileMode": 0o640, "uid": 11, "gid": 12}
    put(spec(("0", {"deviceNodes": [said]})))

    seen = way.run(f"{KIND}=0").devices["/dev/said"]

    assert (seen.block, seen.major, seen.minor, seen.mode, seen.uid, seen.gid) == (False, 195, 7, 0o640, 11, 12)


def test_a_rewritten_spec_is_read_by_the_next_container(way, put):
    put(spec(("0", {"env": ["CARD=old"]})))
    before = way.run(f"{KIND}=0").env

    put(spec(("0", {"env": ["CARD=new"]})))

    assert (before, way.run(f"{KIND}=0").env) == ({"CARD": "old"}, {"CARD": "new"})


def test_what_a_spec_in_the_run_directory_says_goes_before_etc(way, put):
    put(spec(("0", {"env": ["FROM=run"]})), "/var/run/cdi/test.json")
    put(spec(("0", {"env": ["FROM=etc"]})), "/etc/cdi/test.json")

    assert way.run(f"{KIND}=0").env == {"FROM": "run"}


def test_a_device_of_two_files_in_one_directory_resolves_in_neither(way, put):
    put(spec(("0", {"env": ["FROM=ours"]})), "/etc/cdi/test.json")
    put(spec(("0", {"env": ["FROM=theirs"]})), "/etc/cdi/foreign.json")

    with pytest.raises(RefusedError, match=f"unresolvable CDI devices {KIND}=0"):
        way.run(f"{KIND}=0")


def test_a_broken_foreign_file_takes_nothing_from_ours(way, put, enclosure):
    put(spec(("0", {"env": ["FROM=ours"]})))
    put({"cdiVersion": "0.5.0", "kind": "broken"}, "/etc/cdi/foreign.json")

    assert way.run(f"{KIND}=0").env == {"FROM": "ours"}
