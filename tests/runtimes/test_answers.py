"""What an Allocate answer gives a container when the kubelet hands it on: edits without CDI, and beside it."""

import pytest

from hami_plugin.kubelet.api import deviceplugin_pb2 as api
from tests.runtimes.wanted import Wanted

KIND = "hami-plugin.test/card"
ANSWER = api.ContainerAllocateResponse(
    envs={"LIMIT": "3000m", "TEXT": "with = and\nlines"},
    mounts=[
        api.Mount(container_path="/opt/read", host_path="/srv/given", read_only=True),
        api.Mount(container_path="/opt/write", host_path="/srv/given"),
    ],
    devices=[api.DeviceSpec(container_path="/dev/inside0", host_path="/dev/outside0", permissions="rw")],
)


@pytest.fixture(scope="session", autouse=True)
def machine(enclosure):
    enclosure.make_node("/dev/outside0", 195, 3)
    enclosure.write("/srv/given/file", "given")


def test_environment_mounts_and_nodes_of_an_answer_arrive(runtime):
    inside = runtime.run(wanted=Wanted.of_answer(ANSWER, read=("/opt/read/file", "/opt/write/file")))

    assert inside.env == dict(ANSWER.envs)
    assert {path: (node.major, node.minor) for path, node in inside.devices.items()} == {"/dev/inside0": (195, 3)}
    assert {path: mount.read_only for path, mount in inside.mounts.items()} == {"/opt/read": True, "/opt/write": False}
    assert inside.files == {"/opt/read/file": b"given", "/opt/write/file": b"given"}


@pytest.mark.parametrize(
    "naming",
    [
        {"cdi_devices": [api.CDIDevice(name=f"{KIND}=0")]},
        {"annotations": {"cdi.k8s.io/hami-plugin_card": f"{KIND}=0"}},
        {
            "cdi_devices": [api.CDIDevice(name=f"{KIND}=0")],
            "annotations": {"cdi.k8s.io/hami-plugin_card": f"{KIND}=0"},
        },
    ],
    ids=["the field", "an annotation", "both"],
)
def test_limits_travel_beside_the_names_of_devices(containerd, put, naming):
    put({"cdiVersion": "0.5.0", "kind": KIND, "devices": [{"name": "0", "containerEdits": {"env": ["CARD=0"]}}]})
    answer = api.ContainerAllocateResponse(envs={"LIMIT": "3000m"}, **naming)

    inside = containerd.run(Wanted.of_answer(answer))

    assert inside.env.items() >= {("CARD", "0"), ("LIMIT", "3000m")}


def test_the_runtime_is_the_containerd_that_knows_cdi(containerd):
    assert containerd.version().startswith("containerd 1.7.")
