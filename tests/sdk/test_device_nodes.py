from pathlib import Path

import pytest

from cdi.spec import DeviceNode
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.sdk.device_nodes import DeviceNodes


def host(dev: Path, *names: str) -> HostFiles:
    for name in names:
        (dev / name).parent.mkdir(parents=True, exist_ok=True)
        (dev / name).touch()
    return HostFiles(paths=HostPaths(dev=dev))


def test_a_node_keeps_its_path_in_the_container(tmp_path: Path) -> None:
    nodes = DeviceNodes(host=host(tmp_path, "kfd", "dri/card1"))

    assert nodes.need("kfd", "dri/card1", whose="card 1").device_nodes == (
        DeviceNode(path="/dev/kfd"),
        DeviceNode(path="/dev/dri/card1"),
    )


def test_a_node_of_another_folder_is_taken_from_there(tmp_path: Path) -> None:
    nodes = DeviceNodes(host=host(tmp_path, "kfd"), root=tmp_path)

    assert nodes.take("kfd").device_nodes == (DeviceNode(path="/dev/kfd", host_path=str(tmp_path / "kfd")),)


def test_what_is_needed_and_missing_is_named(tmp_path: Path) -> None:
    nodes = DeviceNodes(host=host(tmp_path, "kfd"), root=tmp_path)

    with pytest.raises(HamiError, match=r"card 1 has no node .*/dri/card1"):
        nodes.need("kfd", "dri/card1", whose="card 1")


def test_what_is_only_welcome_may_be_missing(tmp_path: Path) -> None:
    assert DeviceNodes(host=host(tmp_path, "kfd")).take("kfd", "mkfd").device_nodes == (DeviceNode(path="/dev/kfd"),)
