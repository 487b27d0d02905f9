"""Our `cdi` library and the real runtimes, asked the same: what resolves, what it adds, and which specs are refused."""

import json
import os
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from cdi.directories import load
from cdi.documents import read, to_json
from cdi.edits import ContainerEdits, DeviceNode, Mount
from cdi.errors import UnresolvableError
from cdi.names import Kind
from cdi.spec import Device, Spec
from cdi.store import Store
from cdi.validate import problems
from cdi.version import VERSIONS
from tests.runtimes.containerd import Containerd, CrashedError
from tests.runtimes.enclosure import enclosed
from tests.runtimes.image import archive
from tests.runtimes.wanted import RefusedError, Wanted

KIND = Kind(vendor="hami-plugin.test", cls="accelerator")
READS = {"podman": "0.5.0", "containerd": "0.8.0"}
DIRECTORIES = ("/etc/cdi", "/var/run/cdi")


def card(number, *mounts):
    return Device(
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
    spec = Spec(kind=KIND, devices=(Device(name="g", edits=ContainerEdits(additional_gids=(44, 109))),))
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


@pytest.mark.parametrize("version", [*VERSIONS, "9.9.9"])
def test_which_versions_a_runtime_reads(runtime, put, request, version):
    put(document(version))
    newest = READS[request.node.callspec.params["runtime"]]

    if version in VERSIONS[: VERSIONS.index(newest) + 1]:
        assert runtime.run(f"{KIND}=d").env == {"A": "b"}
    else:
        with pytest.raises(RefusedError, match="unresolvable CDI devices"):
            runtime.run(f"{KIND}=d")


def document(version="0.7.0", device=None, edits=None, **more):
    device = {"name": "d", "containerEdits": edits or {"env": ["A=b"]}, **(device or {})}
    return {"cdiVersion": version, "kind": str(KIND), "devices": [device], **more}


def of_node(**given):
    return document(edits={"deviceNodes": [{"path": "/dev/zero", **given}]})


DOCUMENTS = {
    "an older version": document("0.2.0"),
    "no devices": {**document(), "devices": []},
    "twins": {**document(), "devices": document()["devices"] * 2},
    "no edits": document(device={"containerEdits": {}}),
    "a digit first, too early": document("0.4.0", {"name": "0"}),
    "a digit first": document("0.5.0", {"name": "0"}),
    "a sign first": document(device={"name": "-d"}),
    "a variable without value": document(edits={"env": ["A"]}),
    "a variable without name": document(edits={"env": ["=b"]}),
    "a field that nobody knows": document(more=1),
    "an edit that nobody knows": document(edits={"env": ["A=b"], "more": 1}),
    "permissions": of_node(permissions="rx"),
    "a type": of_node(type="x"),
    "a number as text": of_node(type="c", major="1", minor=5),
    "a host's node": of_node(hostPath="/dev/null"),
    "a host's node, too early": {**of_node(hostPath="/dev/null"), "cdiVersion": "0.4.0"},
    "a mount without source": document(edits={"mounts": [{"containerPath": "/mnt"}]}),
    "a mount into nowhere": document(edits={"mounts": [{"hostPath": "/srv", "containerPath": "mnt"}]}),
    "a moment that never comes": document(edits={"hooks": [{"hookName": "never", "path": "/bin/true"}]}),
    "a hook without program": document(edits={"hooks": [{"hookName": "prestart"}]}),
    "groups": document(edits={"additionalGids": [44]}),
    "groups, too early": document("0.6.0", edits={"additionalGids": [44]}),
    "annotations": document("0.6.0", annotations={"a": "b"}),
    "annotations, too early": document("0.5.0", annotations={"a": "b"}),
}


@pytest.mark.parametrize("text", DOCUMENTS.values(), ids=DOCUMENTS)
def test_containerd_refuses_a_spec_exactly_where_our_validator_does(containerd, put, text):
    put(text)
    wanted = Wanted(cdi=(f"{KIND}={(text['devices'] or [{'name': 'd'}])[0]['name']}",))

    if problems(text):
        with pytest.raises(RefusedError):
            containerd.run(wanted)
    else:
        containerd.run(wanted)


def test_the_documents_tell_both_apart():
    accepted = {name for name, text in DOCUMENTS.items() if not problems(text)}

    assert accepted == {"a digit first", "a host's node", "groups", "annotations"}


GOOD = sorted((Path(__file__).parents[1] / "cdi" / "corpus" / "good").iterdir())


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_containerd_reads_what_our_corpus_calls_good(containerd, enclosure, put, path):
    spec = read(path.read_text(encoding="utf-8"), path.name, yaml=yaml.safe_load)
    put(json.loads(to_json(spec)))  # in its least version

    # What a spec names need not be on this machine; but the spec itself is taken.
    assert "unresolvable CDI devices" not in refusal(containerd, Wanted(cdi=tuple(str(name) for name in spec.names)))


def refusal(runtime, wanted):
    try:
        runtime.run(wanted)
    except RefusedError as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize(
    "text",
    [
        {**document(), "kind": "hami-plugin.test/g"},
        document(edits={"deviceNodes": [None]}),
        document(edits={"mounts": [None]}),
        document(edits={"hooks": [None]}),
    ],
    ids=["a class of one letter", "a node that is null", "a mount that is null", "a hook that is null"],
)
def test_our_validator_refuses_a_spec_that_would_end_containerd(tree, present, text):
    with ExitStack() as stack:
        enclosure = present(lambda: stack.enter_context(enclosed(tree)))
        enclosure.write("/image.tar", archive(tree / "bin" / "busybox"))
        containerd = stack.enter_context(Containerd.serving(enclosure, "/image.tar"))
        enclosure.write("/etc/cdi/test.json", json.dumps(text))

        with pytest.raises(CrashedError, match="panic: "):
            containerd.run(Wanted(cdi=(f"{text['kind']}=d",)))

    assert problems(text)
