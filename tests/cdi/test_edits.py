"""What does a container receive when several edits add up?"""

from hypothesis import given

from cdi.spec import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount
from tests.support.specs import edits


def test_a_later_value_of_a_variable_wins():
    merged = ContainerEdits(env={"A": "1", "B": "1"}).merged(ContainerEdits(env={"A": "2"}), ContainerEdits())

    assert merged.env == {"A": "2", "B": "1"}


def test_nodes_and_mounts_stay_in_order_and_identical_ones_stay_once():
    a, b = DeviceNode(path="/dev/a"), DeviceNode(path="/dev/b")
    m = Mount(host_path="/x", container_path="/y")
    written = Mount(host_path="/x", container_path="/y", read_only=False)

    merged = ContainerEdits(device_nodes=(b, a), mounts=(m,)).merged(
        ContainerEdits(device_nodes=(a, b), mounts=(m, written))
    )

    assert merged.device_nodes == (b, a)
    assert merged.mounts == (m, written)


def test_hooks_and_groups_add_up_and_the_last_class_of_service_wins():
    a, b = Hook(name="poststart", path="/a"), Hook(name="poststart", path="/b")

    merged = ContainerEdits(hooks=(a,), additional_gids=(44,), intel_rdt=IntelRdt(clos_id="a")).merged(
        ContainerEdits(hooks=(b, a), additional_gids=(7, 44), intel_rdt=IntelRdt(clos_id="b")), ContainerEdits()
    )

    assert merged.hooks == (a, b)
    assert merged.additional_gids == (44, 7)
    assert merged.intel_rdt == IntelRdt(clos_id="b")


def test_a_node_comes_from_the_same_path_unless_the_host_has_another():
    assert DeviceNode(path="/dev/a").source == "/dev/a"
    assert DeviceNode(path="/dev/a", host_path="/host/dev/a").source == "/host/dev/a"


@given(edits, edits, edits)
def test_adding_up_is_associative_and_nothing_is_neutral(a, b, c):
    assert a.merged(b, c) == a.merged(b).merged(c) == a.merged(b.merged(c))
    assert ContainerEdits().merged(a) == a.merged() == a.merged(ContainerEdits())
    assert a.merged(a) == a.merged()
