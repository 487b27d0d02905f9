"""What becomes of a container's configuration when a runtime applies edits?"""

import pytest
from hypothesis import given

from cdi.errors import InjectionError
from cdi.inject import HostNode, inject
from cdi.spec import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount
from tests.support.specs import edits as any_edits

NODES = {"/dev/gpu0": HostNode(type="c", major=195, minor=0), "/dev/disk": HostNode(type="b", major=8, minor=1)}


def host(path):
    if path not in NODES:
        raise FileNotFoundError(2, "No such file or directory", path)
    return NODES[path]


def test_a_variable_of_the_image_keeps_its_place_and_takes_the_devices_value():
    container = {"process": {"env": ["PATH=/bin", "GPUS=all", "HOME=/"]}}

    result = inject(ContainerEdits(env={"GPUS": "0", "NEW": "a=b"}), container, host)

    assert result["process"]["env"] == ["PATH=/bin", "GPUS=0", "HOME=/", "NEW=a=b"]
    assert container == {"process": {"env": ["PATH=/bin", "GPUS=all", "HOME=/"]}}


def test_a_node_has_the_hosts_type_and_numbers_and_the_container_may_use_it():
    edits = ContainerEdits(
        device_nodes=(DeviceNode(path="/dev/mine", host_path="/dev/gpu0"), DeviceNode(path="/dev/disk", permissions=""))
    )

    linux = inject(edits, {}, host)["linux"]

    assert linux["devices"] == [
        {"path": "/dev/mine", "type": "c", "major": 195, "minor": 0},
        {"path": "/dev/disk", "type": "b", "major": 8, "minor": 1},
    ]
    assert linux["resources"]["devices"] == [
        {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"},
        {"allow": True, "type": "b", "major": 8, "minor": 1, "access": "rwm"},
    ]


def test_a_node_that_says_all_of_itself_needs_no_host():
    node = DeviceNode(path="/dev/x", type="c", major=10, minor=7, file_mode=0o660, uid=0, gid=44)
    pipe = DeviceNode(path="/run/pipe", type="p")

    linux = inject(ContainerEdits(device_nodes=(node, pipe)), {"process": {"user": {"uid": 5, "gid": 6}}}, host)[
        "linux"
    ]

    assert linux["devices"] == [
        {"path": "/dev/x", "type": "c", "major": 10, "minor": 7, "fileMode": 0o660, "uid": 0, "gid": 44},
        {"path": "/run/pipe", "type": "p", "major": 0, "minor": 0, "uid": 5, "gid": 6},
    ]
    assert len(linux["resources"]["devices"]) == 1


def test_a_node_takes_the_place_of_one_with_its_path():
    container = {"linux": {"devices": [{"path": "/dev/gpu0", "type": "c", "major": 1, "minor": 3}, {"path": "/dev/a"}]}}

    linux = inject(ContainerEdits(device_nodes=(DeviceNode(path="/dev/gpu0"),)), container, host)["linux"]

    assert [(node["path"], node.get("major")) for node in linux["devices"]] == [("/dev/a", None), ("/dev/gpu0", 195)]


@pytest.mark.parametrize(
    ("node", "wrong"),
    [
        (DeviceNode(path="/dev/gone"), "device /dev/gone: no node /dev/gone on the host: .*No such file"),
        (DeviceNode(path="/dev/gpu0", type="b"), "device /dev/gpu0: /dev/gpu0 is of type c, not b"),
    ],
)
def test_a_node_that_is_not_on_the_host_as_described_is_refused(node, wrong):
    with pytest.raises(InjectionError, match=wrong):
        inject(ContainerEdits(device_nodes=(node,)), {}, host)


def test_numbers_that_are_given_go_before_the_hosts():
    (device,) = inject(ContainerEdits(device_nodes=(DeviceNode(path="/dev/gpu0", major=7),)), {}, host)["linux"][
        "devices"
    ]

    assert (device["type"], device["major"], device["minor"]) == ("c", 7, 0)


def test_mounts_replace_those_at_their_place_and_parents_come_first():
    container = {"mounts": [{"destination": "/usr/lib/x", "source": "/old"}, {"destination": "/proc", "type": "proc"}]}
    edits = ContainerEdits(
        mounts=(
            Mount(host_path="/new", container_path="/usr/lib/x", options=("bind",)),
            Mount(host_path="tmpfs", container_path="/usr", read_only=False, options=(), type="tmpfs"),
        )
    )

    assert inject(edits, container, host)["mounts"] == [
        {"destination": "/proc", "type": "proc"},
        {"destination": "/usr", "source": "tmpfs", "type": "tmpfs"},
        {"destination": "/usr/lib/x", "source": "/new", "options": ["ro", "bind"]},
    ]


def test_hooks_groups_and_a_class_of_service_are_added():
    edits = ContainerEdits(
        hooks=(
            Hook(name="createContainer", path="/b", args=("b", "-v"), env=("A=1",), timeout_s=3),
            Hook(name="poststop", path="/c"),
        ),
        additional_gids=(44, 0, 109),
        intel_rdt=IntelRdt(clos_id="gpu"),
    )
    container = {
        "hooks": {"createContainer": [{"path": "/a"}]},
        "process": {"user": {"uid": 0, "additionalGids": [109]}},
    }

    result = inject(edits, container, host)

    assert result["hooks"] == {
        "createContainer": [{"path": "/a"}, {"path": "/b", "args": ["b", "-v"], "env": ["A=1"], "timeout": 3}],
        "poststop": [{"path": "/c"}],
    }
    assert result["process"]["user"] == {"uid": 0, "additionalGids": [109, 44]}
    assert result["linux"]["intelRdt"]["closID"] == "gpu"


def test_no_edits_change_nothing():
    container = {"process": {"args": ["sh"]}, "mounts": [{"destination": "/a/b"}, {"destination": "/a"}]}

    assert inject(ContainerEdits(), container, host) == container


@given(any_edits)
def test_what_is_in_the_edits_is_in_the_container(edits):
    result = inject(edits, {}, lambda _path: HostNode(type="c", major=1, minor=3)) if known(edits) else None
    if result is None:
        return

    variables = dict(entry.split("=", 1) for entry in result.get("process", {}).get("env", []))
    assert variables == edits.env
    assert {node["path"] for node in result.get("linux", {}).get("devices", [])} == {
        node.path for node in edits.device_nodes
    }
    assert {mount["destination"] for mount in result.get("mounts", [])} == {
        mount.container_path for mount in edits.mounts
    }


def known(edits):
    """Whether a host on which every node is a character device has all nodes of ``edits``."""
    return all(node.type in ("", "c", "p") or node.major for node in edits.device_nodes)
